//! What the balancer does to real packets: from another host, from the node itself and from endpoints.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vipd_engine::{Engine as _, Hashed, Runner};
use vipd_model::{
    Algorithm, Drain, Endpoint, EndpointState, Frontend, Millis, NoEndpoints, OnExpiry, Policy, PortRange, Scope,
    Serve, SourceNat,
};
use vipd_netlink::testing::in_namespace;
use vipd_nftables::Nftables;

use crate::{lab::*, service::*};

#[test]
fn flows_are_spread_over_the_endpoints_of_their_family() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let both = ["10.2.1.1", "10.2.1.2", "10.2.1.3", "fd02::1:1", "fd02::1:2", "fd02::1:3"];
        put(&mut runner, tcp("web").vip("10.96.0.1", 80).vip("fd96::1", 80).to(&both));
        put(&mut runner, udp("dns").vip("10.96.0.1", 53).vip("fd96::1", 53).to(&both));
        for vip in ["10.96.0.1", "fd96::1"] {
            let spread = lab.client.spread(vip, 80, 60);
            assert!(spread.len() == 3 && spread.iter().all(|(_, count)| *count > 5), "{spread:?}");
            assert!(matches!(lab.client.ask(vip, 53), Fate::Served { .. }));
            assert!(matches!(connect(None, (ip(vip), 80).into()), Fate::Served { .. }), "from the node");
            assert!(matches!(ask((ip(vip), 53).into()), Fate::Served { .. }), "from the node");
        }
        wanted_is_in_kernel(&mut runner);
    });
}

#[test]
fn weights_hold_and_round_robin_is_exact() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let weighted = |name: &str| tcp(name).to(&["10.2.1.1"]).endpoint("10.2.1.2", |e| e.weight = 3);
        put(&mut runner, weighted("turns").by(Algorithm::Rr).vip("10.96.0.2", 80));
        let counts: Vec<_> = lab.client.spread("10.96.0.2", 80, 40).into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [10, 30]);
        put(&mut runner, weighted("chance").endpoint("10.2.1.3", |e| e.weight = 0).vip("10.96.0.3", 80));
        let spread = lab.client.spread("10.96.0.3", 80, 80);
        assert!(spread.len() == 2 && spread[1].1 > spread[0].1, "{spread:?}");
        wanted_is_in_kernel(&mut runner);
    });
}

#[test]
fn one_source_always_meets_the_same_endpoint_by_hash() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let five = ["10.2.1.1", "10.2.1.2", "10.2.1.3", "10.2.1.4", "10.2.1.5"];
        put(&mut runner, tcp("sh").by(Algorithm::Sh).vip("10.96.0.4", 80).to(&five));
        put(&mut runner, tcp("mh").by(Algorithm::Mh).vip("10.96.0.5", 80).to(&five));
        put(&mut runner, tcp("mh2").by(Algorithm::Mh).vip("10.96.0.6", 80).to(&five));
        let mut with_port = tcp("port").by(Algorithm::Sh).vip("10.96.0.7", 80).to(&five);
        with_port.scheduler.hash_source_port = true;
        put(&mut runner, with_port);
        let sources: Vec<String> = (3..=40).map(|n| format!("10.1.0.{n}")).collect();
        let picks = |vip: &str| -> Vec<_> {
            sources.iter().map(|from| lab.client.connect_from(from, vip, 80).endpoint()).collect()
        };
        let (sh, mh) = (picks("10.96.0.4"), picks("10.96.0.5"));
        assert_eq!((&sh, &mh), (&picks("10.96.0.4"), &picks("10.96.0.5")), "the second time");
        assert_eq!(mh, picks("10.96.0.6"), "another service with the same endpoints, as on another node");
        for picks in [&sh, &mh] {
            assert!(picks.iter().collect::<std::collections::BTreeSet<_>>().len() >= 4, "{picks:?}");
        }
        assert!(lab.client.spread("10.96.0.7", 80, 40).len() > 2, "one source, many ports");
        // What Explain says.
        let mut told = |service: Made, from: &String| {
            let (destination, destination_port) = (ip("10.96.0.4"), 80);
            let flow = Hashed { serve: Serve::All, source: ip(from), source_port: None, destination, destination_port };
            runner.steps_mut().hashed(&service.to(&five).selected(), &flow).unwrap().address
        };
        for (n, from) in sources.iter().enumerate() {
            assert_eq!(told(tcp("sh").by(Algorithm::Sh), from), sh[n]);
            assert_eq!(told(tcp("mh").by(Algorithm::Mh), from), mh[n]);
        }
        put(&mut runner, tcp("mh").by(Algorithm::Mh).vip("10.96.0.5", 80).to(&five[..4]));
        let moved =
            mh.iter().zip(picks("10.96.0.5")).filter(|(was, now)| *was != now && **was != ip("10.2.1.5")).count();
        assert!(moved <= 6, "{moved} of 38 moved though their endpoint stayed");
    });
}

