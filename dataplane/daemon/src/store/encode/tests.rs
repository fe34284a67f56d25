use std::net::IpAddr;
use std::time::Duration;

use vipd_model::command::Request;
use vipd_model::desired::Desired;
use vipd_model::feature::{Ability, Engines, Feature};
use vipd_model::limits::Limits;
use vipd_model::{
    Actor, Algorithm, Command, EndpointState, EngineKind, Fallback, Frontend, Lease, LeaseExpiry, Network, OnExpiry,
    Operation, Owner, Restart,
};

use super::*;
use crate::reconcile::Persist;
use crate::store::Store;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A service with something in every part.
fn service() -> Service {
    let drain = Drain { timeout: Some(Duration::from_secs(30)), on_expiry: OnExpiry::Reset };
    let mut gone = Endpoint::new(address("10.1.0.3"), 8080);
    gone.state = EndpointState::NotReady;
    gone.weight = 7;
    gone.target = Some("pod shop/web-1".into());
    gone.drain = Some(drain);
    gone.left_at = Some(Millis(1_700_000_000_123));
    let definition = Definition {
        frontends: vec![Frontend::vip(address("10.96.0.10"), 80), Frontend::vip(address("2001:db8::10"), 443)],
        group: "shop".into(),
        labels: [("team".to_owned(), "web".to_owned())].into(),
        drain,
        precedence: 17,
        idle_timeout: Some(Duration::from_millis(1500)),
        ..Definition::default()
    };
    let leaving = Leaving { key: EndpointKey { address: address("2001:db8::4"), port: 0 }, since: Millis(99), drain };
    Service {
        key: ServiceKey::new("k8s", "shop/web:http").unwrap(),
        definition: Arc::new(definition),
        scheduler: Scheduler { algorithm: Algorithm::Mh, hash_source_port: true, fallback: Fallback::Nearest },
        endpoints: [Endpoint::new(address("10.1.0.2"), 8080), gone].into(),
        leaving: [leaving].into(),
        revisions: Revisions {
            created: Revision(2),
            definition: Revision(5),
            endpoints: Revision(9),
            scheduler: Revision(4),
        },
        waiting: Vec::new(),
    }
}

fn owner() -> OwnerRecord {
    let network = Network {
        local_sources: vec!["10.0.0.0/8".parse().unwrap()],
        local_source_interfaces: vec!["veth*".into()],
        virtual_ranges: vec!["10.96.0.0/12".parse().unwrap()],
        source_nat_all: true,
    };
    let owner = Owner {
        lease: Some(Lease { ttl: Duration::from_secs(60), on_expiry: LeaseExpiry::Withdraw }),
        network,
        on_restart: Restart::AwaitSync,
        restore_max_age: Some(Duration::from_secs(3600)),
        node_draining: true,
        ..Owner::new(OwnerName::new("k8s").unwrap())
    };
    OwnerRecord {
        owner,
        revision: Revision(9),
        session: 3,
        session_holder: "uid 0".into(),
        last_write: Millis(1_700_000_000_000),
        last_sync: Some(Millis(1_600_000_000_000)),
    }
}

fn change(before: Option<Service>, after: Option<Service>) -> Delta {
    let key = service().key;
    let services = vec![ServiceChange { key, before: before.map(Arc::new), after: after.map(Arc::new) }];
    Delta { revision: Revision(10), services, ..Delta::default() }
}

fn batch(delta: &Delta) -> Batch {
    let mut batch = Batch::new();
    batch.add(delta);
    batch
}

fn tables(batch: &Batch) -> Vec<(Table, bool)> {
    batch.records().map(|(key, value)| (key.table, value.is_some())).collect()
}

fn records(batch: &Batch) -> Vec<StoredRecord> {
    let record =
        |(key, value): (&RecordKey, Option<&[u8]>)| StoredRecord { key: key.clone(), value: value.unwrap().into() };
    batch.records().map(record).collect()
}

#[test]
fn what_a_delta_stores_is_restored_as_it_was() {
    let mut delta = change(None, Some(service()));
    let name = OwnerName::new("k8s").unwrap();
    delta.owners = vec![OwnerChange { name, before: None, after: Some(Arc::new(owner())) }];
    delta.default_engine = Some(Some(EngineKind::Ipvs));
    let batch = batch(&delta);
    assert_eq!(batch.revision(), 10);
    let restored = restore(10, &records(&batch));
    assert_eq!(restored.findings, vec![]);
    let stored = Stored {
        revision: Revision(10),
        services: vec![service()],
        owners: vec![owner()],
        default_engine: Some(EngineKind::Ipvs),
    };
    assert_eq!(restored.stored, stored);
}

#[test]
fn only_the_parts_that_changed_are_written() {
    let before = service();
    let mut after = before.clone();
    after.endpoints = [Endpoint::new(address("10.1.0.9"), 80)].into();
    after.revisions.endpoints = Revision(10);
    assert_eq!(tables(&batch(&change(Some(before.clone()), Some(after)))), [(Table::Endpoints, true)]);

    let mut after = before.clone();
    after.scheduler = Scheduler::default();
    after.revisions.scheduler = Revision(10);
    assert_eq!(tables(&batch(&change(Some(before.clone()), Some(after)))), [(Table::Scheduler, true)]);

    // It gains a frontend that another service gives up: nothing of it is declared anew.
    let mut after = before.clone();
    after.waiting = vec![1];
    let batch = batch(&change(Some(before), Some(after)));
    assert_eq!((tables(&batch), batch.revision()), (vec![], 10));
}

