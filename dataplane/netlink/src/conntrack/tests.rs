//! Forgetting flows against the real kernel: exactly those asked for, by both ways.

use std::net::UdpSocket;

use super::*;
use crate::{nft, testing};

const UDP: u8 = 17;

/// One rule that uses connection tracking, or the kernel tracks nothing.
fn track() -> nft::Nft {
    let mut nft = nft::Nft::open().unwrap();
    let mut batch = nft::Batch::new("track");
    batch.add_table(nft::TableFlags::default());
    let hook = nft::Hook { kind: nft::ChainKind::Filter, point: nft::HookPoint::Output, priority: 0 };
    batch.add_chain(&nft::Chain { name: "out".into(), hook: Some(hook) });
    batch.add_rule("out", &[nft::Expr::Ct { key: nft::CtKey::State, direction: None, to: nft::Reg(0) }], None);
    nft.commit(&mut batch).unwrap();
    nft
}

/// Flows from one socket to these ports of a loopback address.
fn flows_to(address: &str, ports: &[u16]) {
    let client = UdpSocket::bind((address, 0)).unwrap();
    for &port in ports {
        let _server = UdpSocket::bind((address, port)).unwrap();
        client.send_to(b"x", (address, port)).unwrap();
    }
}

fn ports_left(conntrack: &mut Conntrack, family: IpFamily) -> Vec<u16> {
    let flows = conntrack.flows(family).unwrap();
    let mut ports: Vec<_> =
        flows.iter().filter(|flow| flow.original.protocol == UDP).map(|flow| flow.original.destination_port).collect();
    ports.sort_unstable();
    ports
}

fn filter(address: &str, port: u16) -> FlowFilter {
    let address: IpAddr = address.parse().unwrap();
    FlowFilter {
        family: family_of(address),
        protocol: UDP,
        destination: Some(address),
        port,
        reply_source: Some((address, port)),
    }
}

fn deletes_exactly_what_matches(open: impl Fn() -> Conntrack) {
    let _nft = track();
    let mut conntrack = open();
    flows_to("127.0.0.1", &[53, 54, 55, 56]);
    flows_to("::1", &[53, 54]);
    let other_answers = FlowFilter { reply_source: Some(([127, 0, 0, 9].into(), 55)), ..filter("127.0.0.1", 55) };
    let anywhere = FlowFilter { destination: None, reply_source: None, ..filter("127.0.0.1", 56) };
    let tcp = FlowFilter { protocol: 6, ..filter("127.0.0.1", 54) };
    conntrack.delete(&[filter("127.0.0.1", 53), other_answers, anywhere, tcp, filter("::1", 54)]).unwrap();
    assert_eq!(ports_left(&mut conntrack, IpFamily::V4), [54, 55]);
    assert_eq!(ports_left(&mut conntrack, IpFamily::V6), [53]);
    conntrack.delete(&[filter("127.0.0.1", 53)]).unwrap();
}

#[test]
fn the_kernel_forgets_exactly_what_matches() {
    testing::in_namespace(|| deletes_exactly_what_matches(|| Conntrack::open().unwrap()));
}

#[test]
fn a_walk_forgets_exactly_what_matches() {
    testing::in_namespace(|| deletes_exactly_what_matches(|| Conntrack::open().unwrap().without_kernel_filters()));
}

#[test]
fn many_filters_are_one_walk() {
    testing::in_namespace(|| {
        let _nft = track();
        let mut conntrack = Conntrack::open().unwrap();
        let ports: Vec<_> = (1000..1100).collect();
        flows_to("127.0.0.1", &ports);
        let filters: Vec<_> = (1000..1099).map(|port| filter("127.0.0.1", port)).collect();
        conntrack.delete(&filters).unwrap();
        assert_eq!(ports_left(&mut conntrack, IpFamily::V4), [1099]);
    });
}

#[test]
fn flows_of_other_zones_are_not_read() {
    let mut encoder = Encoder::new();
    let tuple = Tuple {
        protocol: UDP,
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        source_port: 1,
        destination_port: 2,
    };
    tuple.encode(&mut encoder, attribute::TUPLE_ORIGINAL);
    tuple.encode(&mut encoder, attribute::TUPLE_REPLY);
    assert_eq!(parse_flow(Attrs::new(encoder.as_slice())).unwrap().original, tuple);
    encoder.be16(attribute::ZONE, 7);
    assert_eq!(parse_flow(Attrs::new(encoder.as_slice())), None);
}
