//! The guard: capture, refusals, source ranges, virtual ranges, what must not reach the proxy.

use vipd_engine::guard::{self, Spot};
use vipd_engine::{FlowFilter, GuardEntry, GuardInput, InvalidPackets, Node, Runner, Steps as _};
use vipd_iptables::{Backend, Guard};
use vipd_model::service::NoEndpoints;
use vipd_model::{Family, PortRange, Protocol, ServiceKey};
use vipd_netlink::testing::run;

use crate::kit::{node, on_both, options};
use crate::lab::*;

const TCP: Protocol = Protocol::Tcp;
const UDP: Protocol = Protocol::Udp;
/// The stand-in for the proxy listens here.
const PROXY: u16 = 15001;

fn vip(address: &str, protocol: Protocol, port: u16) -> Spot {
    Spot { place: guard::Place::Vip(ip(address)), protocol, ports: PortRange::one(port) }
}

fn node_port(family: Family, protocol: Protocol, port: u16) -> Spot {
    Spot { place: guard::Place::Node { family, addresses: Vec::new() }, protocol, ports: PortRange::one(port) }
}

fn capture(spot: Spot, port: u16) -> GuardEntry {
    GuardEntry::Capture { spot, port }
}

fn allow(spot: Spot, sources: &[&str]) -> GuardEntry {
    GuardEntry::Allow { spot, sources: sources.iter().map(|source| source.parse().unwrap()).collect() }
}

fn refuse(spot: Spot, how: NoEndpoints) -> GuardEntry {
    GuardEntry::Refuse { spot, how }
}

fn started(backend: Backend, ranges: &[&str]) -> Runner<Guard> {
    let mut runner = Runner::start(Guard::open(&options(backend)).unwrap()).unwrap();
    runner.set_node(with_ranges(ranges)).unwrap();
    runner.release().unwrap();
    runner
}

fn with_ranges(ranges: &[&str]) -> Node {
    let mut node = node();
    node.network.virtual_ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
    node
}

fn put(runner: &mut Runner<Guard>, name: &str, mut entries: Vec<GuardEntry>) -> Vec<FlowFilter> {
    entries.sort();
    let key = ServiceKey::new("test", name).unwrap();
    let input = (!entries.is_empty()).then(|| GuardInput { key: key.clone(), entries });
    let made = runner.make(vec![(key.clone(), input)]);
    made.outcomes.into_iter().for_each(|(_, outcome)| outcome.unwrap());
    let finished = runner.finish(&[key]);
    finished.outcomes.into_iter().for_each(|(_, outcome)| outcome.unwrap());
    let drift = runner.check().unwrap();
    assert!(drift.is_empty(), "{drift:#?}");
    made.stale.into_iter().chain(finished.stale).collect()
}

/// The proxy's own addresses: where REDIRECT sends to.
fn proxy(port: u16) {
    for address in ["127.0.0.1", "::1", "10.1.0.1", "fd01::1", "10.2.0.1", "fd02::1"] {
        serve(at(address, port));
    }
}

fn is_captured(fate: &Fate) -> bool {
    fate.by().is_some_and(|by| by.port() == PROXY)
}

#[test]
fn captured_flows_come_to_the_proxy_from_everywhere() {
    on_both(|backend| {
        let lab = Lab::new();
        proxy(PROXY);
        let mut runner = started(backend, &[]);
        for protocol in [TCP, UDP] {
            let mut entries: Vec<GuardEntry> =
                Family::ALL.map(|f| capture(node_port(f, protocol, 30080), PROXY)).into();
            entries.extend(["10.96.0.1", "fd96::1"].map(|address| capture(vip(address, protocol, 80), PROXY)));
            put(&mut runner, &protocol.to_string(), entries);
        }
        for to in [at("10.96.0.1", 80), at("fd96::1", 80), at(Lab::NODE_V4, 30080), at(Lab::NODE_V6, 30080)] {
            let fates = [lab.client.connect(to), lab.client.ask(to), connect(to), ask(to)];
            assert!(fates.iter().all(is_captured), "{to}: {fates:?}");
        }
        for to in [at("127.0.0.1", 30080), at("::1", 30080)] {
            assert!(is_captured(&connect(to)), "on loopback");
        }
        assert_eq!(lab.client.connect(at(Lab::NODE_V4, PROXY)), Fate::Refused, "straight to the proxy");
        assert_eq!(lab.client.ask(at(Lab::NODE_V6, PROXY)), Fate::Refused, "straight to the proxy");
        assert!(is_captured(&connect(at(Lab::NODE_V4, PROXY))), "over loopback the proxy is asked by its own host");
        let stale = put(&mut runner, "udp", vec![]);
        assert!(stale.iter().any(|flow| flow.destination == Some(ip("10.96.0.1")) && flow.reply_source.is_none()));
        assert_eq!(lab.client.ask(at("10.96.0.1", 80)).by(), None);
        assert!(is_captured(&lab.client.connect(at("10.96.0.1", 80))), "TCP is another frontend");
    });
}

