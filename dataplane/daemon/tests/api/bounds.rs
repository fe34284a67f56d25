//! Callers that send too much, nothing, or rubbish: a clear answer, and nobody else is slowed.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tonic::Code;
use vipd_proto::v1;

use crate::rig::{Rig, endpoint, problems, set, upsert};

#[tokio::test]
async fn a_request_that_is_too_large_is_refused_with_the_number() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    let target = "x".repeat(1024 * 1024);
    let endpoints = vec![v1::Endpoint { target, ..endpoint("10.0.0.1") }; 17];
    let request = v1::SetEndpointsRequest { name: "web".to_owned(), endpoints, ..Default::default() };
    let status = dataplane.set_endpoints(request).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("16777216"), "{}", status.message());
    assert_eq!(problems(&status)[0].1, v1::problem::Code::Limit);
}

#[tokio::test]
async fn long_names_and_long_lists_get_short_answers() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    let status = dataplane.upsert_service(upsert(&"x".repeat(1024 * 1024), "10.96.0.10")).await.unwrap_err();
    assert_eq!((status.code(), problems(&status)[0].0.as_str()), (Code::InvalidArgument, "service.name"));
    assert!(status.message().len() < 200, "{}", status.message());

    dataplane.upsert_service(upsert("web", "10.96.0.10")).await.unwrap();
    let addresses: Vec<String> = (0..10_000).map(|n| format!("10.1.{}.{}", n / 250, n % 250 + 1)).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    dataplane.set_endpoints(set("web", &addresses)).await.unwrap();
    let mut bad = set("web", &addresses);
    bad.endpoints.iter_mut().for_each(|endpoint| endpoint.address.push('x'));
    let status = dataplane.set_endpoints(bad).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.details().len() < 5_000, "{}", status.details().len());
    assert!(status.message().contains("in the details"), "{}", status.message());
}

#[tokio::test]
async fn rubbish_and_silence_cost_the_others_nothing() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    dataplane.upsert_service(upsert("web", "10.96.0.10")).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        idle.push(rig.channel().await);
    }
    let mut half_open = Vec::new();
    for n in 0..100u8 {
        let mut stream = UnixStream::connect(&rig.socket).await.unwrap();
        match n % 4 {
            0 => stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap(),
            1 => stream.write_all(&[n; 4_096]).await.unwrap_or(()),
            2 => stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap(),
            _ => stream
                .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x04\x01\x25\0\0\0\x01\xff\xff\xff\xff")
                .await
                .unwrap(),
        }
        half_open.push(stream);
    }
    let began = Instant::now();
    for n in 0..50 {
        dataplane.set_endpoints(set("web", &[&format!("10.1.0.{}", n + 1)])).await.unwrap();
    }
    // Half a second for each would be one reader that is waited for; a call here takes about a millisecond.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let mut answer = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(5), half_open[1].read_to_end(&mut answer)).await;
    assert!(closed.is_ok(), "rubbish ends its own connection");
}

#[tokio::test]
async fn calls_are_limited_with_the_number() {
    let rig = Rig::with("[limits]\ncalls = 1").await;
    let (steps, stream) = tokio::sync::mpsc::channel(1);
    let mut syncing = rig.dataplane().await;
    let sync = tokio::spawn(async move { syncing.sync(tokio_stream::wrappers::ReceiverStream::new(stream)).await });
    let begin = v1::SyncBegin { owner: "k8s".to_owned(), ..Default::default() };
    steps.send(v1::SyncRequest { step: Some(v1::sync_request::Step::Begin(begin)) }).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let status = rig.dataplane().await.upsert_service(upsert("web", "10.96.0.10")).await.unwrap_err();
    assert_eq!((status.code(), problems(&status)[0].1), (Code::ResourceExhausted, v1::problem::Code::Limit));
    assert!(status.message().contains('1'), "{}", status.message());
    drop(steps);
    assert!(sync.await.unwrap().is_err());
    rig.dataplane().await.upsert_service(upsert("web", "10.96.0.10")).await.unwrap();
}
