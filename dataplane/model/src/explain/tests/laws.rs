//! Laws of Explain over arbitrary services and packets.

use proptest::prelude::*;

use super::*;
use crate::pick::{Draw, Idle, Picker};
use crate::source::SourceClass;

fn any_endpoints() -> impl Strategy<Value = Vec<Endpoint>> {
    use EndpointState::{Draining, NotReady, Ready};
    let state = prop_oneof![3 => Just(Ready), 1 => Just(Draining), 1 => Just(NotReady)];
    let any = (1u8..30, any::<bool>(), state, 0u16..5, any::<bool>(), 0u32..2);
    let endpoint = any.prop_map(|(host, v6, state, weight, local, tier)| {
        let address = if v6 { ip(&format!("fd00:1::{host:x}")) } else { IpAddr::from([10, 1, 0, host]) };
        Endpoint { state, weight, local, tier, ..Endpoint::new(address, 8080) }
    });
    prop::collection::vec(endpoint, 0..8).prop_map(|mut endpoints| {
        endpoints.sort_by_key(|e| e.key);
        endpoints.dedup_by_key(|e| e.key);
        endpoints
    })
}

fn any_frontend() -> impl Strategy<Value = Frontend> {
    let scope = prop_oneof![Just(Scope::Internal), Just(Scope::External)];
    let policy = prop_oneof![Just(Policy::All), Just(Policy::Local)];
    let ranges = prop::sample::subsequence(vec!["198.51.100.0/24", "10.0.0.0/8", "fd00::/16", "192.0.2.0/28"], 0..3);
    let at = prop::sample::select(vec![0u8, 1, 2, 3]);
    (at, scope, policy, ranges).prop_map(|(at, scope, policy, ranges)| {
        let base = match at {
            0 => Frontend::vip(ip("10.96.0.10"), 80),
            1 => Frontend::vip(ip("fd00:96::10"), 80),
            2 => Frontend::vip(ip("203.0.113.5"), 80),
            _ => node_port(80),
        };
        Frontend { scope, policy, source_ranges: ranges.into_iter().map(net).collect(), ..base }
    })
}

prop_compose! {
    fn any_node()(
        frontends in prop::collection::vec(any_frontend(), 0..4),
        endpoints in any_endpoints(),
        algorithm in prop::sample::select(Algorithm::ALL.as_slice()),
        engine in prop::sample::select(EngineKind::ALL.as_slice()),
        hash_source_port: bool,
        record in prop::option::of(0usize..8),
        source_nat_all: bool,
    ) -> Node {
        // Of two frontends at one place the second would be another's: keep the first.
        let mut at = std::collections::BTreeSet::new();
        let frontends = frontends.into_iter().filter(|f| at.insert(f.at.clone())).collect();
        let mut service = service(frontends, endpoints);
        service.scheduler = Scheduler { algorithm, hash_source_port, ..Scheduler::default() };
        let key = record.and_then(|index| service.endpoints.get(index)).map(|e| e.key);
        let affinity = ClientAffinity { timeout: Duration::from_secs(9), prefix_v4: 32, prefix_v6: 128 };
        Arc::make_mut(&mut service.definition).client_affinity = key.map(|_| affinity);
        let mut node = Node::new(vec![served(service, engine)]);
        node.network.source_nat_all = source_nat_all;
        for client in ["198.51.100.7", "10.244.0.9", "fd00:7::7"] {
            node.affinity.extend(key.map(|key| (ip(client), key)));
        }
        node
    }
}

fn any_packet() -> impl Strategy<Value = Packet<'static>> {
    let v4 = (
        prop::sample::select(vec!["198.51.100.7", "10.244.0.9", "192.0.2.10", "203.0.113.99", "10.1.0.3"]),
        prop::sample::select(vec!["10.96.0.10", "203.0.113.5", "192.0.2.10", "127.0.0.1", "10.96.9.9"]),
    );
    let v6 = (
        prop::sample::select(vec!["fd00:7::7", "2001:db8::1", "fd00:244::9", "fd00:1::3"]),
        prop::sample::select(vec!["fd00:96::10", "fd00::10", "::1", "fd00:96::99"]),
    );
    let arrival = prop::sample::select(vec![Arrival::Interface("eth0"), Arrival::Interface("veth1"), Arrival::Node]);
    let port = prop_oneof![4 => Just(80u16), 1 => Just(81)];
    let protocol = prop_oneof![5 => Just(Protocol::Tcp), 1 => Just(Protocol::Udp)];
    (prop_oneof![v4, v6], arrival, port, protocol, prop::option::of(1u16..)).prop_map(
        |((source, destination), arrival, destination_port, protocol, source_port)| Packet {
            source: ip(source),
            source_port,
            destination: ip(destination),
            destination_port,
            protocol,
            arrival,
        },
    )
}

