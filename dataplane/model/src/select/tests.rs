//! Selection against a reference written from KUBE-PROXY-SEMANTICS §2.3 and §2.4, and its laws.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::frontend::{At, NodePort};
use crate::scheduler::Scheduler;
use crate::service::{Definition, Revisions};
use crate::{PortRange, ServiceKey};

fn endpoint(index: u16, v6: bool, state: EndpointState, weight: u16, local: bool, tier: u32) -> Endpoint {
    let address = match v6 {
        false => IpAddr::V4(Ipv4Addr::from_bits(0x0a01_0000 + u32::from(index))),
        true => IpAddr::V6(Ipv6Addr::from_bits((0xfd << 120) + u128::from(index))),
    };
    Endpoint { state, weight, local, tier, ..Endpoint::new(address, 8080) }
}

fn service(frontends: Vec<Frontend>, mut endpoints: Vec<Endpoint>) -> Arc<Service> {
    endpoints.sort_by_key(|e| e.key);
    Arc::new(Service {
        key: ServiceKey::new("ops", "web").unwrap(),
        definition: Arc::new(Definition { frontends, ..Definition::default() }),
        scheduler: Scheduler::default(),
        endpoints: endpoints.into(),
        leaving: Arc::new([]),
        revisions: Revisions::default(),
        waiting: Vec::new(),
    })
}

fn frontend(scope: Scope, policy: Policy) -> Frontend {
    let at = At::NodePort(NodePort { v4: true, v6: true, addresses: Vec::new() });
    Frontend { at, ports: PortRange::one(30080), scope, policy, ..Frontend::vip(IpAddr::from([10, 0, 0, 1]), 1) }
}

fn every_frontend() -> Vec<Frontend> {
    let scopes = [Scope::Internal, Scope::External];
    scopes.into_iter().flat_map(|s| [Policy::All, Policy::Local].map(|p| frontend(s, p))).collect()
}

fn selected(service: &Arc<Service>) -> Selected {
    select(service, EngineKind::Userspace, Algorithm::Rr)
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    use EndpointState::{Draining, NotReady, Ready};
    let state = prop_oneof![Just(Ready), Just(Draining), Just(NotReady)];
    (0u16..40, any::<bool>(), state, prop_oneof![Just(0u16), Just(1), 2u16..9], any::<bool>(), 0u32..3)
        .prop_map(|(index, v6, state, weight, local, tier)| endpoint(index, v6, state, weight, local, tier))
}

fn any_endpoints() -> impl Strategy<Value = Vec<Endpoint>> {
    prop::collection::vec(any_endpoint(), 0..9).prop_map(|mut endpoints| {
        endpoints.sort_by_key(|e| e.key);
        endpoints.dedup_by_key(|e| e.key);
        endpoints
    })
}

