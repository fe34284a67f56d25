//! Sync.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use vipd_proto::v1;
use vipd_proto::v1::sync_request::Step;

use crate::rig::{Rig, endpoint, problems, service, upsert};

fn step(step: Step) -> v1::SyncRequest {
    v1::SyncRequest { step: Some(step) }
}

fn begin() -> v1::SyncRequest {
    step(Step::Begin(v1::SyncBegin { owner: "k8s".to_owned(), ..Default::default() }))
}

fn declare(name: &str, address: &str) -> v1::SyncRequest {
    let endpoints = vec![endpoint("10.1.0.2")];
    step(Step::Declare(v1::Declare { service: Some(service(name, address)), endpoints }))
}

fn commit(declared: u64) -> v1::SyncRequest {
    step(Step::Commit(v1::SyncCommit { declared }))
}

#[tokio::test]
async fn a_commit_makes_the_state_what_was_sent() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    let steps = [begin(), declare("a", "10.96.0.1"), declare("b", "ten"), declare("c", "10.96.0.3"), commit(3)];
    let reply = dataplane.sync(tokio_stream::iter(steps)).await.unwrap().into_inner();
    assert_eq!((reply.created, reply.removed, reply.refused_total), (2, 0, 1));
    assert_eq!((reply.refused[0].index, reply.refused[0].name.as_str()), (1, "b"));
    assert_eq!(reply.refused[0].problems[0].field, "declare[1].service.frontends[0].address");
    assert_eq!(reply.change.unwrap().in_force, Some(true));

    let steps = [begin(), declare("a", "10.96.0.1"), commit(1)];
    let reply = dataplane.sync(tokio_stream::iter(steps)).await.unwrap().into_inner();
    assert_eq!((reply.unchanged, reply.removed), (1, 1));
}

#[tokio::test]
async fn a_stream_that_is_wrong_or_ends_changes_nothing() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    for (steps, code, field) in [
        (vec![begin(), declare("a", "10.96.0.1")], Code::InvalidArgument, "commit"),
        (vec![begin(), declare("a", "10.96.0.1"), commit(2)], Code::InvalidArgument, "commit.declared"),
        (vec![declare("a", "10.96.0.1")], Code::InvalidArgument, "begin"),
        (vec![begin(), begin()], Code::InvalidArgument, "begin"),
        (vec![begin(), v1::SyncRequest { step: None }], Code::InvalidArgument, "commit"),
    ] {
        let status = dataplane.sync(tokio_stream::iter(steps)).await.unwrap_err();
        assert_eq!((status.code(), problems(&status)[0].0.as_str()), (code, field), "{}", status.message());
    }
    assert_eq!(rig.control.read(|core| core.desired.len()), 0);
}

#[tokio::test]
async fn of_two_syncs_the_later_begin_wins() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    let (steps, first) = mpsc::channel(8);
    let mut older = rig.dataplane().await;
    let older = tokio::spawn(async move { older.sync(ReceiverStream::new(first)).await });
    steps.send(begin()).await.unwrap();
    steps.send(declare("old", "10.96.0.1")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let newer = [begin(), declare("new", "10.96.0.2"), commit(1)];
    dataplane.sync(tokio_stream::iter(newer)).await.unwrap();
    let status = older.await.unwrap().unwrap_err();
    assert_eq!((status.code(), problems(&status)[0].1), (Code::Aborted, v1::problem::Code::Superseded));
    let names: Vec<_> = rig.control.read(|core| core.desired.services().map(|s| s.key.to_string()).collect());
    assert_eq!(names, ["k8s/new"]);
}

#[tokio::test]
async fn another_writer_during_a_sync_aborts_it() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    let (steps, stream) = mpsc::channel(8);
    let mut syncing = rig.dataplane().await;
    let sync = tokio::spawn(async move { syncing.sync(ReceiverStream::new(stream)).await });
    steps.send(begin()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut write = upsert("other", "10.96.0.9");
    write.service.as_mut().unwrap().owner = "k8s".to_owned();
    dataplane.upsert_service(write).await.unwrap();
    steps.send(commit(0)).await.unwrap();
    let status = sync.await.unwrap().unwrap_err();
    assert_eq!((status.code(), problems(&status)[0].1), (Code::Aborted, v1::problem::Code::Superseded));
}