#[test]
fn refusals_and_source_ranges() {
    on_both(|backend| {
        let lab = Lab::new();
        proxy(PROXY);
        let mut runner = started(backend, &[]);
        put(
            &mut runner,
            "refused",
            vec![
                refuse(vip("10.96.0.2", TCP, 80), NoEndpoints::Reject),
                refuse(vip("10.96.0.2", UDP, 80), NoEndpoints::Reject),
                refuse(vip("fd96::2", TCP, 80), NoEndpoints::Reject),
                refuse(vip("10.96.0.3", TCP, 80), NoEndpoints::Drop),
                refuse(node_port(Family::V4, TCP, 30081), NoEndpoints::Reject),
            ],
        );
        for to in [at("10.96.0.2", 80), at("fd96::2", 80), at(Lab::NODE_V4, 30081)] {
            assert_eq!(lab.client.connect(to), Fate::Refused, "{to}");
            assert_eq!(connect(to), Fate::Refused, "{to} from the node");
        }
        assert_eq!(lab.client.ask(at("10.96.0.2", 80)), Fate::Refused);
        assert_eq!(lab.client.connect(at("10.96.0.3", 80)), Fate::Silence);
        let spots = [vip("10.96.0.4", TCP, 80), vip("10.96.0.5", TCP, 80), vip("10.96.0.6", TCP, 80)];
        let [ours, theirs, refused] = spots;
        put(
            &mut runner,
            "ranged",
            vec![
                capture(ours.clone(), PROXY),
                allow(ours, &["10.1.0.0/24"]),
                capture(theirs.clone(), PROXY),
                allow(theirs, &["192.0.2.0/24"]),
                refuse(refused.clone(), NoEndpoints::Reject),
                allow(refused, &["192.0.2.0/24"]),
            ],
        );
        assert!(is_captured(&lab.client.connect(at("10.96.0.4", 80))));
        assert_eq!(lab.client.connect(at("10.96.0.5", 80)), Fate::Silence);
        assert_eq!(connect(at("10.96.0.5", 80)), Fate::Silence, "the node itself");
        assert_eq!(lab.client.connect(at("10.96.0.6", 80)), Fate::Silence, "before any other decision");
    });
}

#[test]
fn virtual_ranges_refuse_what_nobody_serves() {
    on_both(|backend| {
        let lab = Lab::new();
        proxy(PROXY);
        let mut runner = started(backend, &["10.96.0.0/16", "fd96::/64"]);
        put(
            &mut runner,
            "web",
            vec![capture(vip("10.96.0.1", TCP, 80), PROXY), capture(vip("fd96::1", TCP, 80), PROXY)],
        );
        for (served, unserved) in [("10.96.0.1", "10.96.7.7"), ("fd96::1", "fd96::77")] {
            assert!(is_captured(&lab.client.connect(at(served, 80))));
            for to in [at(served, 22), at(unserved, 80)] {
                assert_eq!(lab.client.connect(to), Fate::Refused, "{to}");
                assert_eq!(lab.client.ask(to), Fate::Refused, "{to}");
                assert_eq!(connect(to), Fate::Refused, "{to} from the node");
            }
        }
        // Others' ACCEPT in FORWARD comes after ours.
        run(&format!("iptables-{backend}"), &["-P", "FORWARD", "DROP"]);
        assert_eq!(lab.client.connect(at("10.96.0.1", 22)), Fate::Refused);
        runner.set_node(Node { invalid_packets: InvalidPackets::Off, ..with_ranges(&[]) }).unwrap();
        assert!(runner.check().unwrap().is_empty());
    });
}

