//! The UDP data path on loopback, through real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod kit;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use kit::*;
use vipd_model::{EndpointState, Place, Protocol};
use vipd_userspace::{Admission, Door, Proxy, ProxyConfig};

/// A back end that answers each datagram with its name, then the datagram.
fn named_udp(name: &'static str) -> SocketAddr {
    named_udp_on(Ipv4Addr::LOCALHOST.into(), name)
}

fn named_udp_on(address: IpAddr, name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    let at = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
            let mut answer = name.as_bytes().to_vec();
            answer.extend_from_slice(&buffer[..length]);
            answer.truncate(65_507);
            let _ = socket.send_to(&answer, from);
        }
    });
    at
}

fn free_udp_address() -> SocketAddr {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn serve_udp(proxy: &Proxy, build: &Build) {
    proxy.set(build.selected());
    let vipd_model::At::Address(address) = build.definition.frontends[0].at else { return };
    let at = SocketAddr::new(address, build.definition.frontends[0].ports.first);
    proxy.open(Door::Udp(at), &Admission::Everybody).unwrap();
}

fn client(to: SocketAddr) -> UdpSocket {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn ask_udp(client: &UdpSocket, text: &str) -> std::io::Result<String> {
    client.send(text.as_bytes())?;
    let mut buffer = vec![0; 65_536];
    let length = client.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

fn silent(client: &UdpSocket, text: &str) -> bool {
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let answer = ask_udp(client, text);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    answer.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn clients_are_spread_and_each_stays_where_it_is() {
    let proxy = proxy();
    let vip = free_udp_address();
    serve_udp(&proxy, &Build::new("dns", Protocol::Udp, vip, &[named_udp("a"), named_udp("b")]));
    let clients: Vec<UdpSocket> = (0..10).map(|_| client(vip)).collect();
    let first: Vec<String> = clients.iter().map(|client| ask_udp(client, "").unwrap()).collect();
    assert_eq!(first.iter().filter(|name| *name == "a").count(), 5);
    for _ in 0..3 {
        let again: Vec<String> = clients.iter().map(|client| ask_udp(client, "").unwrap()).collect();
        assert_eq!(again, first);
    }
    let counted = proxy.statistics(&[])[0].traffic;
    assert_eq!((counted.connections, counted.active, counted.packets_in, counted.packets_out), (10, 10, 40, 40));
}

#[test]
fn the_largest_datagram_and_the_empty_one_pass_in_both_families() {
    let proxy = proxy();
    let six = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), free_udp_address().port());
    let four = free_udp_address();
    for (vip, endpoint) in [(four, named_udp("")), (six, named_udp_on(Ipv6Addr::LOCALHOST.into(), ""))] {
        serve_udp(&proxy, &Build::new(&vip.to_string(), Protocol::Udp, vip, &[endpoint]));
        let client = client(vip);
        for size in [1, 0, 1_472, 9_000, 65_507] {
            let sent: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            client.send(&sent).unwrap();
            let mut got = vec![0; 65_536];
            let length = client.recv(&mut got).unwrap();
            assert!(got[..length] == sent, "{vip}: {size} bytes");
        }
    }
}

#[test]
fn a_client_of_an_endpoint_that_refuses_gets_another_without_asking_again() {
    let proxy = proxy();
    let vip = free_udp_address();
    serve_udp(&proxy, &Build::new("dns", Protocol::Udp, vip, &[free_udp_address(), named_udp("alive ")]));
    for n in 0..10 {
        assert_eq!(ask_udp(&client(vip), &n.to_string()).unwrap(), format!("alive {n}"));
    }
    let counted = &proxy.statistics(&[])[0];
    assert!((1..=2).contains(&counted.retries), "the dead one is avoided: {} retries", counted.retries);
}

/// Cases 1, 10, 118 and 119, as they concern a proxy: a client that keeps its socket.
#[test]
fn flows_stay_at_a_draining_endpoint_and_are_cut_from_one_that_is_not_ready_or_gone() {
    let proxy = proxy();
    let (a, b) = (named_udp("a"), named_udp("b"));
    let vip = free_udp_address();
    let mut service = Build::new("dns", Protocol::Udp, vip, &[a, b]);
    serve_udp(&proxy, &service);
    let clients = [client(vip), client(vip)];
    let on_a = clients.iter().find(|client| ask_udp(client, "").unwrap() == "a").unwrap();
    service.endpoint(a).state = EndpointState::Draining;
    proxy.set(service.selected());
    assert_eq!(ask_udp(on_a, "").unwrap(), "a", "DRAINING keeps its flows");
    assert_eq!(ask_udp(&client(vip), "").unwrap(), "b", "and takes no new ones");
    service.endpoint(a).state = EndpointState::NotReady;
    proxy.set(service.selected());
    assert_eq!(ask_udp(on_a, "").unwrap(), "b", "NOT_READY loses them from the next datagram on");
    let c = named_udp("c");
    service.endpoints = Build::new("dns", Protocol::Udp, vip, &[c]).endpoints;
    proxy.set(service.selected());
    for client in &clients {
        assert_eq!(ask_udp(client, "").unwrap(), "c");
    }
    eventually("sessions of the old endpoints are gone", || proxy.statistics(&[])[0].traffic.active == 2);
}

#[test]
fn what_was_asked_before_the_endpoint_went_is_still_answered() {
    let proxy = proxy();
    let slow = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let vip = free_udp_address();
    let mut service = Build::new("dns", Protocol::Udp, vip, &[slow.local_addr().unwrap()]);
    serve_udp(&proxy, &service);
    let client = client(vip);
    client.send(b"?").unwrap();
    let (_, asker) = slow.recv_from(&mut [0; 1]).unwrap();
    service.endpoints = Build::new("dns", Protocol::Udp, vip, &[named_udp("new")]).endpoints;
    proxy.set(service.selected());
    slow.send_to(b"late", asker).unwrap();
    slow.send_to(b"unasked", asker).unwrap();
    let mut answer = [0; 16];
    let length = client.recv(&mut answer).unwrap();
    assert_eq!(&answer[..length], b"late");
    assert_eq!(ask_udp(&client, "").unwrap(), "new", "and nothing else of the old one");
}

#[test]
fn nothing_is_answered_for_a_service_that_is_gone_and_its_sessions_end() {
    let proxy = proxy();
    let vip = free_udp_address();
    let service = Build::new("dns", Protocol::Udp, vip, &[named_udp("a")]);
    serve_udp(&proxy, &service);
    let client = client(vip);
    assert_eq!(ask_udp(&client, "").unwrap(), "a");
    proxy.remove(&service.key);
    assert!(silent(&client, ""));
    proxy.close(&Door::Udp(vip));
    eventually("its descriptors are free", || proxy.totals().connections + proxy.totals().sessions == 0);
    assert_eq!(ask_udp(&client, "").unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_frontend_that_another_service_took_over_is_served_by_that_one() {
    let proxy = proxy();
    let vip = free_udp_address();
    serve_udp(&proxy, &Build::new("old", Protocol::Udp, vip, &[named_udp("old")]));
    let client = client(vip);
    assert_eq!(ask_udp(&client, "").unwrap(), "old");
    proxy.set(Build::new("new", Protocol::Udp, vip, &[named_udp("new")]).selected());
    proxy.set(Build::new("old", Protocol::Udp, free_udp_address(), &[named_udp("old")]).selected());
    assert_eq!(ask_udp(&client, "").unwrap(), "new");
}

#[test]
fn a_silent_session_ends_when_the_service_says_so() {
    let proxy = proxy();
    let vip = free_udp_address();
    let mut service = Build::new("dns", Protocol::Udp, vip, &[named_udp("a")]);
    service.definition.idle_timeout = Some(Duration::from_millis(800));
    serve_udp(&proxy, &service);
    let client = client(vip);
    for _ in 0..4 {
        assert_eq!(ask_udp(&client, "").unwrap(), "a");
        std::thread::sleep(Duration::from_millis(400));
    }
    assert_eq!(proxy.statistics(&[])[0].traffic.connections, 1, "traffic keeps it");
    eventually("it ends", || proxy.statistics(&[])[0].traffic.active == 0);
    assert_eq!(ask_udp(&client, "").unwrap(), "a");
    assert_eq!(proxy.statistics(&[])[0].traffic.connections, 2);
}

#[test]
fn beyond_the_session_limit_the_newest_are_dropped_and_counted() {
    let proxy = Proxy::start(&ProxyConfig { workers: 1, sessions: 5, ..ProxyConfig::default() }).unwrap();
    let vip = free_udp_address();
    let mut service = Build::new("dns", Protocol::Udp, vip, &[named_udp("a")]);
    service.definition.idle_timeout = Some(Duration::from_secs(1));
    serve_udp(&proxy, &service);
    let clients: Vec<UdpSocket> = (0..5).map(|_| client(vip)).collect();
    for client in &clients {
        assert_eq!(ask_udp(client, "").unwrap(), "a");
    }
    let sixth = client(vip);
    assert!(silent(&sixth, ""));
    assert_eq!(ask_udp(&clients[0], "").unwrap(), "a", "those that are there go on");
    let totals = proxy.totals();
    assert_eq!(totals.shed_sessions, 1);
    assert!(totals.shedding_for_ms.is_some());
    std::thread::sleep(Duration::from_millis(1_600));
    assert_eq!(ask_udp(&sixth, "").unwrap(), "a", "it recovers");
}

/// Case 111: what the guard redirects arrives at any address of the node; the answer must leave from that one.
#[test]
fn case_111_answers_leave_from_the_address_that_was_asked() {
    let proxy = proxy();
    let vip: SocketAddr = "10.96.0.10:53".parse().unwrap();
    proxy.set(Build::new("dns", Protocol::Udp, vip, &[named_udp("a")]).selected());
    let door = Door::CapturedUdp(Place::Address(vip.ip()), vip.port());
    let port = proxy.open(door, &Admission::Everybody).unwrap();
    for asked in ["127.0.0.1", "127.9.8.7"] {
        // A connected socket takes nothing from any other address.
        let client = client(SocketAddr::new(asked.parse().unwrap(), port));
        assert_eq!(ask_udp(&client, "").unwrap(), "a");
    }
}