#[test]
fn a_deleted_service_leaves_no_part() {
    let batch = batch(&change(Some(service()), None));
    let all = [(Table::Definition, false), (Table::Endpoints, false), (Table::Scheduler, false)];
    assert_eq!(tables(&batch), all);
}

#[test]
fn a_mark_on_an_owner_is_stored_without_a_revision() {
    let (before, mut after) = (owner(), owner());
    after.last_write = Millis(1_700_000_009_999);
    let name = before.owner.name.clone();
    let owners = vec![OwnerChange { name, before: Some(Arc::new(before)), after: Some(Arc::new(after)) }];
    let batch = batch(&Delta { revision: Revision(9), owners, ..Delta::default() });
    assert_eq!((tables(&batch), batch.revision()), (vec![(Table::Owner, true)], 0));
}

#[test]
fn of_a_service_with_a_lost_part_the_rest_is_served_and_the_part_is_named() {
    let all = records(&batch(&change(None, Some(service()))));
    let without = |table| {
        let rest: Vec<_> = all.iter().filter(|record| record.key.table != table).cloned().collect();
        let restored = restore(10, &rest);
        let lost = Finding::Lost(RecordKey::service(table, "k8s", "shop/web:http"));
        assert_eq!(restored.findings, [lost]);
        restored
    };
    let restored = without(Table::Endpoints);
    assert_eq!((restored.stored.services.len(), restored.stored.services[0].endpoints.len()), (1, 0));
    assert_eq!(
        restored.stored.owners[0].owner,
        Owner::new(OwnerName::new("k8s").unwrap()),
        "an owner for it, with defaults"
    );
    assert_eq!(without(Table::Scheduler).stored.services[0].scheduler, Scheduler::default());
    assert_eq!(without(Table::Definition).stored.services, []);
}

#[test]
fn a_record_that_is_no_message_is_named_once() {
    let mut all = records(&batch(&change(None, Some(service()))));
    let endpoints = all.iter_mut().find(|record| record.key.table == Table::Endpoints).unwrap();
    endpoints.value = vec![0xff; 9];
    let restored = restore(10, &all);
    assert_eq!(restored.stored.services.len(), 1);
    assert!(matches!(&restored.findings[..], [Finding::Unusable { key, .. }] if key.table == Table::Endpoints));
}

/// A node whose only engine can do everything.
fn engines() -> Engines {
    let ability = Ability {
        usable: true,
        features: Feature::ALL.iter().copied().collect(),
        algorithms: Algorithm::ALL.into(),
        ..Ability::default()
    };
    Engines {
        abilities: [(EngineKind::Userspace, ability)].into(),
        order: vec![EngineKind::Userspace],
        ..Engines::default()
    }
}

/// The whole way: calls change a state, the store keeps the Deltas, and a restart has the same state again.
#[test]
fn a_state_that_is_kept_call_by_call_is_the_same_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap().store;
    let mut desired = Desired::new(engines(), Limits::default());
    let key = |number: u8| ServiceKey::new("k8s", &format!("shop/web-{number}")).unwrap();
    let mut call = |at: u64, request: Request| {
        let command = Command { actor: Actor::default(), at: Millis(at), session: 0, note: String::new(), request };
        let delta = desired.dispatch(&command).unwrap();
        Persist::commit(&mut store, &[Arc::new(delta)]).unwrap();
    };
    for number in 1..20 {
        let frontends = vec![Frontend::vip(IpAddr::from([10, 96, 0, number]), 80)];
        let definition = Arc::new(Definition { frontends, ..Definition::default() });
        call(
            1,
            Request::One(Operation::UpsertService { key: key(number), definition, scheduler: None, expected: None }),
        );
        let endpoints = (1..number).map(|i| Endpoint::new(IpAddr::from([10, 1, number, i]), 8080)).collect();
        call(2, Request::One(Operation::SetEndpoints { key: key(number), endpoints, expected: None }));
    }
    let scheduler = Scheduler { algorithm: Algorithm::Rr, ..Scheduler::default() };
    call(3, Request::One(Operation::SetScheduler { key: key(4), scheduler, expected: None }));
    call(4, Request::One(Operation::DeleteService { key: key(5), expected: None }));
    // Endpoint by endpoint, as a drain begins.
    let remove = vec![EndpointKey { address: IpAddr::from([10, 1, 9, 3]), port: 8080 }];
    call(5, Request::One(Operation::PatchEndpoints { key: key(9), upsert: vec![], remove, expected: None }));

    drop(store);
    let opened = Store::open(directory.path()).unwrap();
    let restored = restore(opened.store.revision(), &opened.records);
    assert_eq!(restored.findings, vec![]);
    let (again, problems) = Desired::restore(engines(), Limits::default(), restored.stored);
    assert_eq!(problems, vec![]);
    assert_eq!(again, desired);
}
