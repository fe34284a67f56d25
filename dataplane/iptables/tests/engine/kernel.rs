//! Objects against the real kernel: laws over random services, drift, what belongs to others, restart, flows to forget.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use vipd_engine::{FlowFilter, Steps as _, runner::DriftKind};
use vipd_iptables::{Backend, Choice, Iptables, Key, Options};
use vipd_model::frontend::{Policy, Scope, SourceNat};
use vipd_model::service::{ClientAffinity, NoEndpoints};
use vipd_model::{Algorithm, At, EndpointState, Family, Frontend, NodePort, PortRange, Protocol};
use vipd_netlink::testing::run;

use crate::kit::*;
use crate::lab::*;

/// The programs of a back end, for IPv4.
fn iptables(backend: Backend, arguments: &str) -> String {
    run(&format!("iptables-{backend}"), &arguments.split(' ').collect::<Vec<_>>())
}

fn frontend() -> impl Strategy<Value = Frontend> {
    let address = prop_oneof![
        (0u8..200).prop_map(|n| At::Address(ip(&format!("10.96.{}.{n}", n % 3)))),
        (0u16..200).prop_map(|n| At::Address(ip(&format!("fd96::{:x}:{n:x}", n % 5)))),
        (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(v4, v6, some)| {
            let addresses =
                if some { vec!["10.1.0.0/16".parse().unwrap(), "fd01::/16".parse().unwrap()] } else { vec![] };
            At::NodePort(NodePort { v4, v6: v6 || !v4, addresses })
        }),
    ];
    let ranges = prop_oneof![
        3 => Just(vec![]),
        1 => Just(vec!["10.1.0.0/24".parse().unwrap(), "192.0.2.7/32".parse().unwrap()]),
        1 => Just(vec!["fd01::/64".parse().unwrap()]),
    ];
    (address, any::<bool>(), any::<bool>(), ranges, 0u8..3).prop_map(|(at, external, local, source_ranges, nat)| {
        Frontend {
            at,
            ports: PortRange::one(0),
            scope: if external { Scope::External } else { Scope::Internal },
            policy: if local { Policy::Local } else { Policy::All },
            source_ranges,
            source_nat: [SourceNat::Auto, SourceNat::Always, SourceNat::Never][usize::from(nat)],
        }
    })
}

/// Whatever a service may be. Its ports are its own, so that no two contend.
fn service(n: u16) -> impl Strategy<Value = Spec> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
    let algorithm = prop_oneof![Just(Algorithm::Random), Just(Algorithm::Rr)];
    let endpoint = (11u8..14, any::<bool>(), 0u16..4, 0u8..3, any::<bool>());
    let frontends = prop::collection::vec((frontend(), 0u16..3), 0..5);
    (protocol, algorithm, frontends, prop::collection::vec(endpoint, 0..6), any::<bool>(), any::<bool>()).prop_map(
        move |(protocol, algorithm, frontends, endpoints, affine, quiet)| {
            let mut spec = spec(&format!("service {n}"), protocol).by(algorithm);
            for (index, (mut frontend, more)) in (0u16..).zip(frontends) {
                let first = 1000 + n * 100 + index * 10;
                frontend.ports = PortRange { first, last: first + more };
                spec = spec.frontend(frontend);
            }
            let mut all = BTreeMap::new();
            for (host, v6, weight, state, local) in endpoints {
                let address = if v6 { format!("fd02::{host}") } else { format!("10.2.0.{host}") };
                let mut endpoint = vipd_model::Endpoint::new(ip(&address), 8080);
                (endpoint.weight, endpoint.local) = (weight, local);
                endpoint.state =
                    [EndpointState::Ready, EndpointState::Draining, EndpointState::NotReady][usize::from(state)];
                all.insert(endpoint.key, endpoint);
            }
            spec.endpoints = all.into_values().collect();
            spec.definition.client_affinity = affine.then_some(ClientAffinity {
                timeout: std::time::Duration::from_secs(60),
                prefix_v4: 24,
                prefix_v6: 64,
            });
            spec.definition.on_no_endpoints = if quiet { NoEndpoints::Drop } else { NoEndpoints::Reject };
            spec
        },
    )
}

fn services() -> impl Strategy<Value = Vec<Spec>> {
    (0u16..4)
        .prop_flat_map(|_| (service(0), service(1), service(2), service(3)))
        .prop_map(|(a, b, c, d)| vec![a, b, c, d])
}

