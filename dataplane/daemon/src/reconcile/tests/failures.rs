//! What goes wrong, and what is left of it.

use std::time::Duration;

use vipd_engine::chaos::Mischief;
use vipd_model::{Mode, Request};

use super::kit::*;
use super::words::*;
use crate::reconcile::CallError;
use crate::reconcile::journal::EventKind;
use crate::reconcile::run::{Fatal, Settings};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn one_bad_service_among_a_thousand_fails_alone_and_is_retried_ever_less_often() {
    let node = Node::start(Setup { watch_order: false, ..Setup::default() }).await;
    let bad = "userspace endpoint ops/s617 all4 10.1.0.9:8080";
    node.kernel.refuse(bad);
    let mut operations = Vec::new();
    for n in 0..1000u32 {
        let name = format!("s{n}");
        operations.extend([upsert(&name, &[]), set(&name, &[9])]);
    }
    assert_eq!(not_programmed(node.apply(operations).await), ["s617".to_owned()].into());
    assert_eq!(node.read(|core| core.tracks.failed().len()), 1);
    assert_eq!(node.kernel.objects().len(), 999);
    assert!(node.read(|core| core.unhealthy(node.now()).is_some()));

    let mut attempts = Vec::new();
    for _ in 0..6 {
        let before = node.kernel.transactions();
        let began = node.now();
        while node.kernel.transactions() == before {
            node.pass(50 * MS).await;
        }
        attempts.push(node.now().0 - began.0);
    }
    assert!(attempts.windows(2).skip(1).all(|pair| pair[1] > pair[0] + pair[0] / 2), "{attempts:?}");
    node.kernel.accept(bad);
    node.one(set("s617", &[9])).await.unwrap();
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn what_is_not_stored_is_not_accepted() {
    let node = Node::new().await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1])]).await.unwrap();
    let state = || (node.kernel.objects(), node.read(|core| core.desired.clone()));
    let before = state();
    node.store.fail(true, false);
    let calls = [
        node.begin(Request::One(set("web", &[2]))),
        node.begin(Request::One(upsert("new", &[2]))),
        node.begin(Request::One(delete("web"))),
        node.begin(Request::One(upsert("web", &[3]))),
    ];
    for call in calls {
        assert!(matches!(call.await.unwrap(), Err(CallError::NotStored(_))));
    }
    node.pass(SECOND).await;
    assert_eq!(state(), before);
    node.store.fail(false, false);
    // Frontends that were given back can be had, and the next revision is the one that follows.
    let answer = node.apply(vec![upsert("new", &[2, 3]), set("new", &[2])]).await;
    assert_eq!(revision(&answer).0, 2);
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn nothing_that_may_be_taken_back_is_seen_or_programmed() {
    let node = Node::start(Setup { pace: Pace::of(5 * MS), ..Setup::default() }).await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1])]).await.unwrap();
    // The service is due already when a change of it is being stored, in vain.
    let pending = node.begin(Request::One(set("web", &[2])));
    tokio::task::yield_now().await;
    node.store.fail(true, false);
    let lost = node.begin(Request::One(set("web", &[66])));
    let (pending, lost) = (pending.await.unwrap(), lost.await.unwrap());
    assert!(!node.kernel.dump().contains("10.1.0.66"));
    let told = [pending.is_ok(), matches!(lost, Err(CallError::NotStored(_)))];
    node.store.fail(false, false);
    node.pass(SECOND).await;
    assert!(told[1], "{told:?}");
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_takes_no_more_writes_is_said_and_traffic_goes_on() {
    let node = Node::new().await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1])]).await.unwrap();
    let before = node.kernel.objects();
    node.store.fail(true, true);
    assert!(matches!(node.one(set("web", &[2])).await, Err(CallError::NotStored(_))));
    node.store.fail(false, false);
    match node.one(set("web", &[2])).await {
        Err(CallError::Rejected(rejection)) => assert!(rejection.to_string().contains("disk full"), "{rejection}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(node.kernel.objects(), before);
    // Saying "still here" needs no disk.
    assert!(node.call(Request::RenewLease(key("web").owner)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn drift_is_found_at_once_where_the_engine_notices_and_repaired() {
    let node = Node::start(Setup { desired: Some(declared(20)), watch_order: false, ..Setup::default() }).await;
    node.kernel.remove_behind_us(|_| true);
    node.pass(SECOND).await;
    node.assert_settled();
    node.kernel.write_behind_us("userspace endpoint ops/s3 all4 10.1.0.1:8080", "tcp weight 77");
    node.kernel.write_behind_us("guard capture 1.2.3.4 . tcp . 5", "port 20001");
    node.pass(SECOND).await;
    node.assert_settled();
    let (_, events) = node.read(|core| core.journal.after(0, 1000));
    assert!(events.iter().any(|e| e.kind == EventKind::Drifted && e.text.contains("weight 77")));
    assert!(events.iter().any(|e| e.kind == EventKind::Repaired));
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_under_load() {
    let node =
        Node::start(Setup { desired: Some(declared(20)), watch_order: false, pace: Pace::of(MS), ..Setup::default() })
            .await;
    node.kernel.remove_behind_us(|name| name.contains("s19"));
    for n in 0..400u32 {
        node.one(set("s1", &[1, u8::try_from(n % 100).unwrap() + 2])).await.unwrap();
    }
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn a_lie_of_the_kernel_is_found_by_the_read_back() {
    let node = Node::start(Setup { watch_order: false, ..Setup::default() }).await;
    node.chaos.set(Mischief { lie: 1000, ..Mischief::default() });
    node.apply(vec![upsert("web", &[1]), set("web", &[1, 2])]).await.unwrap();
    node.chaos.set(Mischief::default());
    assert_ne!(node.kernel.objects(), node.expected());
    assert!(!node.control.verify(None).await.unwrap().drift.is_empty());
    node.pass(Settings::default().check_every + SECOND).await;
    node.assert_settled();
    assert!(node.control.verify(None).await.unwrap().drift.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_hangs_is_said_and_the_node_answers() {
    let node = Node::start(Setup { desired: Some(declared(5)), ..Setup::default() }).await;
    node.pace.set(100 * SECOND);
    let stuck = node.begin(Request::One(set("s1", &[7])));
    node.pass(40 * SECOND).await;
    let unhealthy = node.read(|core| core.unhealthy(node.now())).unwrap();
    assert!(unhealthy.contains("stalled"), "{unhealthy}");
    // What needs no engine is answered; what needs one is accepted.
    assert!(matches!(node.one(set("nobody", &[1])).await, Err(CallError::Rejected(_))));
    assert!(!node.accepted(Request::One(set("s2", &[7]))).await.unwrap().in_force);
    // Callers that give up leave nothing behind.
    for _ in 0..10 {
        let _ = tokio::time::timeout(10 * MS, node.one(set("s3", &[8]))).await;
    }
    node.pass(200 * MS).await;
    assert_eq!(node.read(|core| core.figures.waiting), 1);
    node.pace.set(Duration::ZERO);
    stuck.await.unwrap().unwrap();
    node.pass(200 * SECOND).await;
    assert_eq!(node.read(|core| core.unhealthy(node.now())), None);
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_ends_the_daemon() {
    let node = Node::new().await;
    let lane = node.lanes.balancers.values().next().unwrap().clone();
    let gone = lane.call(|_| panic!("a bug in an engine (this panic is part of the test)")).await;
    assert!(gone.is_err());
    let call = node.begin(Request::One(upsert("web", &[1])));
    assert!(matches!(node.run.await.unwrap(), Err(Fatal::Worker(_))));
    assert!(matches!(call.await.unwrap(), Err(CallError::Stopping)));
}

#[tokio::test(start_paused = true)]
async fn stopping_stores_what_was_taken_in() {
    let node = Node::new().await;
    let call = node.begin(Request::Apply { operations: vec![upsert("web", &[1])], mode: Mode::Atomic });
    tokio::task::yield_now().await;
    node.control.stop().await;
    assert!(node.run.await.unwrap().is_ok());
    assert_eq!(node.store.deltas().len(), 1);
    let _ = call.await.unwrap();
    assert!(matches!(node.control.submit(command_of_nobody(), Default::default()).await, Err(CallError::Stopping)));
}

fn command_of_nobody() -> vipd_model::Command {
    let request = Request::One(upsert("late", &[1]));
    vipd_model::Command { actor: Default::default(), at: Default::default(), session: 0, note: String::new(), request }
}

#[tokio::test(start_paused = true)]
async fn a_service_removed_while_it_fails_is_gone() {
    let node = Node::new().await;
    let bad = "userspace frontend 10.96.0.1 . tcp . 80";
    node.kernel.refuse(bad);
    assert!(node.apply(vec![upsert("web", &[1]), set("web", &[1])]).await.is_err());
    node.one(delete("web")).await.unwrap();
    assert!(node.read(|core| core.tracks.get(&key("web")).is_none()));
    node.pass(10 * SECOND).await;
    node.assert_settled();
    assert_eq!(node.kernel.dump(), "");
}
