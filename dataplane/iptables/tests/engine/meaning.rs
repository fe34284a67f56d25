//! The meaning of each field, by packets: node ports, ranges, weights, turns, affinity, sources, policies, source NAT.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use vipd_engine::Node;
use vipd_model::frontend::{Policy, Scope, SourceNat};
use vipd_model::service::ClientAffinity;
use vipd_model::{Algorithm, At, Endpoint, EndpointState, Frontend, NodePort, PortRange, Protocol};
use vipd_netlink::testing::run;

use crate::kit::*;
use crate::lab::*;

const TCP: Protocol = Protocol::Tcp;
const UDP: Protocol = Protocol::Udp;

fn tally(fates: &[Fate]) -> BTreeMap<SocketAddr, usize> {
    let mut tally = BTreeMap::new();
    for fate in fates {
        *tally.entry(fate.by().unwrap_or_else(|| panic!("{fates:?}"))).or_default() += 1;
    }
    tally
}

#[test]
fn a_node_port_is_on_every_address_of_the_node_but_loopback() {
    on_both(|backend| {
        let lab = Lab::new();
        run("ip", &["addr", "add", "198.51.100.7/32", "dev", "lo"]);
        let mut runner = started(backend, node());
        let only_one = At::NodePort(NodePort { v4: true, v6: false, addresses: vec!["10.1.0.0/24".parse().unwrap()] });
        let only_one = Frontend { at: only_one, ..Frontend::vip(ip("10.96.0.1"), 30081) };
        put(
            &mut runner,
            &[
                &spec("web", TCP).node_port(30080).to(&[11, 12]),
                &spec("dns", UDP).node_port(30080).to(&[11]),
                &spec("one", TCP).frontend(only_one).to(&[13]),
            ],
        );
        settled(&mut runner);
        for address in [Lab::NODE_V4, Lab::NODE_V6, "10.2.0.1", "198.51.100.7"] {
            let to = at(address, 30080);
            let fates = [lab.client.connect(to), lab.client.ask(to), connect(to), ask(to)];
            assert!(fates.iter().all(|fate| fate.by().is_some()), "{to}: {fates:?}");
        }
        assert_eq!(connect(at("127.0.0.1", 30080)), Fate::Refused, "nobody listens on loopback");
        assert_eq!(lab.client.connect(at(Lab::NODE_V4, 30081)).by(), Some(at("10.2.0.13", 8080)));
        assert_eq!(lab.client.connect(at("10.2.0.1", 30081)), Fate::Refused, "not selected, and nobody listens");
        assert_eq!(lab.client.connect(at(Lab::NODE_V6, 30081)), Fate::Refused, "not its family");
    });
}

#[test]
fn a_vip_comes_before_a_node_port_of_the_same_address_and_port() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let own = At::NodePort(NodePort { v4: true, v6: false, addresses: vec!["10.1.0.0/24".parse().unwrap()] });
        let own = Frontend { at: own, ..Frontend::vip(ip("10.96.0.1"), 30080) };
        let by_port = spec("port", TCP).node_port(30080).to(&[11]);
        let by_address = spec("address", TCP).frontend(own).to(&[12]);
        let vip = spec("vip", TCP).vip(Lab::NODE_V4, 30080).to(&[13]);
        let to = at(Lab::NODE_V4, 30080);
        put(&mut runner, &[&by_port]);
        assert_eq!(lab.client.connect(to).by(), Some(at("10.2.0.11", 8080)));
        put(&mut runner, &[&by_address]);
        assert_eq!(lab.client.connect(to).by(), Some(at("10.2.0.12", 8080)));
        put(&mut runner, &[&vip]);
        assert_eq!(lab.client.connect(to).by(), Some(at("10.2.0.13", 8080)));
        settled(&mut runner);
        remove(&mut runner, &[&vip, &by_address]);
        assert_eq!(lab.client.connect(to).by(), Some(at("10.2.0.11", 8080)));
        settled(&mut runner);
    });
}

#[test]
fn a_range_of_ports_keeps_the_port() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        for protocol in [TCP, UDP] {
            let range = PortRange { first: 5000, last: 5002 };
            let web = spec(&format!("{protocol}"), protocol)
                .frontend(Frontend { ports: range, ..Frontend::vip(ip("10.96.0.1"), 5000) })
                .frontend(Frontend { ports: range, ..Frontend::vip(ip("fd96::1"), 5000) })
                .with(|s| s.endpoints = vec![Endpoint::new(ip("10.2.0.11"), 0), Endpoint::new(ip("fd02::11"), 0)]);
            put(&mut runner, &[&web]);
        }
        settled(&mut runner);
        for port in 5000..=5002 {
            assert_eq!(lab.client.connect(at("10.96.0.1", port)).by(), Some(at("10.2.0.11", port)));
            assert_eq!(lab.client.connect(at("fd96::1", port)).by(), Some(at("fd02::11", port)));
            assert_eq!(lab.client.ask(at("10.96.0.1", port)).by(), Some(at("10.2.0.11", port)));
        }
        assert_eq!(lab.client.connect(at("10.96.0.1", 5003)).by(), None, "behind the range");
    });
}