#[test]
fn affinity_holds_as_long_as_its_endpoint_serves_and_its_time_has_not_passed() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let all = ["10.2.1.1", "10.2.1.2", "10.2.1.3", "10.2.1.4", "fd02::1:1", "fd02::1:2", "fd02::1:3"];
        let sticky = |to: &[&str]| {
            tcp("sticky").affinity(1500, 32).vip("10.96.0.8", 80).vip("10.96.0.88", 80).vip("fd96::8", 80).to(to)
        };
        put(&mut runner, sticky(&all));
        let first = lab.client.connect("10.96.0.8", 80).endpoint();
        for vip in ["10.96.0.8", "10.96.0.88"] {
            assert_eq!(lab.client.spread(vip, 80, 12), [(first, 12)], "a service's frontends share it");
        }
        let remembered = |runner: &mut Runner<Nftables>, client| {
            let found = runner.steps_mut().remembered(&tcp("sticky").selected(), ip(client));
            found.map(|endpoint| endpoint.address)
        };
        assert_eq!(remembered(&mut runner, Lab::CLIENT), Some(first));
        assert_eq!(remembered(&mut runner, Lab::STRANGER), None);
        assert_eq!(lab.client.spread("fd96::8", 80, 12).len(), 1);
        // Its endpoint goes: picked anew, and remembered again.
        let rest: Vec<&str> = all.into_iter().filter(|address| ip(address) != first).collect();
        put(&mut runner, sticky(&rest));
        let spread = lab.client.spread("10.96.0.8", 80, 12);
        assert!(spread.len() == 1 && spread[0].0 != first, "{spread:?}");
        // It comes back, and takes nobody from where he is.
        put(&mut runner, sticky(&all));
        assert_eq!(lab.client.spread("10.96.0.8", 80, 12), spread);
        // Refreshed by use, past its time; forgotten after it.
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(800));
            assert_eq!(lab.client.connect("10.96.0.8", 80).endpoint(), spread[0].0);
        }
        let mut met = std::collections::BTreeSet::new();
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(1600));
            met.insert(lab.client.connect("10.96.0.8", 80).endpoint());
        }
        assert!(met.len() > 1, "{met:?}");
    });
}

#[test]
fn clients_of_one_prefix_are_one_client() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let four = ["10.2.1.1", "10.2.1.2", "10.2.1.3", "10.2.1.4"];
        put(&mut runner, tcp("together").affinity(600_000, 24).vip("10.96.0.8", 80).to(&four));
        put(&mut runner, tcp("alone").affinity(600_000, 32).vip("10.96.0.9", 80).to(&four));
        let met = |vip: &str| {
            let one = |n| lab.client.connect_from(&format!("10.1.0.{n}"), vip, 80).endpoint();
            (3..=22).map(one).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!(met("10.96.0.8"), 1);
        assert!(met("10.96.0.9") > 2);
    });
}

