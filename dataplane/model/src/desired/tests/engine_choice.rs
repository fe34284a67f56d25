//! Which engine serves, at acceptance and later.

use proptest::prelude::*;

use super::any::{definitions, lists};
use super::*;
use crate::choose::{admit, choose, nearest};
use crate::scheduler::Fallback;
use crate::service::{ClientAffinity, HealthCheck, Probe, ProxyProtocol};

fn message(result: Result<Delta, Rejection>) -> (ProblemCode, String, String) {
    let problem = result.unwrap_err().problems.remove(0);
    (problem.code, problem.field, problem.message)
}

#[test]
fn the_default_serves_where_it_can_else_the_first_that_can() {
    let mut node = Node::new();
    let delta = node.one(upsert("web", serving(vec![vip("10.0.0.1", 80)]))).unwrap();
    assert!(delta.notes.is_empty(), "{:?}", delta.notes);
    let delta = node.one(schedule("web", Algorithm::Wlc)).unwrap();
    assert_eq!(delta.notes[0].code, ProblemCode::EngineChosen);
    let service = Arc::clone(node.desired.service(&key("web")).unwrap());
    let choice = choose(node.desired.engines(), None, &service).unwrap();
    assert_eq!((choice.engine, choice.algorithm), (EngineKind::Userspace, Algorithm::Wlc));
    assert!(choice.problems[0].message.contains("scheduler WLC"), "{:?}", choice.problems);
}

#[test]
fn a_refusal_names_the_feature_and_who_has_it() {
    let mut node = Node::new();
    let proxied = Definition { proxy_protocol: ProxyProtocol::V2, ..serving(vec![]) };
    let (code, field, text) = message(node.one(upsert("web", proxied)));
    assert_eq!((code, field.as_str()), (ProblemCode::EngineLacks, "service.proxy_protocol"));
    assert!(
        text.contains("PROXY_PROTOCOL") && text.contains("ipvs (not usable here: the kernel has no ip_vs)"),
        "{text}"
    );

    let named = Definition { engine: Some(EngineKind::Nftables), idle_timeout: Some(SECOND), ..serving(vec![]) };
    let (_, field, text) = message(node.one(upsert("web", named)));
    assert_eq!(field, "service.idle_timeout");
    assert!(text.contains("engine nftables") && text.contains("userspace (usable here)"), "{text}");

    let absent = Definition { engine: Some(EngineKind::Ipvs), ..serving(vec![]) };
    let (code, field, text) = message(node.one(upsert("web", absent)));
    assert_eq!((code, field.as_str()), (ProblemCode::EngineUnusable, "service.engine"));
    assert!(text.contains("the kernel has no ip_vs"), "{text}");

    node.one(upsert("web", serving(vec![]))).unwrap();
    let (code, field, text) = message(node.one(schedule("web", Algorithm::Ovf)));
    assert_eq!((code, field.as_str()), (ProblemCode::EngineLacks, "scheduler.algorithm"));
    assert!(text.contains("OVF") && text.contains("ipvs") && text.contains("NEAREST"), "{text}");

    let check =
        HealthCheck { probe: Probe::Tcp, interval: SECOND, timeout: SECOND, rise: 1, fall: 1, remote_too: false };
    let (code, field, text) =
        message(node.one(upsert("web", Definition { health_check: Some(check), ..serving(vec![]) })));
    assert_eq!((code, field.as_str()), (ProblemCode::EngineLacks, "service.health_check"));
    assert!(text.contains("later version"), "{text}");
}

#[test]
fn fields_of_endpoints_are_blamed_as_sent() {
    let mut node = Node::new();
    node.one(upsert("web", Definition { engine: Some(EngineKind::Nftables), ..serving(vec![]) })).unwrap();
    let list = vec![endpoint("10.1.0.9", 80), endpoint("127.0.0.1", 80)];
    let (_, field, _) = message(node.one(set("web", list.clone())));
    assert_eq!(field, "endpoints[1].address");
    let apply = vec![upsert("b", Definition { engine: Some(EngineKind::Nftables), ..serving(vec![]) }), set("b", list)];
    assert_eq!(message(node.apply(Mode::Atomic, apply)).1, "operations[1].set_endpoints.endpoints[1].address");
}

