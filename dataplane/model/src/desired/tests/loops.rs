//! Endpoints that are frontends of this node.

use super::*;
use crate::frontend::PortRange;
use crate::service::Protocol;

#[test]
fn an_endpoint_must_not_be_a_frontend_whichever_came_first() {
    let mut node = Node::new();
    node.one(upsert("a", serving(vec![vip("10.0.0.1", 80)]))).unwrap();
    node.one(upsert("b", serving(vec![vip("10.0.0.2", 80)]))).unwrap();
    let list = vec![endpoint("10.1.0.1", 80), endpoint("10.0.0.1", 80)];
    assert_eq!(fields(node.one(set("b", list.clone()))), [(ProblemCode::Invalid, "endpoints[1].address".into())]);
    assert_eq!(fields(node.one(set("a", list.clone()))), [(ProblemCode::Invalid, "endpoints[1].address".into())]);
    node.one(set("b", vec![endpoint("10.0.0.1", 81)])).unwrap();
    let taking = node.one(upsert("a", serving(vec![vip("10.0.0.1", 80), vip("10.0.0.1", 81)])));
    assert_eq!(fields(taking), [(ProblemCode::Invalid, "service.frontends[1]".into())]);
    let udp = Definition { protocol: Protocol::Udp, ..serving(vec![vip("10.0.0.1", 81)]) };
    node.one(upsert("u", udp)).unwrap();
}

#[test]
fn the_state_that_a_call_leads_to_is_what_counts() {
    let mut node = Node::new();
    node.one(upsert("a", serving(vec![vip("10.0.0.1", 80)]))).unwrap();
    node.one(upsert("b", serving(vec![vip("10.0.0.2", 80)]))).unwrap();
    node.one(set("b", vec![endpoint("10.1.0.1", 80)])).unwrap();
    // a leaves its frontend and takes b's endpoint's address, b turns to the address that a leaves.
    let both = vec![upsert("a", serving(vec![vip("10.1.0.1", 80)])), set("b", vec![endpoint("10.0.0.1", 80)])];
    node.apply(Mode::Atomic, both).unwrap();
    let back = vec![upsert("a", serving(vec![vip("10.0.0.1", 80)])), schedule("b", Algorithm::Rr)];
    let problems = fields(node.apply(Mode::Atomic, back));
    assert_eq!(problems, [(ProblemCode::Invalid, "operations[0].upsert_service.service.frontends[0]".into())]);
    let new = vec![upsert("c", serving(vec![vip("10.0.0.7", 80)])), set("b", vec![endpoint("10.0.0.7", 80)])];
    let problems = fields(node.apply(Mode::Atomic, new));
    assert_eq!(problems, [(ProblemCode::Invalid, "operations[1].set_endpoints.endpoints[0].address".into())]);
}

#[test]
fn an_endpoint_without_a_port_reaches_the_ports_of_the_range() {
    let mut node = Node::new();
    let range = |first, last| Frontend { ports: PortRange { first, last }, ..vip("10.0.0.1", first) };
    node.one(upsert("r", serving(vec![range(5000, 5999)]))).unwrap();
    node.one(upsert("a", serving(vec![vip("10.0.0.2", 80), vip("10.0.0.3", 5500)]))).unwrap();
    assert!(node.one(set("r", vec![endpoint("10.0.0.3", 0)])).is_err());
    node.one(set("r", vec![endpoint("10.0.0.2", 0)])).unwrap();
    assert!(node.one(upsert("b", serving(vec![vip("10.0.0.2", 5999)]))).is_err());
    assert!(node.one(upsert("r", serving(vec![range(80, 5999)]))).is_err(), "the range grows over it");
}

#[test]
fn in_mode_each_what_stays_is_what_counts() {
    let mut node = Node::new();
    node.one(upsert("a", serving(vec![vip("10.0.0.1", 80)]))).unwrap();
    node.one(upsert("b", serving(vec![]))).unwrap();
    node.one(upsert("x", serving(vec![vip("10.0.0.9", 80)]))).unwrap();
    let operations = vec![upsert("a", serving(vec![vip("10.0.0.9", 80)])), set("b", vec![endpoint("10.0.0.1", 80)])];
    let delta = node.apply(Mode::Each, operations).unwrap();
    assert_eq!(delta.refused.len(), 2, "a cannot leave its frontend, so b must not send there: {:?}", delta.refused);
}