#[test]
fn the_source_is_translated_where_the_reply_would_not_find_back_and_nowhere_else() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let one = ["10.2.1.1", "fd02::1:1"];
        put(&mut runner, tcp("auto").vip("10.96.0.1", 80).vip("fd96::1", 80).to(&one));
        let with = |name: &str, vip: &str, scope, policy, source_nat| {
            let frontend = Frontend { scope, policy, source_nat, ..Frontend::vip(ip(vip), 80) };
            tcp(name).frontend(frontend).endpoint("10.2.1.1", |e| e.local = true)
        };
        put(&mut runner, with("always", "10.96.0.2", Scope::Internal, Policy::All, SourceNat::Always));
        put(&mut runner, with("never", "10.96.0.3", Scope::External, Policy::All, SourceNat::Never));
        put(&mut runner, with("external", "10.96.0.4", Scope::External, Policy::All, SourceNat::Auto));
        put(&mut runner, with("local", "10.96.0.5", Scope::External, Policy::Local, SourceNat::Auto));
        let seen = |from: &str, to: &str| lab.client.connect_from(from, to, 80).source();
        let (inner, client, stranger) = (ip(Lab::INNER), ip(Lab::CLIENT), ip(Lab::STRANGER));
        assert_eq!(seen(Lab::CLIENT, "10.96.0.1"), client, "AUTO, a local source");
        assert_eq!(seen(Lab::STRANGER, "10.96.0.1"), inner, "AUTO, no local source");
        assert_eq!(seen(Lab::CLIENT6, "fd96::1"), ip(Lab::CLIENT6));
        assert_eq!(seen(Lab::CLIENT, "10.96.0.2"), inner, "ALWAYS");
        assert_eq!(seen(Lab::STRANGER, "10.96.0.3"), stranger, "NEVER");
        assert_eq!(seen(Lab::CLIENT, "10.96.0.4"), inner, "EXTERNAL + ALL");
        assert_eq!(seen(Lab::STRANGER, "10.96.0.5"), stranger, "EXTERNAL + LOCAL");
        assert_eq!(connect(None, (ip("10.96.0.5"), 80).into()).source(), inner, "EXTERNAL + LOCAL, from the node");
        // An endpoint that reaches itself, by a NEVER frontend too.
        for vip in ["10.96.0.1", "10.96.0.3"] {
            assert_eq!(lab.backend.connect_from("10.2.1.1", vip, 80).source(), inner, "hairpin");
        }
        assert_eq!(lab.backend.connect_from("fd02::1:1", "fd96::1", 80).source(), ip("fd02::1"), "hairpin");
        let mut all = Lab::node();
        all.network.source_nat_all = true;
        runner.set_node(all).unwrap();
        assert_eq!(seen(Lab::CLIENT, "10.96.0.1"), inner, "source_nat_all");
        let mut nobody_known = Lab::node();
        nobody_known.network.local_sources.clear();
        runner.set_node(nobody_known.clone()).unwrap();
        assert_eq!(seen(Lab::STRANGER, "10.96.0.1"), stranger, "no local sources are known");
        nobody_known.network.local_source_interfaces = vec!["cli*".into()];
        runner.set_node(nobody_known).unwrap();
        assert_eq!(seen(Lab::STRANGER, "10.96.0.1"), stranger, "local by its interface");
        wanted_is_in_kernel(&mut runner);
    });
}

#[test]
fn policy_local_keeps_those_outside_on_this_node() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let external = Frontend { scope: Scope::External, policy: Policy::Local, ..Frontend::vip(ip("10.96.0.1"), 80) };
        let internal = Frontend { policy: Policy::Local, ..Frontend::vip(ip("10.96.0.2"), 80) };
        let with = |local: bool| {
            let service = tcp("local").frontend(external.clone()).frontend(internal.clone()).vip("10.96.0.3", 80);
            service.to(&["10.2.1.2"]).endpoint("10.2.1.1", |e| e.local = local)
        };
        put(&mut runner, with(true));
        let from = |from: &str, vip: &str| -> std::collections::BTreeSet<_> {
            (0..16).map(|_| lab.client.connect_from(from, vip, 80).endpoint()).collect()
        };
        assert_eq!(from(Lab::STRANGER, "10.96.0.1"), [ip("10.2.1.1")].into(), "from outside");
        assert_eq!(from(Lab::CLIENT, "10.96.0.1").len(), 2, "inside gets all");
        assert_eq!(from(Lab::CLIENT, "10.96.0.2"), [ip("10.2.1.1")].into(), "INTERNAL + LOCAL");
        assert_eq!(from(Lab::CLIENT, "10.96.0.3").len(), 2);
        let of_node: std::collections::BTreeSet<_> =
            (0..16).map(|_| connect(None, (ip("10.96.0.1"), 80).into()).endpoint()).collect();
        assert_eq!(of_node.len(), 2, "the node itself is inside");
        put(&mut runner, with(false));
        assert_eq!(lab.client.connect_from(Lab::STRANGER, "10.96.0.1", 80), Fate::Silence);
        assert_eq!(from(Lab::CLIENT, "10.96.0.1").len(), 2, "inside is served by others");
        assert_eq!(lab.client.connect("10.96.0.2", 80), Fate::Silence);
        let mut rejecting = with(false);
        rejecting.definition.on_no_local_endpoints = NoEndpoints::Reject;
        put(&mut runner, rejecting);
        assert_eq!(lab.client.connect_from(Lab::STRANGER, "10.96.0.1", 80), Fate::Refused);
        assert_eq!(lab.client.connect("10.96.0.2", 80), Fate::Refused);
        wanted_is_in_kernel(&mut runner);
    });
}

