//! What the guard does to real packets: from another host and from the node itself, IPv4 and IPv6.

use std::{fs, net::TcpStream};

use vipd_engine::{InvalidPackets, Node, Place};
use vipd_model::{Family, Protocol};
use vipd_netlink::testing::{in_namespace, run};
use vipd_nftables::Guard;

use crate::{common::*, packets::*};

const TCP: Protocol = Protocol::Tcp;
const UDP: Protocol = Protocol::Udp;
/// The stand-in for the proxy listens here.
const PROXY: u16 = 15001;
#[test]
fn captured_tcp_comes_to_the_proxy_with_its_original_destination() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        tcp_proxy(PROXY);
        let mut runner = started(Guard::open().unwrap(), node(&[]));
        put(
            &mut runner,
            "web",
            vec![
                capture(vip("10.96.0.1", TCP, 80), PROXY),
                capture(vip("fd96::1", TCP, 80), PROXY),
                capture(vip(Client::NODE_V4, TCP, 8080), PROXY),
            ],
        );
        for to in [at("10.96.0.1", 80), at("fd96::1", 80), at(Client::NODE_V4, 8080)] {
            assert_eq!(client.run(move || connect(to)), Fate::Served(to), "from another host");
            assert_eq!(connect(to), Fate::Served(to), "from the node");
        }
    });
}

#[test]
fn captured_udp_is_answered_from_the_address_that_was_asked() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        udp_proxy(20053);
        let mut runner = started(Guard::open().unwrap(), node(&[]));
        put(
            &mut runner,
            "dns",
            vec![
                capture(vip("10.96.0.1", UDP, 53), 20053),
                capture(vip("fd96::1", UDP, 53), 20053),
                capture(node_port(Family::V4, UDP, 30053), 20053),
                capture(node_port(Family::V6, UDP, 30053), 20053),
            ],
        );
        let outside = [at("10.96.0.1", 53), at("fd96::1", 53), at(Client::NODE_V4, 30053), at(Client::NODE_V6, 30053)];
        for to in outside {
            assert_eq!(client.run(move || ask_once(to)), Fate::Served(to), "from another host");
            assert_eq!(ask_once(to), Fate::Served(to), "from the node");
        }
        for to in [at("127.0.0.1", 30053), at("::1", 30053)] {
            assert_eq!(ask_once(to), Fate::Served(to), "on loopback");
        }
    });
}

#[test]
fn a_node_port_is_served_on_every_address_of_the_node_loopback_included() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        tcp_proxy(PROXY);
        run("ip", &["addr", "add", "198.51.100.7/32", "dev", "lo"]);
        let mut runner = started(Guard::open().unwrap(), node(&[]));
        let mut only_loopback = node_port(Family::V4, TCP, 30081);
        only_loopback.place = Place::Node { family: Family::V4, addresses: vec![ip("127.0.0.1")] };
        put(
            &mut runner,
            "web",
            vec![
                capture(node_port(Family::V4, TCP, 30080), PROXY),
                capture(node_port(Family::V6, TCP, 30080), PROXY),
                capture(only_loopback, PROXY),
                reject(node_port(Family::V4, TCP, 30082)),
            ],
        );
        for address in [Client::NODE_V4, Client::NODE_V6, "198.51.100.7"] {
            let to = at(address, 30080);
            assert_eq!(client.run(move || connect(to)), Fate::Served(to), "from another host");
            assert_eq!(connect(to), Fate::Served(to), "from the node");
        }
        for address in ["127.0.0.1", "127.7.7.7", "::1"] {
            assert_eq!(connect(at(address, 30080)), Fate::Served(at(address, 30080)), "on loopback");
        }
        let somewhere_else = at("10.96.0.1", 30080);
        assert_ne!(client.run(move || connect(somewhere_else)), Fate::Served(somewhere_else), "not the node's address");

        assert_eq!(connect(at("127.0.0.1", 30081)), Fate::Served(at("127.0.0.1", 30081)));
        let to = at(Client::NODE_V4, 30081);
        assert_eq!(client.run(move || connect(to)), Fate::Refused, "not selected, and nobody listens there");
        let to = at(Client::NODE_V4, 30082);
        assert_eq!(client.run(move || connect(to)), Fate::Refused);
        assert_eq!(connect(at("127.0.0.1", 30082)), Fate::Refused);
    });
}