#[test]
fn the_nearest_runs_where_that_is_allowed() {
    let mut node = Node::new();
    node.one(upsert("web", Definition { engine: Some(EngineKind::Nftables), ..serving(vec![]) })).unwrap();
    let (_, _, text) = message(node.one(schedule("web", Algorithm::Mh)));
    assert!(text.contains("engine nftables"), "{text}");
    let scheduler = Scheduler { algorithm: Algorithm::Mh, fallback: Fallback::Nearest, ..Scheduler::default() };
    let delta = node.one(Operation::SetScheduler { key: key("web"), scheduler, expected: None }).unwrap();
    assert_eq!(delta.notes[0].code, ProblemCode::SchedulerReplaced);
    let choice = choose(node.desired.engines(), None, node.desired.service(&key("web")).unwrap()).unwrap();
    assert_eq!(choice.algorithm, Algorithm::Sh);
}

#[test]
fn what_is_lost_later_takes_no_service_down_and_refuses_no_other_change() {
    let mut node = Node::new();
    let prefixed = ClientAffinity { timeout: SECOND, prefix_v4: 24, prefix_v6: 128 };
    node.one(upsert("web", Definition { client_affinity: Some(prefixed), ..serving(vec![vip("10.0.0.1", 80)]) }))
        .unwrap();
    let mut lost = engines();
    lost.abilities.get_mut(&EngineKind::Nftables).unwrap().usable = false;
    lost.abilities.get_mut(&EngineKind::Nftables).unwrap().reason = "the table was refused".into();
    node.desired.set_engines(lost);
    let choice = choose(node.desired.engines(), None, node.desired.service(&key("web")).unwrap()).unwrap();
    assert_eq!(choice.engine, EngineKind::Userspace);
    assert_eq!(choice.lacks, BTreeSet::from([Feature::AffinityPrefix]));
    assert!(choice.problems.iter().all(|p| p.code == ProblemCode::EngineReplaced), "{:?}", choice.problems);
    node.one(set("web", vec![endpoint("10.1.0.1", 80)])).unwrap();
    let sctp = Definition { protocol: crate::Protocol::Sctp, ..serving(vec![]) };
    assert!(node.one(upsert("web", sctp)).is_err(), "asking for more is refused");
}

#[test]
fn weights_are_a_feature_only_where_they_differ() {
    let mut node = Node::new();
    let mut plain = engines();
    for ability in plain.abilities.values_mut() {
        ability.features.remove(&Feature::Weight);
    }
    node.desired.set_engines(plain);
    node.one(upsert("web", serving(vec![]))).unwrap();
    let weighing = |address: &str, weight| Endpoint { weight, ..endpoint(address, 80) };
    node.one(set("web", vec![weighing("10.1.0.1", 3), weighing("10.1.0.2", 3), weighing("10.1.0.3", 0)])).unwrap();
    let (_, field, _) = message(node.one(set("web", vec![weighing("10.1.0.1", 1), weighing("10.1.0.2", 3)])));
    assert_eq!(field, "endpoints[1].weight");
}

#[test]
fn a_default_engine_that_takes_something_away_is_refused_with_the_list() {
    let mut node = Node::new();
    let default =
        |engine, allow_degraded| Request::SetDefaultEngine { engine, allow_degraded, drain: crate::Drain::default() };
    node.one(upsert("web", serving(vec![]))).unwrap();
    let (code, _, text) = message(node.call(default(Some(EngineKind::Ipvs), true)));
    assert_eq!(code, ProblemCode::EngineUnusable, "{text}");

    // Without the configured order to fall back to, a service would lose what only the old default has.
    let mut strict = engines();
    strict.order = vec![EngineKind::Nftables];
    node.desired.set_engines(strict.clone());
    let prefixed = ClientAffinity { timeout: SECOND, prefix_v4: 24, prefix_v6: 128 };
    node.one(upsert("web", Definition { client_affinity: Some(prefixed), ..serving(vec![vip("10.0.0.1", 80)]) }))
        .unwrap();
    let delta = node.call(default(Some(EngineKind::Userspace), false)).unwrap();
    assert!(delta.changed() && delta.refused.is_empty(), "nftables is in the order and takes that service");
    node.call(default(None, false)).unwrap();

    strict.order = vec![EngineKind::Userspace];
    node.desired.set_engines(strict);
    node.call(default(Some(EngineKind::Nftables), false)).unwrap();
    let (code, field, text) = message(node.call(default(None, false)));
    assert_eq!((code, field.as_str()), (ProblemCode::EngineLacks, "engine"));
    assert!(text.contains("1 services"), "{text}");
    let delta = node.call(default(None, true)).unwrap();
    assert_eq!((delta.default_engine, delta.refused_total), (Some(None), 1));
    assert!(!node.call(default(None, false)).unwrap().changed());
}

