//! Coming back from the store.

use super::*;
use crate::desired::Stored;
use crate::endpoint::Leaving;
use crate::service::Service;

fn restored(stored: Stored) -> (Desired, Vec<Problem>) {
    Desired::restore(engines(), Limits::default(), stored)
}

#[test]
fn nothing_readable_is_lost_for_being_invalid() {
    let mut node = Node::new();
    node.one(upsert("a", serving(vec![vip("10.0.0.1", 80)]))).unwrap();
    node.one(set("a", vec![endpoint("10.1.0.1", 80), endpoint("10.1.0.2", 80)])).unwrap();
    let mut stored = node.desired.stored();
    let mut loose = Service::clone(&stored.services[0]);
    loose.key = key("b");
    loose.endpoints = Arc::from([endpoint("10.1.0.2", 0), endpoint("0.0.0.0", 80)]);
    let left = Leaving { key: endpoint("10.1.0.9", 80).key, since: Millis(1), drain: crate::Drain::default() };
    loose.leaving = Arc::from([left]);
    stored.services.push(loose);
    stored.owners.clear();
    stored.revision = revision(0);
    let (desired, problems) = restored(stored);
    assert_eq!(desired.len(), 2);
    assert_eq!(desired.revision(), revision(2));
    assert_eq!(desired.service(&key("b")).unwrap().waiting, [0], "two services hold one frontend in no state");
    assert_eq!(desired.service(&key("b")).unwrap().endpoints[0], endpoint("0.0.0.0", 80));
    let texts: Vec<_> = problems.iter().map(|p| p.message.as_str()).collect();
    for part in ["out of order", "held by another", "owner ops is lost", "stored revision 0"] {
        assert!(texts.iter().any(|t| t.contains(part)), "{part}: {texts:?}");
    }
}