#[test]
fn what_has_no_endpoints_is_refused_at_once_or_met_with_silence() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        let mut runner = started(Guard::open().unwrap(), node(&[]));
        let both = |address: &str| [vip(address, TCP, 80), vip(address, UDP, 53)];
        put(&mut runner, "refused", [both("10.96.0.2"), both("fd96::2")].concat().into_iter().map(reject).collect());
        put(&mut runner, "silent", [both("10.96.0.3"), both("fd96::3")].concat().into_iter().map(silence).collect());
        for address in ["10.96.0.2", "fd96::2"] {
            assert_eq!(client.run(move || connect(at(address, 80))), Fate::Refused);
            assert_eq!(client.run(move || ask_once(at(address, 53))), Fate::Refused);
            assert_eq!(connect(at(address, 80)), Fate::Refused, "from the node");
            assert_eq!(ask_once(at(address, 53)), Fate::Refused, "from the node");
        }
        for address in ["10.96.0.3", "fd96::3"] {
            assert_eq!(client.run(move || connect(at(address, 80))), Fate::Silence);
            assert_eq!(client.run(move || ask_once(at(address, 53))), Fate::Silence);
        }
    });
}

#[test]
fn only_listed_sources_come_to_a_ranged_frontend() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        tcp_proxy(PROXY);
        udp_proxy(20053);
        let mut runner = started(Guard::open().unwrap(), node(&[]));
        let ranged = |spot: vipd_engine::guard::Spot, port, sources: &[&str]| {
            vec![capture(spot.clone(), port), allow(spot, sources)]
        };
        put(&mut runner, "net", ranged(vip("10.96.0.1", TCP, 80), PROXY, &["10.1.0.0/30", "192.0.2.0/24"]));
        put(&mut runner, "host", ranged(vip("10.96.0.2", TCP, 80), PROXY, &["192.0.2.7/32", "10.1.0.2/32"]));
        put(&mut runner, "other", ranged(vip("10.96.0.3", TCP, 80), PROXY, &["192.0.2.0/24"]));
        put(&mut runner, "nobody", ranged(vip("10.96.0.4", TCP, 80), PROXY, &[]));
        put(&mut runner, "udp", ranged(vip("10.96.0.3", UDP, 53), 20053, &["192.0.2.0/24"]));
        put(&mut runner, "net6", ranged(vip("fd96::1", TCP, 80), PROXY, &["fd01::/64"]));
        put(&mut runner, "other6", ranged(vip("fd96::3", TCP, 80), PROXY, &["fd02::/64"]));
        put(&mut runner, "node", ranged(node_port(Family::V4, TCP, 30080), PROXY, &["10.1.0.2/32"]));
        put(
            &mut runner,
            "empty",
            vec![reject(vip("10.96.0.5", TCP, 80)), allow(vip("10.96.0.5", TCP, 80), &["192.0.2.0/24"])],
        );

        let connect_from_client = |address: &str, port| {
            let to = at(address, port);
            client.run(move || connect(to))
        };
        for (address, port) in [("10.96.0.1", 80), ("10.96.0.2", 80), ("fd96::1", 80), (Client::NODE_V4, 30080)] {
            assert_eq!(connect_from_client(address, port), Fate::Served(at(address, port)));
        }
        for address in ["10.96.0.3", "10.96.0.4", "fd96::3"] {
            assert_eq!(connect_from_client(address, 80), Fate::Silence);
            assert_eq!(connect(at(address, 80)), Fate::Silence, "the node itself is no exception");
        }
        assert_eq!(client.run(|| ask_once(at("10.96.0.3", 53))), Fate::Silence);
        assert_eq!(connect_from_client("10.96.0.5", 80), Fate::Silence, "dropped before any other decision");
        assert_eq!(connect(at("10.96.0.1", 80)), Fate::Served(at("10.96.0.1", 80)), "10.1.0.1 is in 10.1.0.0/30");
        assert_eq!(connect(at("10.96.0.2", 80)), Fate::Silence);

        let (opened, port) = (vip("10.96.0.3", TCP, 80), 80);
        put(&mut runner, "other", vec![capture(opened, PROXY)]);
        assert_eq!(connect_from_client("10.96.0.3", port), Fate::Served(at("10.96.0.3", port)));
    });
}