#[test]
fn weights_are_shares_and_turns_are_turns() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let weighted = |name: &str, algorithm| {
            spec(name, TCP).to(&[11, 12, 13]).by(algorithm).with(|s| {
                for (endpoint, weight) in s.endpoints.iter_mut().zip([1, 2, 0, 1, 2, 0]) {
                    endpoint.weight = weight;
                }
            })
        };
        put(
            &mut runner,
            &[
                &weighted("chance", Algorithm::Random).vip("10.96.0.1", 80),
                &weighted("turns", Algorithm::Rr).vip("10.96.0.2", 80),
                &spec("even", TCP).to(&[11, 12, 13]).by(Algorithm::Rr).vip("10.96.0.3", 80),
            ],
        );
        settled(&mut runner);
        let by_chance = tally(&lab.client.connect_many(300, at("10.96.0.1", 80)));
        assert_eq!(by_chance.len(), 2, "weight 0 takes nothing: {by_chance:?}");
        // 300 picks at 1/3: 100 expected, standard deviation 8.2; six of them.
        assert!(by_chance[&at("10.2.0.11", 8080)].abs_diff(100) < 50, "{by_chance:?}");
        let in_turn = tally(&lab.client.connect_many(30, at("10.96.0.2", 80)));
        assert_eq!(in_turn.values().copied().collect::<Vec<_>>(), [10, 20], "{in_turn:?}");
        let even = lab.client.connect_many(12, at("10.96.0.3", 80));
        for round in even.chunks(3) {
            assert_eq!(tally(round).len(), 3, "{even:?}");
        }
    });
}

#[test]
fn an_affine_client_stays_and_never_at_a_dead_endpoint() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let affinity = ClientAffinity { timeout: Duration::from_secs(2), prefix_v4: 32, prefix_v6: 128 };
        let affine = |hosts: &[u8]| {
            let web = spec("web", TCP).vip("10.96.0.1", 80).vip("10.96.0.2", 81).vip("fd96::1", 80).to(hosts);
            web.with(|s| s.definition.client_affinity = Some(affinity))
        };
        put(&mut runner, &[&affine(&[11, 12, 13])]);
        settled(&mut runner);
        for to in [at("10.96.0.1", 80), at("fd96::1", 80)] {
            let home = lab.client.connect(to).by();
            for _ in 0..10 {
                assert_eq!(lab.client.connect(to).by(), home);
            }
            if to.is_ipv4() {
                assert_eq!(lab.client.connect(at("10.96.0.2", 81)).by(), home, "the other frontend");
            }
        }
        let home = lab.client.connect(at("10.96.0.1", 80)).by().unwrap();
        let IpAddr::V4(address) = home.ip() else { panic!("{home}") };
        let gone = address.octets()[3];
        let others: Vec<u8> = [11, 12, 13].into_iter().filter(|host| *host != gone).collect();
        put(&mut runner, &[&affine(&others)]);
        let second = lab.client.connect(at("10.96.0.1", 80)).by().unwrap();
        assert_ne!(second, home);
        put(&mut runner, &[&affine(&[11, 12, 13])]);
        for _ in 0..10 {
            assert_eq!(lab.client.connect(at("10.96.0.1", 80)).by(), Some(second), "the first is back, and forgot");
        }
        let mut moved = false;
        for _ in 0..6 {
            thread::sleep(Duration::from_millis(2300));
            moved |= lab.client.connect(at("10.96.0.1", 80)).by() != Some(second);
        }
        // A fresh pick falls on the same endpoint one time in three: six times running, 1 in 729.
        assert!(moved, "six pauses longer than the time-out");
    });
}