/// After each change kernel and model are the same, and a restart finds nothing to do; another order of the same changes
/// ends in the same kernel.
#[test]
fn observed_is_rendered_whatever_was_declared_and_in_any_order() {
    on_both(|backend| {
        let cases = std::env::var("VIPD_IPTABLES_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
        let mut laws = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
        laws.run(&(services(), services()), |(first, second)| {
            let mut runner = started(backend, node());
            put(&mut runner, &first.iter().collect::<Vec<_>>());
            settled(&mut runner);
            for spec in &second {
                put(&mut runner, &[spec]);
                settled(&mut runner);
            }
            let one = observed(backend);
            drop(runner);

            let mut again = vipd_engine::Runner::start(Iptables::open(&options(backend)).unwrap()).unwrap();
            again.set_node(node()).unwrap();
            let batch = second.iter().map(|spec| (spec.key.clone(), Some(spec.selected()))).collect();
            let (plan, _) = again.dry_run(batch);
            prop_assert!(plan.is_empty(), "a restart would write: {plan:?}");
            again.release().unwrap();
            put(&mut again, &second.iter().rev().collect::<Vec<_>>());
            remove(&mut again, &second.iter().collect::<Vec<_>>());
            prop_assert_eq!(observed(backend).len(), 0);
            put(&mut again, &second.iter().rev().collect::<Vec<_>>());
            prop_assert_eq!(observed(backend), one);
            remove(&mut again, &second.iter().collect::<Vec<_>>());
            Ok(())
        })
        .unwrap();
    });
}

fn many(count: u8) -> Vec<Spec> {
    (0..count)
        .map(|n| spec(&format!("many {n}"), Protocol::Tcp).vip(&format!("10.96.{}.{n}", n / 16), 80).to(&[11, 12]))
        .collect()
}

#[test]
fn what_others_break_is_found_and_repaired() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let web = spec("web", Protocol::Tcp).vip("10.96.0.250", 80).node_port(30080).to(&[11, 12]);
        let many = many(40);
        put(&mut runner, &many.iter().chain([&web]).collect::<Vec<_>>());
        let to = at("10.96.0.250", 80);
        let damages = [
            "-t nat -F",
            "-t filter -F",
            "-t nat -D PREROUTING 1",
            "-t nat -F VIPD-SERVICES",
            "-t nat -D VIPD-SERVICES 1",
            "-t nat -A VIPD-TN -j RETURN",
            "-t nat -I VIPD-SERVICES -d 10.96.0.250 -j ACCEPT",
            "-t nat -I VIPD-MASQ -j ACCEPT",
            "-t nat -F VIPD-REJECT",
            "-t nat -N VIPD-STRANGE",
            "-t nat -I PREROUTING -m comment --comment vipd -j VIPD-SERVICES",
        ];
        for damage in damages {
            iptables(backend, damage);
            let drift = runner.check().unwrap();
            assert!(!drift.is_empty(), "{damage}");
            let repaired = runner.repair();
            repaired
                .outcomes
                .into_iter()
                .for_each(|(key, outcome)| outcome.unwrap_or_else(|e| panic!("{damage}: {key}: {e:?}")));
            settled(&mut runner);
            assert!(lab.client.connect(to).by().is_some(), "{damage}");
            assert!(lab.client.connect(at("10.96.1.17", 80)).by().is_some(), "{damage}");
        }
        iptables(backend, "-t nat -F VIPD-TN");
        let drift = runner.check().unwrap();
        assert!(
            drift.iter().any(|drift| drift.kind == DriftKind::Missing && drift.object.contains("node4")),
            "{drift:?}"
        );
        runner.repair();
        settled(&mut runner);
    });
}

#[test]
fn what_belongs_to_others_is_never_touched() {
    on_both(|backend| {
        let ours = |line: &&str| line.contains("VIPD-") || line.starts_with('#');
        let others = || {
            let saved = run(&format!("iptables-{backend}-save"), &[]);
            saved.lines().filter(|line| !ours(line)).map(str::to_owned).collect::<Vec<_>>()
        };
        for rule in [
            "-t nat -N DOCKER",
            "-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
            "-t nat -A DOCKER -p tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80",
            "-t filter -A INPUT -p tcp -m multiport --dports 22,80 -m limit --limit 5/min -j ACCEPT",
            "-t filter -P FORWARD DROP",
            "-t mangle -A PREROUTING -j MARK --set-mark 0x10",
        ] {
            iptables(backend, rule);
        }
        let before = others();
        let mut runner = started(backend, node());
        let web = spec("web", Protocol::Tcp).vip("10.96.0.1", 80).node_port(30080).to(&[11, 12]);
        put(&mut runner, &[&web]);
        assert_eq!(others(), before);
        runner.steps_mut().cleanup().unwrap();
        assert_eq!(others(), before);
        let saved = run(&format!("iptables-{backend}-save"), &[]);
        assert!(!saved.contains("VIPD"), "{saved}");
    });
}

