//! Single calls and Apply.

use super::*;
use crate::endpoint::{Drain, OnExpiry};

#[test]
fn parts_are_written_apart_and_kept_by_the_others() {
    let mut node = Node::new();
    let delta = node.one(upsert("web", serving(vec![vip("10.96.0.10", 80)]))).unwrap();
    assert_eq!((delta.revision, delta.counts.created), (revision(1), 1));
    node.one(set("web", vec![endpoint("10.1.0.3", 8080), endpoint("10.1.0.2", 8080)])).unwrap();
    node.one(schedule("web", Algorithm::Wlc)).unwrap();
    node.one(upsert("web", serving(vec![vip("10.96.0.11", 80)]))).unwrap();

    let service = node.desired.service(&key("web")).unwrap();
    assert_eq!(service.scheduler.algorithm, Algorithm::Wlc);
    assert_eq!(*service.endpoints, [endpoint("10.1.0.2", 8080), endpoint("10.1.0.3", 8080)], "in key order");
    let of = service.revisions;
    assert_eq!(
        (of.created, of.definition, of.endpoints, of.scheduler),
        (revision(1), revision(4), revision(2), revision(3))
    );
}

#[test]
fn a_repeated_call_tells_when_its_state_was_accepted() {
    let mut node = Node::new();
    node.one(upsert("web", serving(vec![vip("10.96.0.10", 80)]))).unwrap();
    node.one(set("web", vec![endpoint("10.1.0.2", 8080)])).unwrap();
    node.one(schedule("web", Algorithm::Rr)).unwrap();
    let again = node.one(set("web", vec![endpoint("10.1.0.2", 8080)])).unwrap();
    assert!(!again.changed());
    assert_eq!((again.revision, again.unchanged), (revision(2), vec![key("web")]));
    let again = node.one(upsert("web", serving(vec![vip("10.96.0.10", 80)]))).unwrap();
    assert_eq!((again.changed(), again.revision), (false, revision(1)));
    assert_eq!(node.desired.revision(), revision(3));
}

#[test]
fn deleting_what_is_not_there_is_no_change() {
    let mut node = Node::new();
    let delta = node.one(delete("web")).unwrap();
    assert!(!delta.changed() && delta.owners.is_empty(), "an owner must not come to be by deleting nothing");
    assert_eq!(delta.unchanged, [key("web")]);
    node.one(upsert("web", serving(vec![]))).unwrap();
    assert_eq!(node.one(delete("web")).unwrap().counts.removed, 1);
    assert!(node.desired.is_empty());
}

#[test]
fn a_part_of_no_service_is_not_found() {
    let mut node = Node::new();
    assert_eq!(fields(node.one(set("web", vec![]))), [(ProblemCode::NoSuchService, "name".into())]);
    let apply = node.apply(Mode::Atomic, vec![upsert("a", serving(vec![])), schedule("b", Algorithm::Rr)]);
    assert_eq!(fields(apply), [(ProblemCode::NoSuchService, "operations[1].set_scheduler.name".into())]);
    assert!(node.desired.is_empty(), "a refused call changes nothing");
}

#[test]
fn expected_revisions_are_those_of_the_part() {
    let mut node = Node::new();
    let expect = |operation, revision| match operation {
        Operation::UpsertService { key, definition, scheduler, .. } => {
            Operation::UpsertService { key, definition, scheduler, expected: Some(Revision(revision)) }
        }
        Operation::SetEndpoints { key, endpoints, .. } => {
            Operation::SetEndpoints { key, endpoints, expected: Some(Revision(revision)) }
        }
        other => other,
    };
    let stale = [(ProblemCode::StaleRevision, "expected_revision".to_owned())];
    assert_eq!(fields(node.one(expect(upsert("web", serving(vec![])), 1))), stale);
    node.one(expect(upsert("web", serving(vec![])), 0)).unwrap();
    assert_eq!(fields(node.one(expect(upsert("web", serving(vec![])), 0))), stale);
    node.one(expect(set("web", vec![endpoint("10.1.0.2", 80)]), 0)).unwrap();
    assert_eq!(fields(node.one(expect(set("web", vec![]), 1))), stale);
    node.one(expect(set("web", vec![]), 2)).unwrap();
}

#[test]
fn two_operations_on_one_part_contradict_each_other() {
    let mut node = Node::new();
    node.one(upsert("web", serving(vec![]))).unwrap();
    let twice = node.apply(Mode::Atomic, vec![set("web", vec![]), schedule("web", Algorithm::Rr), set("web", vec![])]);
    assert_eq!(fields(twice), [(ProblemCode::Invalid, "operations[2].set_endpoints".into())]);
    let both = node.apply(Mode::Atomic, vec![delete("web"), upsert("web", serving(vec![]))]);
    assert_eq!(fields(both), [(ProblemCode::Invalid, "operations[0].delete_service".into())]);
}