#[test]
fn clients_of_one_prefix_are_one_client() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let affinity = ClientAffinity { timeout: Duration::from_secs(60), prefix_v4: 24, prefix_v6: 64 };
        let web = spec("web", TCP).vip("10.96.0.1", 80).vip("fd96::1", 80).to(&[11, 12, 13]);
        put(&mut runner, &[&web.with(|s| s.definition.client_affinity = Some(affinity))]);
        settled(&mut runner);
        for (prefix, length, vip) in [("10.1.0.", 24, "10.96.0.1"), ("fd01::", 64, "fd96::1")] {
            let sources: Vec<String> = (20..32).map(|host| format!("{prefix}{host}")).collect();
            let fates = lab.client.run(move || {
                sources.iter().for_each(|s| {
                    let nodad: &[&str] = if s.contains(':') { &["nodad"] } else { &[] };
                    run("ip", &[&["addr", "add", &format!("{s}/{length}"), "dev", "eth0"], nodad].concat());
                });
                // The first packet from a new address may be lost while its neighbours look for it.
                let twice = |source: &String| {
                    let first = connect_from(Some(ip(source)), at(vip, 80));
                    if first == Fate::Silence { connect_from(Some(ip(source)), at(vip, 80)) } else { first }
                };
                sources.iter().map(twice).collect::<Vec<_>>()
            });
            assert_eq!(tally(&fates).len(), 1, "{fates:?}");
        }
    });
}

#[test]
fn source_ranges_let_in_only_their_own_before_any_other_decision() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let ranged = |vip: &str, ranges: &[&str]| Frontend {
            source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            ..Frontend::vip(ip(vip), 80)
        };
        let served = |spec: Spec| {
            spec.frontend(ranged("10.96.0.1", &["10.1.0.0/24"]))
                .frontend(ranged("10.96.0.2", &["192.0.2.0/24", "10.2.0.0/24"]))
                .frontend(ranged("fd96::1", &["fd01::/64"]))
                .frontend(ranged("fd96::2", &["fd02::/64"]))
                .vip("10.96.0.3", 80)
        };
        put(&mut runner, &[&served(spec("web", TCP)).to(&[11])]);
        settled(&mut runner);
        assert!(lab.client.connect(at("10.96.0.1", 80)).by().is_some());
        assert!(lab.client.connect(at("fd96::1", 80)).by().is_some());
        assert_eq!(lab.client.connect(at("10.96.0.2", 80)), Fate::Silence);
        assert_eq!(lab.client.connect(at("fd96::2", 80)), Fate::Silence);
        assert_eq!(connect(at("10.96.0.2", 80)), Fate::Silence, "the node itself");
        assert!(lab.client.connect(at("10.96.0.3", 80)).by().is_some(), "another frontend");
        put(&mut runner, &[&served(spec("web", TCP))]);
        assert_eq!(lab.client.connect(at("10.96.0.1", 80)), Fate::Refused);
        assert_eq!(lab.client.connect(at("10.96.0.2", 80)), Fate::Silence);
        settled(&mut runner);
    });
}

/// Clients: outside is the client; inside are the node, and the client's network once it is declared a local source.
#[test]
fn policies_and_source_nat_follow_the_matrix() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let frontend =
            |vip: &str, scope, policy, source_nat| Frontend { scope, policy, source_nat, ..Frontend::vip(ip(vip), 80) };
        let (all, local) = (Policy::All, Policy::Local);
        let (internal, external) = (Scope::Internal, Scope::External);
        let web = spec("web", TCP)
            .frontend(frontend("10.96.0.1", internal, all, SourceNat::Auto))
            .frontend(frontend("10.96.0.2", internal, local, SourceNat::Auto))
            .frontend(frontend("10.96.0.3", external, all, SourceNat::Auto))
            .frontend(frontend("10.96.0.4", external, local, SourceNat::Auto))
            .frontend(frontend("10.96.0.5", external, all, SourceNat::Never))
            .frontend(frontend("10.96.0.6", internal, all, SourceNat::Always))
            .to(&[11, 12, 13])
            .with(|s| s.endpoints[0].local = true);
        put(&mut runner, &[&web]);
        settled(&mut runner);
        let hidden = Some(ip("10.2.0.1"));
        let kept = Some(ip(Lab::CLIENT_V4));
        let try_all = |expected: [(usize, Option<IpAddr>); 6], from: &dyn Fn(SocketAddr) -> Fate, who: &str| {
            for (n, (endpoints, seen)) in (1u8..).zip(expected) {
                let to = at(&format!("10.96.0.{n}"), 80);
                let fates: Vec<Fate> = (0..24).map(|_| from(to)).collect();
                assert_eq!(tally(&fates).len(), endpoints, "{who} at {to}: {fates:?}");
                assert!(fates.iter().all(|fate| fate.seen() == seen), "{who} at {to}: {fates:?}");
            }
        };
        let client = |to| lab.client.connect(to);
        // No local sources are known: INTERNAL keeps the source.
        try_all([(3, kept), (1, kept), (3, hidden), (1, kept), (3, kept), (3, hidden)], &client, "outside");
        let own = Some(ip(Lab::NODE_V4));
        try_all([(3, own), (1, own), (3, hidden), (3, hidden), (3, own), (3, hidden)], &connect, "the node");

        let network = |sources: &[&str], interfaces: &[&str]| {
            let mut node = node();
            node.network.local_sources = sources.iter().map(|net| net.parse().unwrap()).collect();
            node.network.local_source_interfaces = interfaces.iter().map(|&name| name.to_owned()).collect();
            node
        };
        let set = |runner: &mut vipd_engine::Runner<_>, node: Node| {
            runner.set_node(node).unwrap();
            settled(runner);
        };
        set(&mut runner, network(&["10.244.0.0/16"], &[]));
        try_all([(3, hidden), (1, hidden), (3, hidden), (1, kept), (3, kept), (3, hidden)], &client, "outside");
        for node in [network(&["10.1.0.0/24"], &[]), network(&[], &["clie*"])] {
            set(&mut runner, node);
            try_all([(3, kept), (1, kept), (3, hidden), (3, kept), (3, kept), (3, hidden)], &client, "a local source");
            let node = [(3, hidden), (1, hidden), (3, hidden), (3, hidden), (3, own), (3, hidden)];
            try_all(node, &connect, "the node");
        }

        // Nothing local: silence outside, served inside.
        put(&mut runner, &[&web.clone().with(|s| s.endpoints[0].state = EndpointState::NotReady)]);
        set(&mut runner, network(&["10.244.0.0/16"], &[]));
        assert_eq!(lab.client.connect(at("10.96.0.4", 80)), Fate::Silence);
        assert_eq!(lab.client.connect(at("10.96.0.2", 80)), Fate::Silence);
        assert!(connect(at("10.96.0.4", 80)).by().is_some());
    });
}