#[test]
fn a_virtual_range_refuses_what_nobody_serves_and_other_addresses_are_left_alone() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        tcp_proxy(PROXY);
        let ranges = ["10.96.0.0/17", "10.96.0.0/24", "fd96::/80"];
        let mut runner = started(Guard::open().unwrap(), node(&ranges));
        put(
            &mut runner,
            "web",
            vec![capture(vip("10.96.0.1", TCP, 80), PROXY), capture(vip("fd96::1", TCP, 80), PROXY)],
        );
        for address in ["10.96.0.1", "fd96::1"] {
            let to = at(address, 80);
            assert_eq!(client.run(move || connect(to)), Fate::Served(to), "a frontend inside the range");
        }
        for address in ["10.96.0.1", "10.96.77.1", "fd96::1", "fd96::7"] {
            assert_eq!(client.run(move || connect(at(address, 81))), Fate::Refused);
            assert_eq!(client.run(move || ask_once(at(address, 81))), Fate::Refused);
            assert_eq!(connect(at(address, 81)), Fate::Refused, "from the node");
        }
        assert!(client.run(|| echo_request_is_refused("10.96.0.1")));
        assert_eq!(client.run(|| connect(at("10.96.200.1", 81))), Fate::Silence, "outside of the ranges");

        runner.set_node(node(&["10.96.0.0/24"])).unwrap();
        assert_eq!(client.run(|| connect(at("10.96.0.9", 81))), Fate::Refused, "the narrower range stays");
        assert_eq!(client.run(|| connect(at("10.96.77.1", 81))), Fate::Silence);
    });
}

/// After capture a packet is addressed to the node: what is refused there is no concern of it.
#[test]
fn captured_flows_are_not_refused_for_the_address_that_they_are_translated_to() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        tcp_proxy(PROXY);
        let mut runner = started(Guard::open().unwrap(), node(&["10.1.0.1/32"]));
        put(&mut runner, "web", vec![capture(vip("10.96.0.1", TCP, 80), PROXY)]);
        put(&mut runner, "other", vec![silence(vip(Client::NODE_V4, TCP, PROXY))]);
        let to = at("10.96.0.1", 80);
        assert_eq!(client.run(move || connect(to)), Fate::Served(to));
        assert_eq!(client.run(|| connect(at(Client::NODE_V4, 81))), Fate::Refused);
    });
}

#[test]
fn the_proxy_s_own_ports_are_closed_to_other_hosts() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        tcp_proxy(PROXY);
        udp_proxy(20053);
        let mut runner = started(Guard::open().unwrap(), node(&[]));
        let direct = [at(Client::NODE_V4, PROXY), at(Client::NODE_V6, PROXY)];
        for to in direct {
            assert_ne!(client.run(move || connect(to)), Fate::Refused, "nothing is captured yet");
        }
        put(
            &mut runner,
            "web",
            vec![capture(vip("10.96.0.1", TCP, 80), PROXY), capture(vip("10.96.0.1", UDP, 53), 20053)],
        );
        for to in direct {
            assert_eq!(client.run(move || connect(to)), Fate::Refused);
        }
        assert_eq!(client.run(|| ask_once(at(Client::NODE_V4, 20053))), Fate::Refused);
        let to = at("10.96.0.1", 80);
        assert_eq!(client.run(move || connect(to)), Fate::Served(to));
    });
}

#[test]
fn connections_live_through_a_flush_and_its_repair() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        tcp_proxy(PROXY);
        let mut runner = started(Guard::open_without_owner().unwrap(), node(&["10.96.0.0/16"]));
        put(&mut runner, "web", vec![capture(vip("10.96.0.1", TCP, 80), PROXY)]);
        runner.release().unwrap();
        let to = at("10.96.0.1", 80);
        let stream = client.run(move || {
            let mut stream = TcpStream::connect(to).unwrap();
            told(&mut stream).unwrap();
            stream
        });
        run("nft", &["flush", "ruleset"]);
        assert!(!runner.check().unwrap().is_empty());
        runner.repair().outcomes.into_iter().for_each(|(_, outcome)| outcome.unwrap());
        assert!(echoes(stream));
        assert_eq!(client.run(move || connect(to)), Fate::Served(to));
    });
}

