//! What holds whatever is called, in whatever order.

use proptest::prelude::*;

use super::any::{definitions, keys, lists, operations, requests, syncs};
use super::*;
use crate::command::Sync;
use crate::frontend::{At, PortRange};
use crate::name::OwnerName;
use crate::service::{Contest, Service};

impl Node {
    /// Calls, with what a client would have read first.
    fn random(&mut self, mut request: Request) -> Result<Delta, Rejection> {
        if let Request::Sync(sync) = &mut request {
            sync.begun = self.desired.owner(&sync.owner).map(|o| o.revision).unwrap_or_default();
        }
        self.now += 1000;
        self.call(request)
    }
}

/// Everything that must be true of a state, found the slow way.
fn check(desired: &Desired) {
    let (rebuilt, problems) = Desired::restore(engines(), Limits::default(), desired.stored());
    assert_eq!(problems, []);
    assert_eq!(rebuilt, *desired, "kept up step by step and built anew, the state must be the same");
    let services: Vec<&Service> = desired.services().map(|s| &**s).collect();
    for (service, waiting) in services.iter().zip(contest_by_brute_force(&services)) {
        assert_eq!(service.waiting, waiting, "{} waits for the wrong frontends", service.key);
        if service.definition.on_contest == Contest::Refuse {
            assert_eq!(service.waiting, [] as [u32; 0], "{} must have been refused", service.key);
        }
        assert!(service.endpoints.is_sorted_by(|a, b| a.key < b.key));
        for endpoint in service.endpoints.iter() {
            assert_eq!(endpoint.left_at.is_some(), endpoint.state != EndpointState::Ready);
            assert!(!services.iter().any(|other| would_loop(service, endpoint, other)), "{} loops", service.key);
        }
    }
    let tally = |owner: &str| desired.tally(&OwnerName::new(owner).unwrap());
    assert_eq!(tally("ops").services + tally("k8s").services, services.len());
    let endpoints: usize = services.iter().map(|s| s.endpoints.len()).sum();
    assert_eq!(tally("ops").endpoints + tally("k8s").endpoints, endpoints);
}

/// The rule of contested frontends as API.md says it: those that refuse to share are first, then by precedence, then by
/// name; without a precedence by arrival, behind the others.
fn contest_by_brute_force(services: &[&Service]) -> Vec<Vec<u32>> {
    let meet = |a: &Service, f: &Frontend, b: &Service, g: &Frontend| {
        let places = match (&f.at, &g.at) {
            (At::Address(x), At::Address(y)) => x == y,
            (At::NodePort(x), At::NodePort(y)) => (x.v4 && y.v4) || (x.v6 && y.v6),
            _ => false,
        };
        let ports = |r: PortRange| r.first..=r.last;
        places && a.definition.protocol == b.definition.protocol && ports(f.ports).any(|p| ports(g.ports).contains(&p))
    };
    let mut claims: Vec<(usize, usize)> =
        services.iter().enumerate().flat_map(|(s, x)| (0..x.definition.frontends.len()).map(move |f| (s, f))).collect();
    claims.sort_by_key(|&(s, f)| {
        let (definition, created) = (&services[s].definition, services[s].revisions.created);
        let rank = match (definition.on_contest, definition.precedence) {
            (Contest::Refuse, _) => (0, 0, created),
            (Contest::Wait, 0) => (2, 0, created),
            (Contest::Wait, precedence) => (1, precedence, Revision(0)),
        };
        (rank, services[s].key.clone(), f)
    });
    let (mut held, mut waiting) = (Vec::new(), vec![Vec::new(); services.len()]);
    for (s, f) in claims {
        let frontend = |(s, f): (usize, usize)| (services[s], &services[s].definition.frontends[f]);
        let ((a, x), mut others) = (frontend((s, f)), held.iter().filter(|&&(o, _)| o != s));
        if others.any(|other| meet(a, x, frontend(*other).0, frontend(*other).1)) {
            waiting[s].push(f as u32);
        } else {
            held.push((s, f));
        }
    }
    waiting
}

