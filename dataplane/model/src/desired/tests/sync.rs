//! Sync.

use super::*;
use crate::command::{Declare, Sync};
use crate::name::OwnerName;
use crate::problem::Refused;

fn declare(index: u32, name: &str, address: &str, endpoints: Vec<Endpoint>) -> Declare {
    let definition = Arc::new(serving(vec![vip(address, 80)]));
    Declare { index, key: key(name), definition, scheduler: None, endpoints }
}

impl Node {
    fn begin(&self, declares: Vec<Declare>) -> Sync {
        let owner = OwnerName::new("ops").unwrap();
        Sync {
            begun: self.desired.owner(&owner).map(|o| o.revision).unwrap_or_default(),
            declared: declares.len() as u64,
            owner,
            take_over: false,
            holder: "uid 0".into(),
            ticket: 1,
            settings: None,
            allow_large_removal: false,
            all_or_nothing: false,
            declares,
            unconverted: vec![],
        }
    }

    fn commit(&mut self, sync: Sync) -> Result<Delta, Rejection> {
        self.call(Request::Sync(Box::new(sync)))
    }
}

fn five() -> Vec<Declare> {
    (0..5)
        .map(|i| declare(i, &format!("s{i}"), &format!("10.0.0.{i}"), vec![endpoint("10.1.0.1", 80)]))
        .skip(1)
        .collect()
}

fn renumbered(mut declares: Vec<Declare>) -> Vec<Declare> {
    (0..).zip(&mut declares).for_each(|(index, declare)| declare.index = index);
    declares
}

#[test]
fn what_was_not_sent_goes_in_the_same_change() {
    let mut node = Node::new();
    let delta = node.commit(node.begin(five())).unwrap();
    assert_eq!(delta.counts.created, 4);
    let mut next = five();
    next.remove(0);
    next[0].endpoints.push(endpoint("10.1.0.2", 80));
    next.push(declare(9, "new", "10.0.0.9", vec![]));
    let delta = node.commit(node.begin(renumbered(next))).unwrap();
    let counts = delta.counts;
    assert_eq!((counts.created, counts.updated, counts.unchanged, counts.removed), (1, 1, 2, 1));
    assert_eq!(delta.unchanged.len(), 2, "the caller waits for those too");
    assert_eq!(node.desired.len(), 4);
    assert!(node.desired.owner(&OwnerName::new("ops").unwrap()).unwrap().last_sync.is_some());
}

#[test]
fn a_refused_service_keeps_its_last_good_state() {
    let mut node = Node::new();
    node.commit(node.begin(five())).unwrap();
    let mut next = five();
    next[1].endpoints = vec![endpoint("0.0.0.0", 80)];
    let unreadable = next.remove(3);
    let refused = Refused {
        index: 3,
        owner: "ops".into(),
        name: unreadable.key.name.to_string(),
        problems: vec![Problem::invalid("declare[3].service.frontends[0].address", "is no address")],
    };
    let mut sync = node.begin(renumbered(next));
    sync.unconverted = vec![refused];
    sync.declared = 4;
    let whole = Sync { all_or_nothing: true, ..sync.clone() };
    let before = node.desired.clone();
    let fields: Vec<_> = fields(node.commit(whole)).into_iter().map(|p| p.1).collect();
    assert_eq!(fields, ["declare[3].service.frontends[0].address", "declare[1].endpoints[0].address"]);
    assert_eq!(node.desired, before);
    let delta = node.commit(sync).unwrap();
    assert_eq!((delta.refused_total, delta.counts.removed, delta.counts.unchanged), (2, 0, 2));
    assert_eq!(node.desired.len(), 4);
    assert_eq!(*node.desired.service(&key("s2")).unwrap().endpoints, [endpoint("10.1.0.1", 80)]);
}

#[test]
fn a_service_declared_twice_is_refused_whichever_came_first() {
    let mut node = Node::new();
    let mut twice = five();
    twice.push(declare(9, "s1", "10.0.0.77", vec![]));
    let delta = node.commit(node.begin(renumbered(twice))).unwrap();
    assert_eq!(delta.refused.iter().map(|r| r.index).collect::<Vec<_>>(), [0, 4]);
    assert!(node.desired.service(&key("s1")).is_none());
}

#[test]
fn the_count_must_match() {
    let mut node = Node::new();
    let sync = Sync { declared: 3, ..node.begin(five()) };
    assert_eq!(fields(node.commit(sync)), [(ProblemCode::Invalid, "commit.declared".into())]);
}

#[test]
fn another_writer_since_begin_aborts() {
    let mut node = Node::new();
    let sync = node.begin(five());
    node.one(upsert("hand", serving(vec![]))).unwrap();
    assert_eq!(fields(node.commit(sync)), [(ProblemCode::Superseded, "begin".into())]);
    // A mark of life is no change of the owner's state.
    let sync = Sync { allow_large_removal: true, ..node.begin(five()) };
    node.one(upsert("hand", serving(vec![]))).unwrap();
    node.commit(sync).unwrap();
}

#[test]
fn of_two_takeovers_the_later_begin_wins_and_older_sessions_are_fenced() {
    let mut node = Node::new();
    let first = Sync { take_over: true, ticket: 1, ..node.begin(five()) };
    let second = Sync { take_over: true, ticket: 2, holder: "new".into(), ..node.begin(vec![]) };
    node.commit(second).unwrap();
    assert_eq!(fields(node.commit(first)), [(ProblemCode::Superseded, "begin".into())]);
    let request = Request::One(upsert("web", serving(vec![])));
    let mut write = |session| {
        let (actor, at, note) = (Actor::default(), Millis(1), String::new());
        node.desired.dispatch(&Command { actor, at, session, note, request: request.clone() })
    };
    assert_eq!(fields(write(1)), [(ProblemCode::Superseded, "options.session".into())]);
    assert!(write(1).unwrap_err().problems[0].message.contains("session 2 of new"));
    assert!(write(2).is_ok() && write(0).is_ok(), "people are not fenced");
}

#[test]
fn a_large_removal_wants_to_be_said() {
    let mut node = Node::new();
    let four =
        vec![endpoint("10.1.0.1", 80), endpoint("10.1.0.2", 80), endpoint("10.1.0.3", 80), endpoint("10.1.0.4", 80)];
    let full = || five().into_iter().map(|d| Declare { endpoints: four.clone(), ..d }).collect::<Vec<_>>();
    node.commit(node.begin(full())).unwrap();
    let large = [(ProblemCode::LargeRemoval, "begin.allow_large_removal".to_owned())];
    assert_eq!(fields(node.commit(node.begin(full()[..1].to_vec()))), large, "3 of 4 services");
    let emptied = || full().into_iter().map(|d| Declare { endpoints: vec![], ..d }).collect::<Vec<_>>();
    assert_eq!(fields(node.commit(node.begin(emptied()))), large, "all endpoints");
    let moved = |d: Declare| Declare { endpoints: (1..5).map(|i| endpoint(&format!("10.9.0.{i}"), 80)).collect(), ..d };
    node.commit(node.begin(full().into_iter().map(moved).collect())).unwrap();
    node.commit(node.begin(full()[..2].to_vec())).unwrap();
    node.commit(Sync { allow_large_removal: true, ..node.begin(vec![]) }).unwrap();
    assert!(node.desired.is_empty());
}