#[test]
fn each_refuses_service_by_service() {
    let mut node = Node::new();
    let bad = set("b", vec![endpoint("0.0.0.0", 80)]);
    let operations = vec![upsert("a", serving(vec![])), upsert("b", serving(vec![])), bad, set("c", vec![])];
    let delta = node.apply(Mode::Each, operations).unwrap();
    assert!(node.desired.service(&key("a")).is_some() && node.desired.service(&key("b")).is_none());
    let refused: Vec<_> =
        delta.refused.iter().map(|r| (r.index, r.name.as_str(), r.problems[0].field.as_str())).collect();
    let b = "operations[2].set_endpoints.endpoints[0].address";
    assert_eq!(refused, [(1, "b", b), (2, "b", b), (3, "c", "operations[3].set_endpoints.name")]);
    assert_eq!(delta.refused_total, 3);
}

#[test]
fn an_endpoint_sent_twice_is_merged_whatever_the_order() {
    let ready = endpoint("10.1.0.2", 80);
    let draining = Endpoint { local: true, weight: 9, ..state(endpoint("10.1.0.2", 80), EndpointState::Draining) };
    for list in [vec![ready.clone(), draining.clone()], vec![draining, ready.clone()]] {
        let mut node = Node::new();
        node.one(upsert("web", serving(vec![]))).unwrap();
        let delta = node.one(set("web", list)).unwrap();
        assert_eq!(delta.notes[0].code, ProblemCode::DuplicatesMerged);
        assert_eq!(&*node.desired.service(&key("web")).unwrap().endpoints, std::slice::from_ref(&ready));
    }
}

#[test]
fn a_drain_is_counted_from_when_it_was_first_seen() {
    let mut node = Node::new();
    let drain = Drain { timeout: Some(60 * SECOND), on_expiry: OnExpiry::Reset };
    node.one(upsert("web", Definition { drain, ..serving(vec![]) })).unwrap();
    let (a, b) = (endpoint("10.1.0.2", 80), endpoint("10.1.0.3", 80));
    node.one(set("web", vec![a.clone(), b.clone()])).unwrap();
    let left = |node: &Node| node.desired.service(&key("web")).unwrap().endpoints[0].left_at;
    let draining = state(a.clone(), EndpointState::Draining);
    node.now = 2000;
    node.one(set("web", vec![draining.clone(), b.clone()])).unwrap();
    node.now = 3000;
    assert!(!node.one(set("web", vec![b.clone(), draining])).unwrap().changed(), "a repeat restarts nothing");
    node.one(set("web", vec![state(a.clone(), EndpointState::NotReady), b.clone()])).unwrap();
    assert_eq!(left(&node), Some(Millis(2000)));

    node.now = 4000;
    node.one(set("web", vec![b.clone()])).unwrap();
    let leaving = node.desired.service(&key("web")).unwrap().leaving.to_vec();
    assert_eq!(leaving.iter().map(|l| (l.key, l.since, l.drain)).collect::<Vec<_>>(), [(a.key, Millis(2000), drain)]);
    node.now = 5000;
    node.one(set("web", vec![state(a.clone(), EndpointState::Draining), b.clone()])).unwrap();
    assert_eq!(left(&node), Some(Millis(2000)), "back, still leaving");
    node.one(set("web", vec![a, b.clone()])).unwrap();
    assert_eq!(left(&node), None, "READY again");

    node.now = 6000;
    node.one(set("web", vec![b.clone()])).unwrap();
    node.now = 70_000;
    node.one(set("web", vec![b, endpoint("10.1.0.9", 80)])).unwrap();
    assert!(node.desired.service(&key("web")).unwrap().leaving.is_empty(), "what is over is forgotten");
}

#[test]
fn a_patch_changes_some_endpoints() {
    let mut node = Node::new();
    node.one(upsert("web", serving(vec![]))).unwrap();
    node.one(set("web", vec![endpoint("10.1.0.2", 80), endpoint("10.1.0.3", 80)])).unwrap();
    let heavy = Endpoint { weight: 7, ..endpoint("10.1.0.3", 80) };
    let patch = |upsert, remove| Operation::PatchEndpoints { key: key("web"), upsert, remove, expected: None };
    let gone = [endpoint("10.1.0.2", 80).key, endpoint("10.1.0.99", 80).key];
    node.one(patch(vec![heavy.clone(), endpoint("10.1.0.4", 80)], gone.to_vec())).unwrap();
    assert_eq!(*node.desired.service(&key("web")).unwrap().endpoints, [heavy.clone(), endpoint("10.1.0.4", 80)]);
    assert!(!node.one(patch(vec![heavy.clone()], gone.to_vec())).unwrap().changed());
    let both = node.one(patch(vec![heavy.clone()], vec![gone[0], heavy.key]));
    assert_eq!(fields(both), [(ProblemCode::Invalid, "remove[1]".into())]);
}
