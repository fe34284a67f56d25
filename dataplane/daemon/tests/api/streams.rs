//! Watch and Events.

use std::time::Duration;

use tokio::time::timeout;
use tonic::{Code, Streaming};
use vipd_proto::v1;
use vipd_proto::v1::watch_response::Event;

use crate::rig::{Rig, problems, set, upsert};

async fn next(watch: &mut Streaming<v1::WatchResponse>) -> Event {
    timeout(Duration::from_secs(5), watch.message()).await.expect("an event").unwrap().unwrap().event.unwrap()
}

/// Reads up to SYNCED: names of services in order, what was deleted, whether it began with a reset.
async fn state(
    watch: &mut Streaming<v1::WatchResponse>,
) -> (Vec<String>, Vec<String>, bool, v1::watch_response::Synced) {
    let (mut names, mut deleted, mut reset) = (Vec::new(), Vec::new(), false);
    loop {
        match next(watch).await {
            Event::Reset(_) => reset = true,
            Event::Service(state) => names.push(state.service.unwrap().name),
            Event::Deleted(gone) => deleted.push(gone.name),
            Event::Synced(synced) => return (names, deleted, reset, synced),
        }
    }
}

#[tokio::test]
async fn watch_gives_the_state_then_changes_and_resumes() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    for n in 1..=600 {
        let address = format!("10.96.{}.{}", n / 250, n % 250 + 1);
        let options = Some(v1::WriteOptions { wait: v1::write_options::Wait::Accepted.into(), ..Default::default() });
        dataplane
            .upsert_service(v1::UpsertServiceRequest { options, ..upsert(&format!("s{n:03}"), &address) })
            .await
            .unwrap();
    }
    dataplane.upsert_service(upsert("last", "10.97.0.1")).await.unwrap();
    let mut watch = dataplane.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let (names, _, reset, synced) = state(&mut watch).await;
    assert_eq!((names.len(), reset, synced.revision), (601, false, 601));
    assert!(names.is_sorted(), "in key order");

    dataplane.set_endpoints(set("last", &["10.1.0.2"])).await.unwrap();
    // Level-triggered: the last state must come, states before it may.
    loop {
        let Event::Service(state) = next(&mut watch).await else { panic!("a service") };
        assert_eq!(state.service.unwrap().name, "last");
        let status = state.status.unwrap();
        if status.state() == v1::status::State::InForce && state.endpoints.len() == 1 {
            break;
        }
    }
    drop(watch);
    let delete = v1::DeleteServiceRequest { name: "s001".to_owned(), ..Default::default() };
    dataplane.delete_service(delete).await.unwrap();
    dataplane.set_endpoints(set("s002", &["10.1.0.2"])).await.unwrap();

    let resume = v1::WatchRequest { epoch: synced.epoch, from_revision: synced.revision, ..Default::default() };
    let mut watch = dataplane.watch(resume.clone()).await.unwrap().into_inner();
    let (mut names, deleted, reset, _) = state(&mut watch).await;
    names.sort();
    // `last` had its change after SYNCED; whatever was touched while that revision was current may come again.
    assert!(names.contains(&"last".to_owned()) && names.contains(&"s002".to_owned()), "{names:?}");
    assert!(names.len() < 600 && !reset, "{}", names.len());
    assert_eq!(deleted, ["s001"]);

    let other = v1::WatchRequest { epoch: "another".to_owned(), ..resume };
    let mut watch = dataplane.watch(other).await.unwrap().into_inner();
    let (names, _, reset, _) = state(&mut watch).await;
    assert_eq!((names.len(), reset), (600, true));
}

#[tokio::test]
async fn a_client_that_never_reads_its_watch_slows_nobody() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    dataplane.upsert_service(upsert("web", "10.96.0.10")).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(rig.dataplane().await.watch(v1::WatchRequest::default()).await.unwrap());
    }
    assert_eq!(rig.api.open_streams(), 100);
    for n in 0..200 {
        let address = format!("10.1.0.{}", n % 200 + 1);
        let done = timeout(Duration::from_secs(5), dataplane.set_endpoints(set("web", &[&address]))).await;
        done.expect("no caller waits for a reader").unwrap();
    }
    drop(idle);
    for _ in 0..100 {
        if rig.api.open_streams() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} streams are still counted", rig.api.open_streams());
}

#[tokio::test]
async fn streams_are_limited_with_the_number() {
    let rig = Rig::with("[limits]\nstreams = 2").await;
    let mut dataplane = rig.dataplane().await;
    let _first = dataplane.watch(v1::WatchRequest::default()).await.unwrap();
    let second = rig.node().await.events(v1::EventsRequest { follow: true, ..Default::default() }).await.unwrap();
    let status = dataplane.watch(v1::WatchRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains('2'), "{}", status.message());
    assert_eq!(problems(&status)[0].1, v1::problem::Code::Limit);
    drop(second);
    for _ in 0..100 {
        if dataplane.watch(v1::WatchRequest::default()).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("a place that is given back must be used again");
}

#[tokio::test]
async fn events_follow_and_go_on_where_the_reader_stopped() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    dataplane.upsert_service(upsert("web", "10.96.0.10")).await.unwrap();
    let mut node = rig.node().await;
    let mut events = node
        .events(v1::EventsRequest { follow: true, name: "web".to_owned(), ..Default::default() })
        .await
        .unwrap()
        .into_inner();
    let first = events.message().await.unwrap().unwrap();
    assert_eq!((first.kind(), first.actor.as_str()), (v1::events_response::Kind::Changed, "in process"));
    let options = Some(v1::WriteOptions { note: "INC-4211 roll back".to_owned(), ..Default::default() });
    dataplane.set_endpoints(v1::SetEndpointsRequest { options, ..set("web", &["10.1.0.2"]) }).await.unwrap();
    let second = timeout(Duration::from_secs(5), async {
        loop {
            let event = events.message().await.unwrap().unwrap();
            if event.text.contains("INC-4211") {
                return event;
            }
        }
    });
    let second = second.await.expect("the change, with its note");
    let after = v1::EventsRequest { after: second.sequence - 1, ..Default::default() };
    let mut events = node.events(after).await.unwrap().into_inner();
    assert_eq!(events.message().await.unwrap().unwrap().sequence, second.sequence);
}