/// The nft back end makes tables as it needs them.
#[test]
fn a_cleanup_leaves_no_table_that_only_we_have_used() {
    vipd_netlink::testing::in_namespace(|| {
        let before = run("nft", &["list", "ruleset"]);
        let mut runner = started(Backend::Nft, node());
        put(&mut runner, &[&spec("web", Protocol::Tcp).vip("10.96.0.1", 80).vip("fd96::1", 80).to(&[11])]);
        runner.steps_mut().cleanup().unwrap();
        assert_eq!(run("nft", &["list", "ruleset"]), before);
        run("nft", &["add table ip nat"]);
        run("nft", &["add set ip nat strangers { type ipv4_addr; }"]);
        let before = run("nft", &["list", "ruleset"]);
        let mut runner = started(Backend::Nft, node());
        put(&mut runner, &[&spec("more", Protocol::Tcp).vip("10.96.0.2", 80).to(&[11])]);
        runner.steps_mut().cleanup().unwrap();
        assert_eq!(run("nft", &["list", "ruleset"]), before);
    });
}

/// The nft back end's programs stop where they meet an expression that they cannot print.
#[test]
fn expressions_that_the_programs_do_not_know_do_not_make_us_fail() {
    vipd_netlink::testing::in_namespace(|| {
        let lab = Lab::new();
        let backend = Backend::Nft;
        let mut runner = started(backend, node());
        let many = many(40);
        put(&mut runner, &many.iter().collect::<Vec<_>>());
        for line in [
            "add set ip nat strangers { type ipv4_addr; }",
            "add rule ip nat PREROUTING ip daddr @strangers meta hour 3 counter accept",
            "add rule ip filter INPUT ip daddr @strangers2 accept",
        ] {
            if line.contains("strangers2") {
                run("nft", &["add set ip filter strangers2 { type ipv4_addr; flags interval; }"]);
            }
            run("nft", &[line]);
        }
        settled(&mut runner);
        let web = spec("web", Protocol::Tcp).vip("10.96.0.250", 80).to(&[11]);
        put(&mut runner, &[&web]);
        settled(&mut runner);
        assert!(lab.client.connect(at("10.96.0.250", 80)).by().is_some());
        iptables(backend, "-t nat -F VIPD-SERVICES");
        assert!(!runner.check().unwrap().is_empty());
        runner.repair();
        settled(&mut runner);
        runner.steps_mut().cleanup().unwrap();
        assert!(!run("nft", &["list", "ruleset"]).contains("VIPD"));
        assert!(run("nft", &["list", "ruleset"]).contains("strangers"));
    });
}

#[test]
fn nothing_is_written_while_nothing_is_served() {
    on_both(|backend| {
        let before = run("nft", &["list", "ruleset"]);
        let mut runner = started(backend, node());
        settled(&mut runner);
        assert_eq!(run("nft", &["list", "ruleset"]), before);
        let web = spec("web", Protocol::Tcp).vip("10.96.0.1", 80).to(&[11]);
        put(&mut runner, &[&web]);
        remove(&mut runner, &[&web]);
        settled(&mut runner);
        assert_eq!(observed(backend).len(), 0);
    });
}

#[test]
fn the_back_end_that_the_host_uses_is_used() {
    for backend in Backend::ALL {
        vipd_netlink::testing::in_namespace(|| {
            iptables(backend, "-A INPUT -s 192.0.2.1 -j DROP");
            assert_eq!(Iptables::open(&Options::default()).unwrap().backend(), backend);
            let other = Backend::ALL.into_iter().find(|other| *other != backend).unwrap();
            let named = Options { backend: Choice::Only(other), ..Options::default() };
            assert_eq!(Iptables::open(&named).unwrap().backend(), other);
            iptables(other, "-A INPUT -s 192.0.2.1 -j DROP");
            let both = Iptables::open(&Options::default()).unwrap();
            let said = vipd_engine::Engine::findings(&both);
            assert!(said[0].message.contains("both"), "{said:?}");
            // What we left is found again, whatever the others use.
            let mut runner = started(backend, node());
            put(&mut runner, &[&spec("web", Protocol::Tcp).vip("10.96.0.1", 80).to(&[11])]);
            iptables(other, "-A INPUT -s 192.0.2.2 -j DROP");
            assert_eq!(Iptables::open(&Options::default()).unwrap().backend(), backend);
        });
    }
}