/// The anchor alone keeps them: the main table goes and comes, as it does when an engine is switched.
#[test]
fn connections_live_while_only_the_anchor_is_left() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        tcp_proxy(PROXY);
        let mut runner = started(Guard::open_without_owner().unwrap(), node(&[]));
        put(&mut runner, "web", vec![capture(vip("10.96.0.1", TCP, 80), PROXY)]);
        let stream = client.run(|| {
            let mut stream = TcpStream::connect(at("10.96.0.1", 80)).unwrap();
            told(&mut stream).unwrap();
            stream
        });
        run("nft", &["delete", "table", "inet", "vipd"]);
        assert!(echoes(stream));
    });
}

#[test]
fn no_connection_fails_while_a_frontend_moves_between_ports_of_the_proxy() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        let ports = [PROXY, PROXY + 1];
        ports.into_iter().for_each(tcp_proxy);
        let mut runner = started(Guard::open().unwrap(), node(&["10.96.0.0/16"]));
        let to = at("10.96.0.1", 80);
        put(&mut runner, "web", vec![capture(vip("10.96.0.1", TCP, 80), PROXY)]);
        let fates =
            client.start(move || (0..500).map(|_| connect(to)).filter(|fate| *fate != Fate::Served(to)).count());
        let mut rounds = 0;
        let failed = loop {
            put(&mut runner, "web", vec![capture(vip("10.96.0.1", TCP, 80), ports[rounds % 2])]);
            rounds += 1;
            if let Ok(failed) = fates.try_recv() {
                break failed;
            }
        };
        assert_eq!(failed, 0);
        assert!(rounds > 50, "{rounds} changes during 500 connections prove little");
    });
}

/// One socket, as resolvers have it: pinned by connection tracking to what was true at its first packet.
#[test]
fn a_udp_client_follows_once_its_stale_flow_is_forgotten() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        udp_proxy(20053);
        udp_proxy(20054);
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        let mut runner = started(Guard::open().unwrap(), node(&[]));
        for address in ["10.96.0.1", "fd96::1"] {
            let to = at(address, 53);
            let socket = client.run(move || udp_client(to));
            assert_eq!(ask(&socket), Fate::Silence, "{address}: nobody serves it yet, it is forwarded");
            forget(&put(&mut runner, "dns", vec![capture(vip(address, UDP, 53), 20053)]));
            assert_eq!(ask(&socket), Fate::Served(to), "{address}: a frontend has come");
            forget(&put(&mut runner, "dns", vec![reject(vip(address, UDP, 53))]));
            assert_eq!(ask(&socket), Fate::Refused, "{address}: its endpoints have gone");
            put(&mut runner, "dns", vec![capture(vip(address, UDP, 53), 20054)]);
            assert_eq!(ask(&socket), Fate::Served(to), "{address}: and come back");
        }
    });
}

/// The segment that a client of a forgotten connection might send; connection tracking calls it INVALID, and a TCP stack
/// that it reaches answers with a reset.
#[test]
fn invalid_packets_to_a_frontend_are_dropped_unless_configured_otherwise() {
    in_namespace(|| {
        let client = Client::beside_this_node();
        run("ip", &["addr", "add", "10.96.0.1/32", "dev", "lo"]);
        let off = Node { invalid_packets: InvalidPackets::Off, ..node(&[]) };
        let mut runner = started(Guard::open().unwrap(), off);
        put(&mut runner, "web", vec![capture(vip("10.96.0.1", TCP, 80), PROXY)]);
        assert!(client.run(|| lone_fin_is_answered("10.96.0.1")), "left alone");
        runner.set_node(node(&[])).unwrap();
        assert!(!client.run(|| lone_fin_is_answered("10.96.0.1")));
        assert!(client.run(|| lone_fin_is_answered(Client::NODE_V4)), "not a frontend: none of our business");
    });
}