#[test]
fn every_algorithm_has_a_nearest_on_every_engine_that_spreads_evenly() {
    for algorithm in Algorithm::ALL {
        let list = nearest(algorithm);
        assert!(!list.contains(&algorithm), "{algorithm} is not its own replacement");
        assert!(list.contains(&Algorithm::Rr) || algorithm == Algorithm::Rr);
        assert!(list.contains(&Algorithm::Random) || algorithm == Algorithm::Random);
    }
}

/// Engines with random gaps.
fn any_engines() -> impl Strategy<Value = Engines> {
    let features = prop::sample::subsequence(Feature::ALL, Feature::ALL.len() - 3..=Feature::ALL.len());
    let algorithms = prop::sample::subsequence(Algorithm::ALL[1..].to_vec(), 1..15);
    let ability = (any::<bool>(), features, algorithms).prop_map(|(usable, features, algorithms)| Ability {
        usable,
        reason: "because".into(),
        features: features.into_iter().collect(),
        algorithms: algorithms.into_iter().collect(),
    });
    let order = Just(EngineKind::ALL.to_vec()).prop_shuffle();
    (prop::collection::vec(ability, 4), order).prop_map(|(abilities, order)| Engines {
        abilities: EngineKind::ALL.into_iter().zip(abilities).collect(),
        order,
        default_reason: String::new(),
    })
}

proptest! {
    #[test]
    fn what_is_accepted_is_honoured_and_what_is_not_is_said(
        engines in any_engines(),
        definition in definitions(),
        endpoints in lists(),
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        nearest in any::<bool>(),
        named in prop::option::weighted(0.3, prop::sample::select(EngineKind::ALL.to_vec())),
        chosen in prop::option::of(prop::sample::select(EngineKind::ALL.to_vec())),
    ) {
        let fallback = if nearest { Fallback::Nearest } else { Fallback::Refused };
        let service = crate::Service {
            key: key("web"),
            definition: Arc::new(Definition { engine: named, ..definition }),
            scheduler: Scheduler { algorithm, fallback, ..Scheduler::default() },
            endpoints: endpoints.into(),
            leaving: Arc::from([]),
            revisions: crate::Revisions::default(),
            waiting: vec![],
        };
        let needs = crate::needs(&service);
        let usable = engines.abilities.values().any(|a| a.usable);
        let choice = choose(&engines, chosen, &service);
        prop_assert_eq!(choice.is_some(), usable, "a service is served wherever an engine runs");
        match admit(&engines, chosen, &service) {
            Ok(admitted) => {
                let ability = &engines.abilities[&admitted.engine];
                prop_assert!(ability.usable && needs.features.is_subset(&ability.features));
                prop_assert!(ability.algorithms.contains(&admitted.algorithm));
                let asked = algorithm == Algorithm::Default || admitted.algorithm == algorithm;
                prop_assert!(asked || (nearest && admitted.replaced()));
                prop_assert!(admitted.lacks.is_empty());
                prop_assert!(named.is_none_or(|named| named == admitted.engine));
                let wanted = named.or(chosen).unwrap_or(engines.order[0]);
                prop_assert_eq!(wanted == admitted.engine && asked, admitted.problems.is_empty());
                prop_assert_eq!(Some(admitted), choice);
            }
            Err(refusal) => {
                prop_assert!(!refusal.problems(|_| String::new()).is_empty());
                if let Some(choice) = choice {
                    prop_assert!(!choice.problems.is_empty(), "{:?}", choice);
                }
            }
        }
    }
}