#[test]
fn the_guard_stands_beside_the_engine_and_goes_alone() {
    on_both(|backend| {
        let lab = Lab::new();
        proxy(PROXY);
        let mut guard = started(backend, &["10.96.0.0/16"]);
        put(&mut guard, "proxied", vec![capture(vip("10.96.0.9", TCP, 80), PROXY)]);
        let mut engine = crate::kit::started(backend, node());
        let web = crate::kit::spec("web", TCP).vip("10.96.0.1", 80).to(&[11, 12]);
        let empty = crate::kit::spec("empty", TCP).vip("10.96.0.2", 80);
        crate::kit::put(&mut engine, &[&web, &empty]);
        let all_is_well = || {
            assert!(lab.client.connect(at("10.96.0.1", 80)).by().is_some());
            assert_eq!(lab.client.connect(at("10.96.0.2", 80)), Fate::Refused);
        };
        all_is_well();
        assert!(is_captured(&lab.client.connect(at("10.96.0.9", 80))));
        assert_eq!(lab.client.connect(at("10.96.0.1", 22)), Fate::Refused);
        assert!(guard.check().unwrap().is_empty());
        crate::kit::settled(&mut engine);
        guard.steps_mut().cleanup().unwrap();
        all_is_well();
        crate::kit::settled(&mut engine);
        engine.steps_mut().cleanup().unwrap();
        let saved = run(&format!("iptables-{backend}-save"), &[]);
        assert!(!saved.contains("VIPD"), "{saved}");
    });
}

/// Out of window, or of a flow that was forgotten: a reset could end a healthy connection.
#[test]
fn invalid_packets_to_a_frontend_are_met_with_silence() {
    on_both(|backend| {
        let lab = Lab::new();
        // The VIP is the node's own, so that it would answer.
        run("ip", &["addr", "add", "10.96.0.1/32", "dev", "lo"]);
        std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0").unwrap();
        let mut runner = started(backend, &[]);
        put(&mut runner, "web", vec![capture(vip("10.96.0.1", TCP, 80), PROXY)]);
        assert!(!lab.client.run(|| lone_fin_is_answered("10.96.0.1")), "to the frontend");
        assert!(lab.client.run(|| lone_fin_is_answered(Lab::NODE_V4)), "elsewhere");
        runner.set_node(Node { invalid_packets: InvalidPackets::Off, ..node() }).unwrap();
        assert!(lab.client.run(|| lone_fin_is_answered("10.96.0.1")), "left alone");
    });
}

/// Sends a FIN of no connection from the client to port 80.
fn lone_fin_is_answered(to: &str) -> bool {
    lone_fin_is_answered_to(Lab::CLIENT_V4, to)
}

/// The same from another host's address.
pub(crate) fn lone_fin_is_answered_to(from: &str, to: &str) -> bool {
    use std::io::Read as _;
    use std::net::{IpAddr, SocketAddr};
    let (IpAddr::V4(from), IpAddr::V4(to)) = (ip(from), ip(to)) else { panic!("IPv4 only") };
    let mut segment = Vec::new();
    segment.extend(4000u16.to_be_bytes());
    segment.extend(80u16.to_be_bytes());
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, 1, 0xff, 0xff, 0, 0, 0, 0]);
    let pseudo = [&from.octets()[..], &to.octets()[..], &[0, 6, 0, 20], &segment].concat();
    // RFC 1071.
    let sum: u32 = pseudo.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    segment[16..18].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(socket2::Protocol::TCP)).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.send_to(&segment, &SocketAddr::new(to.into(), 0).into()).unwrap();
    (&socket).read(&mut [0; 256]).is_ok()
}
