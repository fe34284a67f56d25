//! Owners, sessions, leases.

use super::*;
use crate::name::OwnerName;
use crate::owner::{Lease, LeaseExpiry, Owner};

fn ops() -> OwnerName {
    OwnerName::new("ops").unwrap()
}

#[test]
fn first_use_makes_an_owner_and_every_accepted_write_marks_it() {
    let mut node = Node::new();
    node.one(upsert("web", serving(vec![]))).unwrap();
    node.now = 5000;
    let again = node.one(upsert("web", serving(vec![]))).unwrap();
    assert!(!again.changed());
    let record = node.desired.owner(&ops()).unwrap();
    assert_eq!((record.last_write, record.revision), (Millis(5000), revision(1)));
    node.now = 6000;
    node.call(Request::RenewLease(ops())).unwrap();
    assert_eq!(node.desired.owner(&ops()).unwrap().last_write, Millis(6000));
    let nobody = OwnerName::new("nobody").unwrap();
    assert_eq!(fields(node.call(Request::RenewLease(nobody))), [(ProblemCode::NoSuchService, "owner".into())]);
}

#[test]
fn settings_are_kept_in_order_and_repeating_them_is_no_change() {
    let mut node = Node::new();
    let mut owner = Owner::new(ops());
    owner.network.local_sources = vec!["10.2.0.0/16".parse().unwrap(), "10.1.0.0/16".parse().unwrap()];
    owner.lease = Some(Lease { ttl: 60 * SECOND, on_expiry: LeaseExpiry::Withdraw });
    assert!(node.call(Request::SetOwner(owner.clone())).unwrap().changed());
    let again = node.call(Request::SetOwner(owner)).unwrap();
    assert!(!again.changed());
    assert_eq!(again.revision, revision(1));
    let record = node.desired.owner(&ops()).unwrap();
    assert!(record.owner.network.local_sources.is_sorted());
    assert_eq!(record.lease_expires(), Some(Millis(1000 + 60_000)));
}

#[test]
fn deleting_an_owner_takes_its_services_and_frees_what_they_held() {
    let mut node = Node::new();
    node.one(upsert("a", serving(vec![vip("10.0.0.1", 80)]))).unwrap();
    node.one(upsert("b", serving(vec![vip("10.0.0.2", 80)]))).unwrap();
    let other = ServiceKey::new("k8s", "w").unwrap();
    let waits = Definition { on_contest: crate::Contest::Wait, ..serving(vec![vip("10.0.0.1", 80)]) };
    let definition = Arc::new(waits);
    node.one(Operation::UpsertService { key: other.clone(), definition, scheduler: None, expected: None }).unwrap();
    let delta = node.call(Request::DeleteOwner(ops())).unwrap();
    assert_eq!((delta.counts.removed, delta.services.len()), (2, 3));
    assert!(node.desired.service(&other).unwrap().waiting.is_empty());
    assert!(node.desired.owner(&ops()).is_none());
    assert!(!node.call(Request::DeleteOwner(ops())).unwrap().changed());
}
