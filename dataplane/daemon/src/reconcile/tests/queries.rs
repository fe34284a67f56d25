//! Plan, Verify, what Explain reads back, and drift.

use std::time::Duration;

use vipd_engine::runner::Seen;
use vipd_model::{EngineKind, Place, ProblemCode};

use super::kit::*;
use super::words::*;
use crate::reconcile::journal::EventKind;
use crate::reconcile::lanes::Action;

#[tokio::test(start_paused = true)]
async fn plan_tells_what_then_happens_and_changes_nothing() {
    let node = Node::new().await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1, 2])]).await.unwrap();
    let before = (node.kernel.objects(), node.kernel.messages(), node.store.commits());
    let operations = || vec![set("web", &[2, 3]), upsert("new", &[2])];
    let planned = node.control.plan(operations(), None).await.unwrap();
    assert_eq!((node.kernel.objects(), node.kernel.messages(), node.store.commits()), before);
    assert_eq!(node.read(|core| core.desired.revision().0), 1);
    let mut printed: Vec<_> = planned.changes.iter().map(|change| (change.action, change.object.as_str())).collect();
    printed.sort_by_key(|(_, object)| *object);
    assert_eq!(
        printed,
        [
            (Action::Add, "guard refuse 10.96.0.2 . tcp . 80 reject"),
            (Action::Remove, "userspace endpoint ops/web all4 10.1.0.1:8080 tcp weight 1"),
            (Action::Add, "userspace endpoint ops/web all4 10.1.0.3:8080 tcp weight 1"),
            (Action::Add, "userspace frontend 10.96.0.2 . tcp . 80 ops/new RR inside reject outside reject"),
        ]
    );
    let messages = node.kernel.messages();
    node.apply(operations()).await.unwrap();
    assert_eq!(node.kernel.messages() - messages, planned.changes.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn plan_of_a_removal_and_of_a_refused_operation() {
    let node = Node::new().await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1])]).await.unwrap();
    let planned = node.control.plan(vec![delete("web"), set("nobody", &[1])], None).await.unwrap();
    assert!(planned.changes.iter().all(|change| change.action == Action::Remove));
    assert_eq!(planned.changes.len(), 3, "{planned:?}");
    assert_eq!(planned.refused[0].problems[0].code, ProblemCode::NoSuchService);
}

#[tokio::test(start_paused = true)]
async fn plan_of_another_default_engine() {
    let node = Node::new().await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1])]).await.unwrap();
    let planned = node.control.plan(Vec::new(), Some(EngineKind::Nftables)).await.unwrap();
    let count = |action| planned.changes.iter().filter(|change| change.action == action).count();
    assert_eq!((count(Action::Add), count(Action::Remove)), (2, 3), "nftables needs no capture: {planned:?}");
    assert_eq!(node.engine("web"), Some(EngineKind::Userspace));
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn verify_finds_drift_of_all_and_of_one() {
    let node = Node::start(Setup { watch_order: false, ..Setup::default() }).await;
    node.apply(vec![upsert("a", &[1]), set("a", &[1]), upsert("b", &[2]), set("b", &[1])]).await.unwrap();
    let verified = node.control.verify(None).await.unwrap();
    assert_eq!((verified.drift.len(), verified.objects), (0, 6));
    node.kernel.remove_behind_us(|name| name.contains("endpoint ops/a "));
    assert_eq!(node.control.verify(Some(key("a"))).await.unwrap().drift.len(), 1);
    assert_eq!(node.control.verify(Some(key("b"))).await.unwrap().drift.len(), 0);
    assert_eq!(node.control.verify(None).await.unwrap().drift.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_view_shows_what_decides_for_a_packet_in_every_lane() {
    let node = Node::start(Setup { watch_order: false, ..Setup::default() }).await;
    node.apply(vec![upsert("web", &[1, 2]), set("web", &[1])]).await.unwrap();
    let at = Some((Place::Address([10, 96, 0, 1].into()), 80));
    let view = || node.control.view(key("web"), at);
    let printed = |lanes: Vec<(String, Vec<Seen>)>| {
        let one = |lane: &str, seen: Seen| format!("{lane}: {}{}", seen.object, seen.wrong.unwrap_or_default());
        lanes
            .into_iter()
            .flat_map(|(lane, seen)| seen.into_iter().map(move |seen| one(&lane, seen)))
            .collect::<Vec<_>>()
    };
    let seen = printed(view().await.unwrap());
    let endpoint = "userspace: userspace endpoint ops/web all4 10.1.0.1:8080 tcp weight 1";
    let frontend = "userspace: userspace frontend 10.96.0.1 . tcp . 80 ops/web RR inside all outside all";
    assert_eq!(seen[..2], [endpoint, frontend]);
    assert_eq!(seen[2], "guard: guard capture 10.96.0.1 . tcp . 80 port 20001");
    node.kernel.remove_behind_us(|name| name == "guard capture 10.96.0.1 . tcp . 80");
    let seen = printed(view().await.unwrap());
    assert!(seen[2].ends_with("is not in the kernel; programmed was port 20001"), "{seen:?}");
    assert_eq!(node.control.view(key("nobody"), at).await.unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_within_a_second_and_says_who_did_it() {
    let node = Node::start(Setup { watch_order: false, ..Setup::default() }).await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1])]).await.unwrap();
    let before = node.kernel.objects();
    node.kernel.name_stranger("nft (pid 4211)");
    node.kernel.remove_behind_us(|name| name.starts_with("userspace"));
    node.pass(Duration::from_millis(900)).await;
    assert_eq!(node.kernel.objects(), before);
    let (_, events) = node.read(|core| core.journal.after(0, usize::MAX));
    let drifted: Vec<_> = events.iter().filter(|event| event.kind == EventKind::Drifted).collect();
    assert_eq!(drifted.len(), 2);
    assert!(
        drifted.iter().all(|event| event.text.contains("is missing from the kernel")
            && event.text.ends_with("; by nft (pid 4211)")
            && event.name.is_some()),
        "{drifted:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_did_nothing_to_a_lane_is_not_blamed_for_another() {
    let node = Node::start(Setup { watch_order: false, ..Setup::default() }).await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1])]).await.unwrap();
    let objects = node.kernel.objects();
    let (name, value) = objects.iter().find(|(name, _)| name.starts_with("userspace")).unwrap();
    node.kernel.name_stranger("nft (pid 4211)");
    node.kernel.write_behind_us(name, value);
    node.kernel.remove_behind_us(|name| name.starts_with("guard capture"));
    node.pass(Duration::from_millis(900)).await;
    let (_, events) = node.read(|core| core.journal.after(0, usize::MAX));
    let drifted: Vec<_> = events.iter().filter(|event| event.kind == EventKind::Drifted).collect();
    assert!(drifted.len() == 1 && drifted[0].text.starts_with("guard: "), "{drifted:#?}");
    assert!(!drifted[0].text.contains("; by"), "{drifted:#?}");
}
