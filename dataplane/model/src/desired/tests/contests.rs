//! Contested frontends.

use super::*;
use crate::frontend::{At, NodePort, Place, PortRange};
use crate::service::{Contest, Protocol, Service};

fn waits(precedence: u64, frontends: Vec<Frontend>) -> Definition {
    Definition { on_contest: Contest::Wait, precedence, ..serving(frontends) }
}

fn range(text: &str, first: u16, last: u16) -> Frontend {
    Frontend { ports: PortRange { first, last }, ..vip(text, first) }
}

fn node_port(port: u16, v4: bool, v6: bool) -> Frontend {
    Frontend { at: At::NodePort(NodePort { v4, v6, addresses: vec![] }), ..vip("10.0.0.1", port) }
}

fn waiting(node: &Node, name: &str) -> Vec<u32> {
    node.desired.service(&key(name)).unwrap().waiting.clone()
}

fn holder<'a>(node: &'a Node, address: &str) -> &'a Service {
    node.desired.holder(Place::Address(ip(address)), Protocol::Tcp, 80).unwrap().0
}

#[test]
fn a_frontend_that_another_holds_is_refused_by_name() {
    let mut node = Node::new();
    node.one(upsert("a", serving(vec![vip("10.0.0.1", 80)]))).unwrap();
    let refused = node.one(upsert("b", serving(vec![vip("10.0.0.2", 80), vip("10.0.0.1", 80)]))).unwrap_err();
    let problem = &refused.problems[0];
    assert_eq!((problem.code, problem.field.as_str()), (ProblemCode::FrontendTaken, "service.frontends[1]"));
    assert!(problem.message.contains("ops/a"), "{problem}");
    for other in [vip("10.0.0.1", 81), vip("10.0.0.2", 80), node_port(80, true, true)] {
        node.one(upsert("b", serving(vec![other]))).unwrap();
    }
    let udp = Definition { protocol: Protocol::Udp, ..serving(vec![vip("10.0.0.1", 80)]) };
    node.one(upsert("c", udp)).unwrap();
}

#[test]
fn ranges_meet_where_they_overlap() {
    let mut node = Node::new();
    node.one(upsert("a", serving(vec![range("10.0.0.1", 1000, 1999)]))).unwrap();
    node.one(upsert("b", serving(vec![vip("10.0.0.1", 65535)]))).unwrap();
    for taken in [range("10.0.0.1", 1999, 3000), vip("10.0.0.1", 1500), range("10.0.0.1", 1, 65535)] {
        assert!(node.one(upsert("c", serving(vec![taken]))).is_err());
    }
    node.one(upsert("c", serving(vec![range("10.0.0.1", 2000, 3000), range("10.0.0.1", 1, 999)]))).unwrap();
}

#[test]
fn node_ports_are_held_by_family() {
    let mut node = Node::new();
    node.one(upsert("four", serving(vec![node_port(30080, true, false)]))).unwrap();
    node.one(upsert("six", serving(vec![node_port(30080, false, true)]))).unwrap();
    let both = node.one(upsert("both", serving(vec![node_port(30080, true, true)])));
    assert_eq!(fields(both), [(ProblemCode::FrontendTaken, "service.frontends[0]".into())]);
    node.one(upsert("both", waits(0, vec![node_port(30080, true, true)]))).unwrap();
    node.one(delete("four")).unwrap();
    assert_eq!(waiting(&node, "both"), [0], "half of a frontend is none");
    node.one(delete("six")).unwrap();
    assert_eq!(waiting(&node, "both"), [] as [u32; 0]);
}

#[test]
fn the_one_that_waits_is_promoted_in_the_change_that_frees_the_frontend() {
    let mut node = Node::new();
    node.one(upsert("a", serving(vec![vip("10.0.0.1", 80)]))).unwrap();
    let delta = node.one(upsert("b", waits(7, vec![vip("10.0.0.9", 80), vip("10.0.0.1", 80)]))).unwrap();
    assert_eq!(
        (delta.notes[0].code, delta.notes[0].field.as_str()),
        (ProblemCode::FrontendTaken, "service.frontends[1]")
    );
    assert!(delta.notes[0].message.contains("ops/a"));
    assert_eq!(waiting(&node, "b"), [1]);
    let delta = node.one(delete("a")).unwrap();
    let changed: Vec<_> = delta.services.iter().map(|c| c.key.name.as_str()).collect();
    assert_eq!(changed, ["a", "b"]);
    assert_eq!(waiting(&node, "b"), [] as [u32; 0]);
    let service = holder(&node, "10.0.0.1");
    assert_eq!(service.key, key("b"));
    assert_eq!(service.revisions.newest(), revision(2), "nothing that it declared has changed");
}