#[test]
fn without_endpoints_clients_are_told_or_met_with_silence() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        put(&mut runner, tcp("told").vip("10.96.0.1", 80).vip("fd96::1", 80).node_port(30080, &[]));
        put(&mut runner, udp("told-udp").vip("10.96.0.1", 53).vip("fd96::1", 53));
        let mut silent = tcp("silent").vip("10.96.0.2", 80);
        silent.definition.on_no_endpoints = NoEndpoints::Drop;
        put(&mut runner, silent);
        for vip in ["10.96.0.1", "fd96::1"] {
            assert_eq!(lab.client.connect(vip, 80), Fate::Refused);
            assert_eq!(connect(None, (ip(vip), 80).into()), Fate::Refused, "from the node");
            assert_eq!(lab.client.ask(vip, 53), Fate::Refused);
            assert_eq!(ask((ip(vip), 53).into()), Fate::Refused, "from the node");
        }
        assert_eq!(lab.client.connect(Lab::NODE, 30080), Fate::Refused);
        assert_eq!(lab.client.connect("10.96.0.2", 80), Fate::Silence);
        put(&mut runner, tcp("told").vip("10.96.0.1", 80).to(&["10.2.1.1"]));
        assert!(matches!(lab.client.connect("10.96.0.1", 80), Fate::Served { .. }));
        remove(&mut runner, "told");
        wanted_is_in_kernel(&mut runner);
    });
}

#[test]
fn only_listed_sources_may_come_to_each_frontend() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let ranged = |vip: &str, ranges: &[&str]| {
            let source_ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
            Frontend { source_ranges, ..Frontend::vip(ip(vip), 80) }
        };
        let service = |first: &[&str]| {
            tcp("ranged")
                .frontend(ranged("10.96.0.1", first))
                .frontend(ranged("10.96.0.2", &["10.1.0.200/32", "192.0.2.0/24"]))
                .frontend(ranged("fd96::1", &["fd01::/64", "192.0.2.0/24"]))
                .frontend(ranged("fd96::2", &["192.0.2.0/24"]))
                .vip("10.96.0.3", 80)
                .to(&["10.2.1.1", "fd02::1:1"])
        };
        put(&mut runner, service(&["10.1.0.0/26", "10.1.0.64/27"]));
        let may = |from: &str, to: &str| match lab.client.connect_from(from, to, 80) {
            Fate::Served { .. } => true,
            Fate::Silence => false,
            Fate::Refused => panic!("refused"),
        };
        assert!(may(Lab::CLIENT, "10.96.0.1") && !may(Lab::STRANGER, "10.96.0.1"));
        assert!(!may(Lab::CLIENT, "10.96.0.2") && may(Lab::STRANGER, "10.96.0.2"));
        assert!(may(Lab::CLIENT6, "fd96::1") && !may(Lab::CLIENT6, "fd96::2"));
        assert!(may(Lab::STRANGER, "10.96.0.3"));
        assert_eq!(connect(None, (ip("10.96.0.2"), 80).into()), Fate::Silence, "the node itself is not listed");
        put(&mut runner, service(&["10.1.0.200/32"]));
        assert!(!may(Lab::CLIENT, "10.96.0.1") && may(Lab::STRANGER, "10.96.0.1"));
        wanted_is_in_kernel(&mut runner);
        remove(&mut runner, "ranged");
        wanted_is_in_kernel(&mut runner);
    });
}