/// The set by its definition: (indices, draining).
fn reference(service: &Service, family: Family, local: bool) -> (Vec<u32>, bool) {
    let with = |state: EndpointState, tier: Option<u32>| -> Vec<u32> {
        let mut found = Vec::new();
        for (index, e) in service.endpoints.iter().enumerate() {
            let in_tier = tier.is_none_or(|tier| e.tier == tier);
            if e.state == state && e.weight > 0 && e.key.family() == family && (e.local || !local) && in_tier {
                found.push(u32::try_from(index).unwrap());
            }
        }
        found
    };
    let tiers: Vec<Option<u32>> = if local { vec![None] } else { (0..3).map(Some).collect() };
    for tier in tiers {
        let ready = with(EndpointState::Ready, tier);
        if !ready.is_empty() {
            return (ready, false);
        }
    }
    let draining = with(EndpointState::Draining, None);
    let is_draining = !draining.is_empty();
    (draining, is_draining)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn selection_is_what_the_reference_says(endpoints in any_endpoints()) {
        let service = service(every_frontend(), endpoints);
        let selected = selected(&service);
        for family in Family::ALL {
            for (local, sets) in [(false, &selected.all), (true, &selected.local)] {
                let (members, draining) = reference(&service, family, local);
                prop_assert_eq!(&sets[family as usize], &EndpointSet { members, draining });
            }
        }
    }

    /// Whoever asks is refused only if no endpoint that its policy allows could serve it.
    #[test]
    fn selection_never_leaves_a_service_without_endpoints_that_it_could_have(endpoints in any_endpoints()) {
        let service = service(every_frontend(), endpoints);
        let selected = selected(&service);
        prop_assert_eq!(selected.frontends.len(), 8);
        for at in &selected.frontends {
            let frontend = &service.definition.frontends[at.index as usize];
            for class in [SourceClass::Node, SourceClass::Local, SourceClass::Outside] {
                let must_be_local = frontend.policy == Policy::Local
                    && !(frontend.scope == Scope::External && class != SourceClass::Outside);
                let could = |local: bool| service.endpoints.iter().any(|e| {
                    e.state != EndpointState::NotReady && e.weight > 0 && e.key.family() == at.family && (e.local || !local)
                });
                let refusal = match (could(false), could(true)) {
                    (false, _) => Some(NoEndpoints::Reject),
                    (true, false) if must_be_local => Some(NoEndpoints::Drop),
                    _ => None,
                };
                let serve = at.serve(class);
                prop_assert_eq!(matches!(serve, Serve::Refuse(_)), refusal.is_some());
                if let Some(refusal) = refusal {
                    prop_assert_eq!(serve, Serve::Refuse(refusal));
                } else {
                    let set = selected.set(serve, at.family).unwrap();
                    prop_assert!(!set.members.is_empty());
                    prop_assert_eq!(serve == Serve::Local, must_be_local);
                }
            }
        }
    }

    #[test]
    fn an_endpoint_is_in_the_set_or_has_a_reason(endpoints in any_endpoints()) {
        let service = service(every_frontend(), endpoints);
        let selected = selected(&service);
        for family in Family::ALL {
            for (policy, sets) in [(Policy::All, &selected.all), (Policy::Local, &selected.local)] {
                for index in 0..u32::try_from(service.endpoints.len()).unwrap() {
                    let is_in = sets[family as usize].members.contains(&index);
                    prop_assert_eq!(is_in, why_not(&service, index, family, policy).is_none());
                }
            }
        }
    }

    #[test]
    fn the_order_in_which_endpoints_came_does_not_matter(
        (endpoints, shuffled) in any_endpoints().prop_flat_map(|e| (Just(e.clone()), Just(e).prop_shuffle()))
    ) {
        prop_assert_eq!(selected(&service(every_frontend(), endpoints)), selected(&service(every_frontend(), shuffled)));
    }
}

#[test]
fn reasons_say_what_stands_in_the_way() {
    use EndpointState::{Draining, NotReady, Ready};
    let service = service(
        vec![],
        vec![
            endpoint(1, false, Ready, 1, true, 0),
            endpoint(2, false, Ready, 1, false, 0),
            endpoint(3, false, Ready, 0, true, 0),
            endpoint(4, false, Ready, 1, true, 1),
            endpoint(5, false, Draining, 1, true, 0),
            endpoint(6, false, NotReady, 1, true, 0),
            endpoint(7, true, Ready, 1, true, 0),
        ],
    );
    let said = |policy| -> Vec<String> {
        let rule = Rule::of(&service, Family::V4, policy);
        service.endpoints.iter().map(|e| rule.why_not(e).map(|why| why.to_string()).unwrap_or_default()).collect()
    };
    let common = ["weight 0", "NOT_READY", "other family"];
    assert_eq!(
        said(Policy::All),
        ["", "", common[0], "tier 1; tier 0 has 2 READY", "DRAINING; 3 READY are usable", common[1], common[2]]
    );
    assert_eq!(
        said(Policy::Local),
        ["", "not local", common[0], "", "DRAINING; 2 READY are usable", common[1], common[2]]
    );
}

#[test]
fn with_nothing_ready_the_draining_serve_whatever_their_tier() {
    let endpoints = (0..3).map(|i| endpoint(i, false, EndpointState::Draining, 1, i == 2, i.into())).collect();
    let selected = selected(&service(vec![frontend(Scope::Internal, Policy::All)], endpoints));
    assert_eq!(selected.all[0], EndpointSet { members: vec![0, 1, 2], draining: true });
    assert_eq!(selected.local[0], EndpointSet { members: vec![2], draining: true });
    assert_eq!(selected.frontend(0, Family::V4).unwrap().outside, Serve::All);
    assert_eq!(selected.frontend(0, Family::V6).unwrap().inside, Serve::Refuse(NoEndpoints::Reject));
}

#[test]
fn a_frontend_that_waits_is_not_served() {
    let mut waiting = (*service(every_frontend(), vec![])).clone();
    waiting.waiting = vec![1, 2];
    let held: Vec<u32> = selected(&Arc::new(waiting)).frontends.iter().map(|f| f.index).collect();
    assert_eq!(held, [0, 0, 3, 3], "a node port of both families stands once for each");
}