/// The frontend that a packet is for, by the rules of API.md read anew.
fn frontend_of<'a>(node: &'a Node, packet: &Packet<'_>) -> Option<&'a Frontend> {
    let frontends = &node.services[0].service.definition.frontends;
    let on_node = packet.destination.is_loopback() || node.is_node_address(packet.destination);
    let fits = |f: &&Frontend| packet.protocol == Protocol::Tcp && packet.destination_port == f.ports.first;
    let vip = frontends.iter().filter(fits).find(|f| f.at == At::Address(packet.destination));
    vip.or_else(|| frontends.iter().filter(fits).find(|f| matches!(f.at, At::NodePort(_)) && on_node))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn probabilities_sum_to_one_exactly_if_forwarded(node in any_node(), packet in any_packet()) {
        let told = explain(&node, &packet);
        let sum: f64 = told.candidates.iter().map(|c| c.probability).sum();
        let expected = if told.verdict == Verdict::Forwarded { 1.0 } else { 0.0 };
        prop_assert!((sum - expected).abs() < 1e-9, "{told:?}");
        prop_assert_eq!(told.source_nat.is_some(), told.verdict == Verdict::Forwarded);
        prop_assert!(told.candidates.iter().filter(|c| c.pinned).count() <= 1);
    }

    #[test]
    fn an_endpoint_has_a_probability_or_a_reason(node in any_node(), packet in any_packet()) {
        for candidate in explain(&node, &packet).candidates {
            let refusal = candidate.probability == 0.0;
            prop_assert_eq!(candidate.why_not.is_some(), refusal, "{:?}", candidate);
            prop_assert!(!candidate.pinned || candidate.probability == 1.0);
        }
    }

    /// A denied source is dropped whatever else; and nobody is denied at a frontend without ranges.
    #[test]
    fn source_ranges_come_before_any_other_decision(node in any_node(), packet in any_packet()) {
        let told = explain(&node, &packet);
        let Some(frontend) = frontend_of(&node, &packet) else {
            prop_assert!(told.held.is_none());
            return Ok(());
        };
        prop_assert!(told.held.is_some());
        let ranges = &frontend.source_ranges;
        if !ranges.is_empty() && !ranges.iter().any(|range| range.contains(&packet.source)) {
            prop_assert_eq!(told.verdict, Verdict::Dropped);
            prop_assert!(told.candidates.is_empty());
        } else {
            prop_assert_eq!(told.candidates.len(), node.services[0].service.endpoints.len());
        }
    }

    /// What is for no frontend is refused in a virtual range and left alone elsewhere.
    #[test]
    fn a_packet_is_ours_by_a_frontend_or_a_virtual_range(node in any_node(), packet in any_packet()) {
        let told = explain(&node, &packet);
        let in_range = node.network.virtual_ranges.iter().any(|range| range.contains(&packet.destination));
        match frontend_of(&node, &packet) {
            Some(_) => prop_assert!(told.verdict != Verdict::NotOurs),
            None if in_range => prop_assert_eq!(told.verdict, Verdict::Rejected),
            None => prop_assert_eq!(told.verdict, Verdict::NotOurs),
        }
    }

    /// An admitted packet is refused if and only if the class of its source has no member.
    #[test]
    fn refused_exactly_if_the_class_has_no_member(node in any_node(), packet in any_packet()) {
        let told = explain(&node, &packet);
        let Some(frontend) = frontend_of(&node, &packet) else { return Ok(()) };
        if !frontend.source_ranges.is_empty() {
            return Ok(());
        }
        let family = Family::of(packet.destination);
        let class = SourceClass::of(packet.source, packet.arrival, &node.network, |a| node.is_node_address(a));
        let local_only = frontend.policy == Policy::Local && !(frontend.scope == Scope::External && class.is_inside());
        let takes = |e: &Endpoint| e.state != EndpointState::NotReady && e.weight > 0 && e.key.family() == family;
        let endpoints = &node.services[0].service.endpoints;
        let served = endpoints.iter().any(|e| takes(e) && (e.local || !local_only));
        prop_assert_eq!(told.verdict == Verdict::Forwarded, served);
        if !served {
            let elsewhere = endpoints.iter().any(takes);
            prop_assert_eq!(told.verdict, if elsewhere { Verdict::Dropped } else { Verdict::Rejected });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// What Explain says of a relayed service is what select and pick do: who is never picked has probability 0, and
    /// the others come as often as it says.
    #[test]
    fn explain_agrees_with_select_and_pick(mut node in any_node(), packet in any_packet()) {
        const FLOWS: u32 = 4_096;
        node.affinity.clear();
        Arc::make_mut(&mut node.services[0]).engine = EngineKind::Userspace;
        let told = explain(&node, &packet);
        let (Verdict::Forwarded, Some(held)) = (told.verdict, &told.held) else { return Ok(()) };
        let family = Family::of(packet.destination);
        let class = SourceClass::of(packet.source, packet.arrival, &node.network, |a| node.is_node_address(a));
        let selection = held.selected.frontend(held.frontend, family).unwrap();
        let set = held.selected.set(selection.serve(class), family).unwrap();
        let picker = Picker::of(&held.selected, set);
        let mut counts = vec![0u32; told.candidates.len()];
        for n in 0..FLOWS {
            // Where the port is not known it is any, and 4,096 of them are all alike to a hash.
            let port = packet.source_port.unwrap_or(1_024 + (n as u16).wrapping_mul(15));
            let draw = Draw {
                turn: n.into(),
                random: u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                source: std::net::SocketAddr::new(packet.source, port),
                destination: packet.destination,
                load: &Idle,
            };
            counts[set.members[picker.pick(&draw).unwrap()] as usize] += 1;
        }
        let by_port = packet.source_port.is_none() && held.selected.service.scheduler.hash_source_port;
        for (candidate, count) in told.candidates.iter().zip(counts) {
            let share = f64::from(count) / f64::from(FLOWS);
            if candidate.probability == 0.0 {
                prop_assert_eq!(count, 0, "{:?}", candidate);
            }
            let one_client = held.selected.algorithm.is_hash() && !candidate.pinned && !by_port;
            if !one_client {
                prop_assert!((share - candidate.probability).abs() < 0.04, "{share} of {candidate:?}");
            }
        }
    }
}