#[test]
fn node_ports_are_served_where_they_were_asked_for() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let both = ["10.2.1.1", "fd02::1:1"];
        put(&mut runner, tcp("everywhere").node_port(30080, &[]).to(&both));
        put(&mut runner, udp("questions").node_port(30053, &[]).to(&both));
        put(&mut runner, tcp("selected").node_port(30081, &["10.1.0.0/24", "fd02::/64"]).to(&both));
        // A VIP wins over a node port.
        put(&mut runner, tcp("vip").vip(Lab::NODE, 30080).to(&["10.2.1.9"]));
        assert_eq!(lab.client.connect(Lab::NODE, 30080).endpoint(), ip("10.2.1.9"));
        for address in [Lab::INNER, Lab::NODE6, "fd02::1"] {
            assert!(matches!(lab.client.connect(address, 30080), Fate::Served { .. }), "{address}");
            assert!(matches!(connect(None, (ip(address), 30080).into()), Fate::Served { .. }), "from the node");
        }
        assert!(matches!(lab.client.ask(Lab::NODE, 30053), Fate::Served { .. }));
        assert_eq!(connect(None, (ip("127.0.0.1"), 30080).into()), Fate::Refused, "loopback is the proxy's");
        for (address, served) in [(Lab::NODE, true), (Lab::INNER, false), ("fd02::1", true), (Lab::NODE6, false)] {
            let fate = lab.client.connect(address, 30081);
            assert_eq!(matches!(fate, Fate::Served { .. }), served, "{address}");
        }
        assert_ne!(lab.client.connect("10.96.0.1", 30080), Fate::Refused, "no address of the node: left alone");
        wanted_is_in_kernel(&mut runner);
    });
}

#[test]
fn port_ranges_keep_the_clients_port() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let ports = PortRange { first: 8070, last: 8090 };
        let range = |name: &str, vip: &str| tcp(name).frontend(Frontend { ports, ..Frontend::vip(ip(vip), 1) });
        put(&mut runner, range("range", "10.96.0.1").endpoint("10.2.1.1", |e| e.key.port = 0));
        let sticky = range("sticky", "10.96.0.2").affinity(60_000, 32);
        put(&mut runner, sticky.endpoint("10.2.1.1", |e| e.key.port = 0).to(&["10.2.1.1"]));
        assert!(matches!(lab.client.connect("10.96.0.1", 8080), Fate::Served { .. }));
        assert!(matches!(lab.client.connect("10.96.0.2", 8080), Fate::Served { .. }));
        assert_eq!(lab.client.connect("10.96.0.1", 8081), Fate::Refused, "nobody listens there");
        assert_ne!(lab.client.connect("10.96.0.1", 8091), Fate::Refused, "not in the range: left alone");
        wanted_is_in_kernel(&mut runner);
    });
}

#[test]
fn a_full_endpoint_hands_on_and_when_all_are_full_clients_wait() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let limit = |most| move |endpoint: &mut Endpoint| endpoint.max_connections = most;
        let service = tcp("limited").endpoint("10.2.1.1", limit(2)).endpoint("10.2.1.2", limit(3)).vip("10.96.0.1", 80);
        put(&mut runner, service);
        let open = |count: usize| {
            lab.client
                .run(move || (0..count).map(|_| open(None, (ip("10.96.0.1"), 80).into()).ok()).collect::<Vec<_>>())
        };
        let held = open(5);
        assert!(held.iter().all(Option::is_some), "there is room for five");
        assert!(open(1)[0].is_none(), "and for no more");
        drop(held);
        std::thread::sleep(Duration::from_millis(300));
        assert!(open(1)[0].is_some(), "room again");
        wanted_is_in_kernel(&mut runner);
    });
}