#[test]
fn draining_endpoints_serve_only_as_the_last() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let web = spec("web", TCP).vip("10.96.0.1", 80).to(&[11, 12]);
        let drain = |s: &mut Spec| s.endpoints[0].state = EndpointState::Draining;
        put(&mut runner, &[&web.clone().with(drain)]);
        let to = at("10.96.0.1", 80);
        assert_eq!(tally(&lab.client.connect_many(12, to)).len(), 1);
        put(&mut runner, &[&web.with(|s| s.endpoints.iter_mut().for_each(|e| e.state = EndpointState::Draining))]);
        assert_eq!(tally(&lab.client.connect_many(24, to)).len(), 2);
    });
}

/// The order in which the kernel remembers is what Explain is told.
#[test]
fn what_affinity_remembers_can_be_read() {
    use vipd_engine::Engine as _;
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let affinity = ClientAffinity { timeout: Duration::from_secs(2), prefix_v4: 32, prefix_v6: 128 };
        let web = spec("web", TCP).vip("10.96.0.1", 80).vip("fd96::1", 80).to(&[11, 12, 13]);
        let web = web.with(|s| s.definition.client_affinity = Some(affinity));
        put(&mut runner, &[&web]);
        for (vip, client) in [("10.96.0.1", Lab::CLIENT_V4), ("fd96::1", "fd01::2")] {
            assert_eq!(runner.steps_mut().remembered(&web.selected(), ip(client)), None);
            let home = lab.client.connect(at(vip, 80)).by().unwrap();
            let said = runner.steps_mut().remembered(&web.selected(), ip(client)).unwrap();
            assert_eq!(said.socket_address(0), home);
        }
        let said = runner.steps().findings();
        assert!(said.iter().any(|finding| finding.message.contains("ip_list_tot")), "its limit is said: {said:?}");
        thread::sleep(Duration::from_millis(2500));
        assert_eq!(runner.steps_mut().remembered(&web.selected(), ip(Lab::CLIENT_V4)), None, "its time is over");
    });
}

/// What an endpoint repeats from far outside the window must not reach the client from the endpoint's own address.
#[test]
fn strays_of_endpoints_are_dropped() {
    on_both(|backend| {
        let lab = Lab::new();
        std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0").unwrap();
        let mut runner = started(backend, node());
        let stray = || lab.backends.run(|| crate::guard::lone_fin_is_answered_to("10.2.0.11", Lab::CLIENT_V4));
        put(&mut runner, &[&spec("dns", UDP).vip("10.96.0.9", 80).to(&[11])]);
        assert!(stray(), "nobody's endpoint of TCP");
        put(&mut runner, &[&spec("web", TCP).vip("10.96.0.1", 80).to(&[12])]);
        settled(&mut runner);
        assert!(!stray());
        runner.set_node(Node { invalid_packets: vipd_engine::InvalidPackets::Off, ..node() }).unwrap();
        settled(&mut runner);
        assert!(stray(), "left alone");
    });
}