#[test]
fn udp_flows_that_a_change_made_stale_are_named() {
    on_both(|backend| {
        let mut runner = started(backend, node());
        let dns = spec("dns", Protocol::Udp).vip("10.96.0.1", 53).node_port(30053).to(&[11, 12]);
        let flow = |destination: Option<&str>, port, reply: Option<(&str, u16)>| FlowFilter {
            family: Family::V4,
            protocol: Protocol::Udp,
            destination: destination.map(ip),
            port,
            reply_source: reply.map(|(address, port)| (ip(address), port)),
        };
        let v4 = |flows: Vec<FlowFilter>| flows.into_iter().filter(|f| f.family == Family::V4).collect::<Vec<_>>();
        let vip = Some("10.96.0.1");
        // Untranslated so far.
        let stale = v4(put(&mut runner, &[&dns]));
        assert_eq!(stale, [flow(None, 30053, None), flow(vip, 53, Some(("10.96.0.1", 53)))]);
        let drain = |s: &mut Spec| s.endpoints[0].state = EndpointState::Draining;
        assert_eq!(put(&mut runner, &[&dns.clone().with(drain)]), [], "a draining endpoint keeps its flows");
        let stale = v4(put(&mut runner, &[&dns.clone().with(|s| drop(s.endpoints.remove(0)))]));
        let gone = Some(("10.2.0.11", 8080));
        assert_eq!(stale, [flow(None, 30053, gone), flow(vip, 53, gone)]);
        let stale = v4(put(&mut runner, &[&dns.clone().with(|s| s.endpoints.clear())]));
        let gone = Some(("10.2.0.12", 8080));
        assert_eq!(stale, [flow(None, 30053, gone), flow(vip, 53, gone)]);
        let stale = v4(remove(&mut runner, &[&dns]));
        assert_eq!(stale, [flow(None, 30053, None), flow(vip, 53, None)]);
    });
}

#[test]
fn connections_are_counted() {
    on_both(|backend| {
        use vipd_engine::Engine as _;
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let web = spec("web", Protocol::Tcp).vip("10.96.0.1", 80).to(&[11, 12]);
        put(&mut runner, &[&web]);
        lab.client.connect_many(20, at("10.96.0.1", 80));
        let counted = runner.steps_mut().counters(&[]).unwrap();
        assert_eq!(counted.len(), 1);
        assert_eq!(counted[0].key, web.key);
        assert_eq!(counted[0].total.connections, Some(20));
        let each: u64 = counted[0].endpoints.iter().map(|(_, c)| c.connections.unwrap()).sum();
        assert_eq!(each, 20, "{counted:?}");
        // A chain that is written anew counts from zero; the sum does not.
        put(&mut runner, &[&web.clone().with(|s| s.endpoints.truncate(1))]);
        lab.client.connect_many(5, at("10.96.0.1", 80));
        let counted = runner.steps_mut().counters(std::slice::from_ref(&web.key)).unwrap();
        assert_eq!(counted[0].total.connections, Some(25), "{counted:?}");
        put(&mut runner, &[&web.clone().with(|s| s.endpoints.clear())]);
        lab.client.connect(at("10.96.0.1", 80));
        let counted = runner.steps_mut().counters(&[web.key]).unwrap();
        assert_eq!(counted[0].total.refused, Some(1), "{counted:?}");
    });
}

/// Keys read well: they are what operators see in `Verify`.
#[test]
fn objects_say_what_they_are() {
    on_both(|backend| {
        let mut runner = started(backend, node());
        put(&mut runner, &[&spec("web", Protocol::Tcp).vip("10.96.0.1", 80).to(&[11])]);
        let texts: Vec<String> = observed(backend).keys().map(ToString::to_string).collect();
        for expected in ["ip jumps to our chains", "entry 10.96.0.1 . tcp . 80", "ip nat chain VIPD-REJECT"] {
            assert!(texts.iter().any(|text| text == expected), "{texts:?}");
        }
        assert!(observed(backend).keys().any(|key| matches!(key, Key::Chain(..))));
    });
}