#[test]
fn flows_are_counted_over_the_replacement_of_elements() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let web = |to: &[&str]| tcp("web").vip("10.96.0.1", 80).vip("fd96::1", 80).to(to);
        put(&mut runner, web(&["10.2.1.1", "10.2.1.2", "fd02::1:1"]));
        put(&mut runner, tcp("sticky").affinity(60_000, 32).vip("10.96.0.2", 80).to(&["10.2.1.1"]));
        lab.client.spread("10.96.0.1", 80, 20);
        lab.client.spread("fd96::1", 80, 3);
        lab.client.spread("10.96.0.2", 80, 4);
        put(&mut runner, web(&["10.2.1.2", "10.2.1.3", "fd02::1:1"]));
        lab.client.spread("10.96.0.1", 80, 10);
        let counters = runner.steps_mut().counters(&[key("web")]).unwrap();
        let [web] = &counters[..] else { panic!("{counters:?}") };
        assert_eq!(web.total.connections, Some(33), "{web:?}");
        let of = |address: &str| {
            let found = web.endpoints.iter().find(|(endpoint, _)| endpoint.address == ip(address));
            found.and_then(|(_, counters)| counters.connections)
        };
        assert_eq!(of("fd02::1:1"), Some(3));
        assert_eq!(of("10.2.1.1"), None);
        let all = runner.steps_mut().counters(&[]).unwrap();
        assert_eq!(all.iter().map(|c| c.total.connections.unwrap()).collect::<Vec<_>>(), [4, 33], "{all:?}");
    });
}

#[test]
fn when_a_drain_is_over_its_flows_are_reset_and_no_others() {
    in_namespace(|| {
        use std::io::{Read as _, Write as _};
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let two = |leaving: bool| {
            let drain = Some(Drain { timeout: Some(Duration::from_millis(3000)), on_expiry: OnExpiry::Reset });
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
            tcp("web").vip("10.96.0.1", 80).node_port(30080, &[]).to(&["10.2.1.2"]).endpoint("10.2.1.1", |endpoint| {
                endpoint.state = if leaving { EndpointState::Draining } else { EndpointState::Ready };
                (endpoint.drain, endpoint.left_at) = (drain, leaving.then_some(Millis(now)));
            })
        };
        put(&mut runner, two(false));
        put(&mut runner, tcp("other").vip("10.96.0.2", 80).to(&["10.2.1.1"]));
        // Which of the flows is whose.
        let open = |to: &str, port| {
            let to = (ip(to), port).into();
            lab.client.run(move || {
                (0..12)
                    .map(|_| {
                        let mut flow = open(None, to).unwrap();
                        let who = say(&mut flow);
                        (flow, who.unwrap())
                    })
                    .collect::<Vec<_>>()
            })
        };
        fn say(flow: &mut std::net::TcpStream) -> std::io::Result<String> {
            flow.set_read_timeout(Some(SOON))?;
            flow.write_all(b"x")?;
            let mut answer = [0; 100];
            let length = flow.read(&mut answer)?;
            Ok(String::from_utf8_lossy(&answer[..length]).split(' ').next().unwrap().to_owned())
        }
        let mut flows = open("10.96.0.1", 80);
        flows.extend(open(Lab::NODE, 30080));
        let mut others = open("10.96.0.2", 80);
        put(&mut runner, two(true));
        wanted_is_in_kernel(&mut runner);
        for (flow, who) in flows.iter_mut().chain(&mut others) {
            assert_eq!(say(flow).unwrap(), *who, "before the end");
        }
        std::thread::sleep(Duration::from_millis(3200));
        for (flow, who) in &mut flows {
            match say(flow) {
                Ok(now) => assert!(now == *who && who != "10.2.1.1", "{now}"),
                Err(error) => {
                    assert!(
                        error.kind() == std::io::ErrorKind::ConnectionReset && who == "10.2.1.1",
                        "{who} {flow:?}: {error}"
                    )
                }
            }
        }
        assert!(others.iter_mut().all(|(flow, _)| say(flow).is_ok()), "another service's flows to the same endpoint");
        put(&mut runner, two(false));
        wanted_is_in_kernel(&mut runner);
        assert_eq!(lab.client.spread("10.96.0.1", 80, 20).len(), 2, "it is back");
    });
}
