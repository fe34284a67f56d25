//! What watchers and the journal are told.

use std::time::Duration;

use super::kit::*;
use super::words::*;
use crate::reconcile::ServiceState;
use crate::reconcile::journal::EventKind;

#[tokio::test(start_paused = true)]
async fn a_watcher_sees_every_last_state_and_every_removal() {
    let node = Node::new().await;
    let cursor = node.read(|core| core.changes.cursor());
    node.apply(vec![upsert("a", &[1]), set("a", &[1]), upsert("b", &[2])]).await.unwrap();
    node.one(set("a", &[2])).await.unwrap();
    let removed = node.one(delete("b")).await;
    let changed = node.read(|core| core.changes.after(cursor, 100)).unwrap();
    let seen: Vec<_> = changed.iter().map(|c| (c.key.name.to_string(), c.deleted)).collect();
    assert_eq!(seen, [("a".to_owned(), None), ("b".to_owned(), Some(revision(&removed)))]);
    assert_eq!(node.state("a"), ServiceState::InForce);
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_wakes_nobody() {
    let node = Node::new().await;
    node.apply(vec![upsert("a", &[1]), set("a", &[1])]).await.unwrap();
    node.pass(Duration::from_secs(1)).await;
    let mut changed = node.control.changed();
    changed.mark_unchanged();
    node.pass(Duration::from_secs(300)).await;
    assert!(!changed.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_failure_and_its_end_wake_watchers() {
    let node = Node::new().await;
    let bad = "userspace frontend 10.96.0.1 . tcp . 80";
    node.kernel.refuse(bad);
    assert!(node.one(upsert("a", &[1])).await.is_err());
    let cursor = node.read(|core| core.changes.cursor());
    let mut changed = node.control.changed();
    changed.mark_unchanged();
    node.kernel.accept(bad);
    changed.changed().await.unwrap();
    while node.state("a") != ServiceState::InForce {
        changed.changed().await.unwrap();
    }
    assert!(!node.read(|core| core.changes.after(cursor, 10)).unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_journal_says_who_and_what() {
    let node = Node::new().await;
    node.apply(vec![upsert("a", &[1]), set("a", &[1])]).await.unwrap();
    let _ = node.one(set("nobody", &[1])).await;
    node.kernel.refuse("userspace endpoint ops/a all4 10.1.0.9:8080");
    let _ = node.one(set("a", &[9])).await;
    node.pass(Duration::from_secs(30)).await;
    let (lost, events) = node.read(|core| core.journal.after(0, 100));
    assert_eq!(lost, 0);
    let of = |kind| {
        events
            .iter()
            .filter(move |e| e.kind == kind && (e.name.is_some() || kind != EventKind::Changed))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(EventKind::Changed).len(), 2);
    assert!(of(EventKind::Changed)[0].text.contains("created") && of(EventKind::Changed)[0].actor == "test");
    assert_eq!(of(EventKind::RefusedCall).len(), 1);
    assert_eq!(of(EventKind::NotProgrammed).len(), 1, "said once, not with every attempt");
}