fn would_loop(service: &Service, endpoint: &Endpoint, other: &Service) -> bool {
    let to = |port: u16| {
        service.definition.protocol == other.definition.protocol
            && other
                .definition
                .frontends
                .iter()
                .any(|f| f.at == At::Address(endpoint.key.address) && f.ports.contains(port))
    };
    match endpoint.key.port {
        0 => service.definition.frontends.iter().flat_map(|f| f.ports.first..=f.ports.last).any(to),
        port => to(port),
    }
}

/// The same call, expecting no revisions.
fn unconditional(mut request: Request) -> Request {
    let operations = match &mut request {
        Request::One(operation) => std::slice::from_mut(operation),
        Request::Apply { operations, .. } => operations,
        _ => &mut [],
    };
    for operation in operations {
        if let Operation::UpsertService { expected, .. } = operation {
            *expected = None;
        }
    }
    request
}

/// What was declared, without what only this node's history decides.
fn declared(desired: &Desired) -> Vec<Service> {
    let timeless = |e: &Endpoint| Endpoint { left_at: None, ..e.clone() };
    let one = |s: &Arc<Service>| Service {
        endpoints: s.endpoints.iter().map(timeless).collect(),
        leaving: Arc::from([]),
        revisions: crate::Revisions::default(),
        ..Service::clone(s)
    };
    desired.services().map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_call_leaves_a_sound_state_and_a_refused_one_leaves_it_alone(calls in prop::collection::vec(requests(), 1..24)) {
        let mut node = Node::new();
        for request in calls {
            let before = node.desired.clone();
            match node.random(request) {
                Ok(delta) => {
                    let grown = if delta.changed() { before.revision().next() } else { before.revision() };
                    prop_assert_eq!(node.desired.revision(), grown);
                    prop_assert!(delta.changed() || delta.revision <= before.revision());
                    if !delta.changed() {
                        prop_assert_eq!(node.desired.digest(), before.digest());
                    }
                    for change in &delta.services {
                        prop_assert_eq!(before.service(&change.key), change.before.as_ref());
                        prop_assert_eq!(node.desired.service(&change.key), change.after.as_ref());
                        prop_assert_ne!(&change.before, &change.after);
                    }
                    check(&node.desired);
                    let mut back = node.desired.clone();
                    back.revert([&delta], before.mark());
                    prop_assert_eq!(&back, &before, "taken back whole");
                }
                Err(rejection) => {
                    prop_assert!(!rejection.problems.is_empty());
                    prop_assert_eq!(&node.desired, &before);
                }
            }
        }
    }

    #[test]
    fn repeating_is_no_change(calls in prop::collection::vec(requests(), 0..12), last in requests()) {
        let mut node = Node::new();
        for request in calls {
            let _ = node.random(request);
        }
        let last = unconditional(last);
        // What was refused in part may be accepted in the second round: what was in its way has gone in the first.
        let first = node.random(last.clone()).ok().filter(|delta| delta.refused.is_empty());
        if let Some(first) = first {
            let before = node.desired.stored();
            let again = node.random(last).expect("accepted once, accepted again");
            prop_assert!(!again.changed() && again.services.is_empty(), "{:?}", again);
            prop_assert!(again.revision <= node.desired.revision());
            prop_assert_eq!(node.desired.stored().services, before.services);
            // Its caller must wait for what the first call changed, less what only gained or lost a frontend by it.
            let asked = |c: &crate::ServiceChange| match (&c.before, &c.after) {
                (Some(before), Some(after)) => before.revisions != after.revisions,
                (_, after) => after.is_some(),
            };
            prop_assert!(first.services.iter().filter(|c| asked(c)).all(|c| again.unchanged.contains(&c.key)));
        }
    }

    #[test]
    fn the_order_of_calls_does_not_matter(
        world in prop::collection::btree_map(keys(), (definitions(), lists()), 1..8),
        shuffle in prop::collection::vec(any::<prop::sample::Index>(), 8),
    ) {
        let mut calls: Vec<Operation> = Vec::new();
        for (key, (definition, endpoints)) in world {
            // Precedence 0 is the order of arrival, and REFUSE is first come, first served, by their meaning.
            let precedence = definition.precedence + 1;
            let waits = Definition { on_contest: Contest::Wait, precedence, ..definition };
            let mut alone = Node::new();
            let write = Operation::UpsertService { key: key.clone(), definition: waits.into(), scheduler: None, expected: None };
            let set = Operation::SetEndpoints { key, endpoints, expected: None };
            let both = vec![write, set];
            let mut all = calls.clone();
            all.extend(both.clone());
            if alone.apply(Mode::Atomic, all).is_ok() {
                calls.extend(both);
            }
        }
        let mut straight = Node::new();
        let mut mixed = Node::new();
        let mut pairs: Vec<&[Operation]> = calls.chunks(2).collect();
        for pair in &pairs {
            straight.apply(Mode::Atomic, pair.to_vec()).unwrap();
        }
        for index in shuffle.iter().take(pairs.len()) {
            let at = index.index(pairs.len());
            pairs.rotate_left(at);
            pairs.swap(0, at / 2);
        }
        for pair in pairs {
            mixed.apply(Mode::Atomic, pair.iter().rev().cloned().collect()).unwrap();
        }
        prop_assert_eq!(declared(&straight.desired), declared(&mixed.desired));
        prop_assert_eq!(straight.desired.digest(), mixed.desired.digest());
    }

    #[test]
    fn the_order_of_endpoints_does_not_matter((sent, mixed) in lists().prop_flat_map(|l| (Just(l.clone()), Just(l).prop_shuffle()))) {
        let port = |list: Vec<Endpoint>| list.into_iter().filter(|e| e.key.port > 0).collect::<Vec<_>>();
        let [straight, other] = [sent, mixed].map(|list| {
            let mut node = Node::new();
            node.one(upsert("web", serving(vec![]))).unwrap();
            node.one(set("web", port(list))).unwrap();
            node.desired
        });
        prop_assert_eq!(straight, other);
    }

    #[test]
    fn a_sync_is_an_apply_of_the_same(calls in prop::collection::vec(operations(), 0..12), sync in syncs()) {
        let mut synced = Node::new();
        for operation in calls {
            let _ = synced.one(operation);
        }
        let mut applied = Node { desired: synced.desired.clone(), now: synced.now };
        let mut operations: Vec<Operation> = Vec::new();
        for declare in &sync.declares {
            let (key, definition) = (declare.key.clone(), Arc::clone(&declare.definition));
            operations.push(Operation::UpsertService { key: key.clone(), definition, scheduler: None, expected: None });
            operations.push(Operation::SetEndpoints { key, endpoints: declare.endpoints.clone(), expected: None });
        }
        let unsent = synced.desired.services_of(&sync.owner).map(|s| s.key.clone());
        let unsent = unsent.filter(|key| !sync.declares.iter().any(|d| d.key == *key));
        operations.extend(unsent.map(|key| Operation::DeleteService { key, expected: None }));
        synced.now += 1000;
        let whole = Request::Sync(Box::new(Sync { all_or_nothing: true, ..sync }));
        let one = synced.random(whole);
        applied.now = synced.now;
        let other = applied.apply(Mode::Atomic, operations);
        prop_assert_eq!(one.is_ok(), other.is_ok(), "{:?} {:?}", one, other);
        prop_assert_eq!(synced.desired.stored().services, applied.desired.stored().services);
        prop_assert_eq!(synced.desired.digest(), applied.desired.digest());
    }
}
