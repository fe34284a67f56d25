//! Commands at random, over a world so small that everything meets everything.

use proptest::prelude::*;

use super::*;
use crate::command::{Declare, Sync};
use crate::endpoint::{Drain, OnExpiry};
use crate::frontend::{At, NodePort, PortRange};
use crate::name::OwnerName;
use crate::owner::Owner;
use crate::service::{Contest, Protocol};

pub(super) fn keys() -> impl Strategy<Value = ServiceKey> {
    (0..2usize, 0..4usize)
        .prop_map(|(owner, name)| ServiceKey::new(["k8s", "ops"][owner], ["a", "b", "c", "d"][name]).unwrap())
}

/// VIPs and endpoints share addresses, so that loops happen.
fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![4 => Just("10.0.0.1"), 2 => Just("10.0.0.2"), 1 => Just("10.0.0.3"), 1 => Just("fd00::1")].prop_map(ip)
}

fn frontends() -> impl Strategy<Value = Frontend> {
    let at = prop_oneof![
        5 => addresses().prop_map(At::Address),
        1 => (1..4u8).prop_map(|f| At::NodePort(NodePort { v4: f & 1 > 0, v6: f & 2 > 0, addresses: vec![] })),
    ];
    (at, 80..84u16, prop_oneof![6 => Just(0u16), 1 => 1..5u16]).prop_map(|(at, first, width)| {
        let ports = PortRange { first, last: first + width };
        Frontend { at, ports, ..vip("10.0.0.1", first) }
    })
}

pub(super) fn definitions() -> impl Strategy<Value = Definition> {
    let contest = prop_oneof![Just(Contest::Refuse), Just(Contest::Wait)];
    let protocol = prop_oneof![5 => Just(Protocol::Tcp), 1 => Just(Protocol::Udp)];
    let frontends = prop::collection::vec(frontends(), 0..3);
    let drain = prop_oneof![Just(None), Just(Some(60 * SECOND))]
        .prop_map(|timeout| Drain { timeout, on_expiry: OnExpiry::default() });
    (frontends, contest, 0..4u64, protocol, drain).prop_map(|(frontends, on_contest, precedence, protocol, drain)| {
        Definition { frontends, on_contest, precedence, protocol, drain, ..Definition::default() }
    })
}

fn endpoints() -> impl Strategy<Value = Endpoint> {
    let state = prop_oneof![Just(EndpointState::Ready), Just(EndpointState::Draining), Just(EndpointState::NotReady)];
    let address = prop_oneof![3 => (1..5u8).prop_map(|i| ip(&format!("10.1.0.{i}"))), 1 => addresses()];
    (address, prop_oneof![5 => 80..84u16, 1 => Just(0)], 0..3u16, state, any::<bool>()).prop_map(
        |(address, port, weight, state, local)| Endpoint { weight, state, local, ..Endpoint::new(address, port) },
    )
}

pub(super) fn lists() -> impl Strategy<Value = Vec<Endpoint>> {
    prop::collection::vec(endpoints(), 0..5)
}

pub(super) fn operations() -> impl Strategy<Value = Operation> {
    let scheduler = (0..5usize).prop_map(|i| Scheduler { algorithm: Algorithm::ALL[i], ..Scheduler::default() });
    let expected = prop_oneof![9 => Just(None), 1 => (0..4u64).prop_map(|r| Some(Revision(r)))];
    let upsert = (keys(), definitions(), prop::option::of(scheduler.clone()), expected).prop_map(
        |(key, definition, scheduler, expected)| Operation::UpsertService {
            key,
            definition: Arc::new(definition),
            scheduler,
            expected,
        },
    );
    let set = (keys(), lists()).prop_map(|(key, endpoints)| Operation::SetEndpoints { key, endpoints, expected: None });
    let patch = (keys(), lists(), lists()).prop_map(|(key, upsert, remove)| {
        let remove = remove.into_iter().map(|e| e.key).collect();
        Operation::PatchEndpoints { key, upsert, remove, expected: None }
    });
    let schedule =
        (keys(), scheduler).prop_map(|(key, scheduler)| Operation::SetScheduler { key, scheduler, expected: None });
    let delete = keys().prop_map(|key| Operation::DeleteService { key, expected: None });
    prop_oneof![8 => upsert, 4 => set, 2 => patch, 1 => schedule, 2 => delete]
}

/// A whole state for the owner `ops`; the caller fills in `begun`.
pub(super) fn syncs() -> impl Strategy<Value = Sync> {
    let declare = (0..4usize, definitions(), lists());
    (prop::collection::vec(declare, 0..5), any::<bool>()).prop_map(|(declares, all_or_nothing)| {
        let declares: Vec<_> = (0..)
            .zip(declares)
            .map(|(index, (name, definition, endpoints))| {
                let (key, definition) = (key(["a", "b", "c", "d"][name]), Arc::new(definition));
                Declare { index, key, definition, scheduler: None, endpoints }
            })
            .collect();
        Sync {
            owner: OwnerName::new("ops").unwrap(),
            take_over: false,
            holder: String::new(),
            ticket: 1,
            begun: Revision::default(),
            settings: None,
            allow_large_removal: true,
            all_or_nothing,
            declared: declares.len() as u64,
            declares,
            unconverted: vec![],
        }
    })
}

pub(super) fn requests() -> impl Strategy<Value = Request> {
    let mode = prop_oneof![Just(Mode::Atomic), Just(Mode::Each)];
    let apply = (prop::collection::vec(operations(), 0..6), mode)
        .prop_map(|(operations, mode)| Request::Apply { operations, mode });
    let ops = OwnerName::new("ops").unwrap();
    let owner = any::<bool>().prop_map({
        let ops = ops.clone();
        move |node_draining| Request::SetOwner(Owner { node_draining, ..Owner::new(ops.clone()) })
    });
    prop_oneof![
        8 => operations().prop_map(Request::One),
        6 => apply,
        3 => syncs().prop_map(|sync| Request::Sync(Box::new(sync))),
        1 => owner,
        1 => Just(Request::DeleteOwner(ops)),
    ]
}