#[test]
fn among_those_that_wait_the_lowest_precedence_has_it_whatever_the_order() {
    let late = || upsert("late", waits(20, vec![vip("10.0.0.1", 80)]));
    let early = || upsert("early", waits(10, vec![vip("10.0.0.1", 80)]));
    let unsaid = || upsert("unsaid", waits(0, vec![vip("10.0.0.1", 80)]));
    for order in [[late(), early(), unsaid()], [unsaid(), late(), early()], [early(), unsaid(), late()]] {
        let mut node = Node::new();
        for operation in order {
            node.one(operation).unwrap();
        }
        assert_eq!(["early", "late", "unsaid"].map(|name| waiting(&node, name).len()), [0, 1, 1]);
    }
}

#[test]
fn one_that_refuses_keeps_what_it_has_and_takes_nothing() {
    let mut node = Node::new();
    node.one(upsert("keeps", serving(vec![vip("10.0.0.1", 80)]))).unwrap();
    node.one(upsert("first", waits(1, vec![vip("10.0.0.1", 80)]))).unwrap();
    assert_eq!(waiting(&node, "first"), [0]);
    node.one(delete("keeps")).unwrap();
    assert!(node.one(upsert("keeps", serving(vec![vip("10.0.0.1", 80)]))).is_err(), "one that waits holds it now");
}

#[test]
fn frontends_swap_in_one_apply() {
    let mut node = Node::new();
    node.one(upsert("a", serving(vec![vip("10.0.0.1", 80)]))).unwrap();
    node.one(upsert("b", serving(vec![vip("10.0.0.2", 80)]))).unwrap();
    node.one(upsert("w", waits(1, vec![vip("10.0.0.1", 80)]))).unwrap();
    let swap = vec![upsert("a", serving(vec![vip("10.0.0.2", 80)])), upsert("b", serving(vec![vip("10.0.0.1", 80)]))];
    node.apply(Mode::Atomic, swap).unwrap();
    let holder = holder(&node, "10.0.0.1");
    assert_eq!(holder.key, key("b"), "it was never free, so the one that waits did not get it");

    let moved = vec![delete("b"), upsert("c", serving(vec![vip("10.0.0.1", 80)]))];
    node.apply(Mode::Atomic, moved).unwrap();
    let twice = vec![upsert("d", serving(vec![vip("10.0.0.7", 80)])), upsert("e", serving(vec![vip("10.0.0.7", 80)]))];
    let problems = fields(node.apply(Mode::Atomic, twice));
    assert_eq!(
        problems.iter().map(|p| p.1.as_str()).collect::<Vec<_>>(),
        ["operations[0].upsert_service.service.frontends[0]", "operations[1].upsert_service.service.frontends[0]"]
    );
}

#[test]
fn in_mode_each_a_refused_service_keeps_its_frontend_from_the_next() {
    let mut node = Node::new();
    for (name, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3"), ("x", "10.0.0.9")] {
        node.one(upsert(name, serving(vec![vip(address, 80)]))).unwrap();
    }
    // Each takes the next one's; the last wants what x has and keeps.
    let rotate = [("a", "10.0.0.2"), ("b", "10.0.0.3"), ("c", "10.0.0.9"), ("d", "10.0.0.8")];
    let operations = rotate.map(|(name, address)| upsert(name, serving(vec![vip(address, 80)]))).to_vec();
    let delta = node.apply(Mode::Each, operations).unwrap();
    assert_eq!(delta.refused.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(delta.services.len(), 1);
    for (name, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3"), ("d", "10.0.0.8")] {
        assert_eq!(holder(&node, address).key, key(name));
    }
}

#[test]
fn holders_are_found_by_text() {
    let mut node = Node::new();
    node.one(upsert("a", serving(vec![vip("10.0.0.1", 80), vip("fd00::1", 80)]))).unwrap();
    node.one(upsert("b", serving(vec![vip("10.0.0.1", 81)]))).unwrap();
    node.one(upsert("w", waits(0, vec![vip("10.0.0.1", 81)]))).unwrap();
    let names = |text: &str| -> Vec<String> {
        node.desired.holders(text).unwrap().iter().map(|s| s.key.name.to_string()).collect()
    };
    assert_eq!(names("10.0.0.1"), ["a", "b"]);
    assert_eq!(names("10.0.0.1:81"), ["b"]);
    assert_eq!(names("[fd00::1]:80"), ["a"]);
    assert_eq!(names("fd00::1"), ["a"]);
    assert!(node.desired.holders("10.0.0.1:x").is_err());
}
