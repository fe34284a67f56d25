//! Bytes that a real kernel sent, decoded: no kernel needed. They are a little-endian machine's.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, outside of a #[test] function")]
#![cfg(target_endian = "little")]

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use ipvs_rs::attr::Attributes;
use ipvs_rs::message::{Content, messages};
use ipvs_rs::{
    Batch, Destination, DestinationEntry, Family, Forwarding, Info, Netmask, Request, Scheduler, Service, ServiceEntry,
    ServiceFlags, ServiceKey, Timeouts, Tunnel, TunnelFlags, TunnelKind, Version, Width,
};

const CAPTURE: &str = include_str!("captures/linux-6.1.txt");

/// A question and the datagrams that answered it.
struct Exchange {
    title: &'static str,
    request: Vec<u8>,
    answers: Vec<Vec<u8>>,
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn exchanges() -> Vec<Exchange> {
    let mut exchanges: Vec<Exchange> = Vec::new();
    for line in CAPTURE.lines() {
        if let Some(question) = line.strip_prefix("> ") {
            let (title, hex) = question.rsplit_once(' ').unwrap();
            exchanges.push(Exchange { title, request: unhex(hex), answers: Vec::new() });
        } else if let Some(answer) = line.strip_prefix("< ") {
            exchanges.last_mut().unwrap().answers.push(unhex(answer));
        }
    }
    assert_eq!(exchanges.len(), 16);
    exchanges
}

fn titled(title: &str) -> Vec<Exchange> {
    let found: Vec<_> = exchanges().into_iter().filter(|exchange| exchange.title == title).collect();
    assert!(!found.is_empty(), "{title}");
    found
}

/// Every command of the answers, by its number.
fn commands(exchange: &Exchange) -> Vec<(u8, Attributes<'_>)> {
    let all = exchange.answers.iter().flat_map(|datagram| messages(datagram)).map(Result::unwrap);
    all.filter_map(|message| match message.content().unwrap() {
        Content::Command { command, attributes } => Some((command, attributes)),
        Content::Done(answer) => {
            assert_eq!(answer.errno, 0);
            None
        }
        other => panic!("{other:?}"),
    })
    .collect()
}

fn nested(attributes: Attributes<'_>, kind: u16) -> Attributes<'_> {
    attributes.map(Result::unwrap).find(|attribute| attribute.kind == kind).unwrap().nested()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn mark(mark: u32, family: Family) -> ServiceKey {
    ServiceKey::fwmark(NonZeroU32::new(mark).unwrap(), family)
}

/// What `ipvsadm` had been told.
fn services() -> Vec<Service> {
    vec![
        Service::new(ServiceKey::sctp(at("10.96.0.10:3868")), Scheduler::ROUND_ROBIN),
        Service::new(ServiceKey::tcp(at("10.96.0.10:80")), Scheduler::WEIGHTED_ROUND_ROBIN)
            .persistent(Duration::from_secs(10_800), Netmask::Prefix(24)),
        Service::new(ServiceKey::udp(at("[fd96::10]:53")), Scheduler::SOURCE_HASHING)
            .with_flags(ServiceFlags::SH_FALLBACK | ServiceFlags::SH_PORT),
        Service::new(mark(7, Family::V4), Scheduler::LEAST_CONNECTION).with_flags(ServiceFlags::ONE_PACKET),
        Service::new(mark(8, Family::V6), Scheduler::MAGLEV_HASHING).with_flags(ServiceFlags::MH_PORT),
    ]
}

#[test]
fn services_are_what_ipvsadm_was_told() {
    for exchange in titled("GET_SERVICE dump") {
        let read: Vec<ServiceEntry> = commands(&exchange)
            .into_iter()
            .map(|(command, attributes)| {
                assert_eq!(command, 1);
                ServiceEntry::decode(nested(attributes, 1)).unwrap()
            })
            .collect();
        assert_eq!(read.iter().map(|entry| entry.service).collect::<Vec<_>>(), services());
        for entry in read {
            assert!(entry.unknown.is_empty());
            assert_eq!((entry.stats.connections, entry.stats.width), (0, Width::Bits64));
        }
    }
}

#[test]
fn destinations_are_what_ipvsadm_was_told() {
    let gue = Tunnel { kind: TunnelKind::Gue { port: 6080 }, flags: TunnelFlags::empty() };
    let expected = [
        vec![Destination::new(at("10.1.1.2:3868")).with_forwarding(Forwarding::DirectRoute)],
        vec![
            Destination::new(at("10.1.2.2:8081")).with_weight(0),
            Destination::new(at("10.1.1.2:8080")).with_weight(3).with_thresholds(100, 50),
        ],
        vec![
            Destination::new(at("10.1.1.2:53")).with_forwarding(Forwarding::Tunnel(gue)),
            Destination::new(at("[fd00:1::2]:5353")),
        ],
        vec![Destination::new(at("10.1.3.2:0")).with_forwarding(Forwarding::DirectRoute)],
        vec![],
    ];
    let dumps = titled("GET_DEST dump");
    assert_eq!(dumps.len(), expected.len());
    for ((exchange, expected), service) in dumps.iter().zip(expected).zip(services()) {
        assert_eq!(Request::decode(&exchange.request), Ok(Request::ListDestinations(service.key)));
        let read: Vec<Destination> = commands(exchange)
            .into_iter()
            .map(|(_, attributes)| {
                let entry = DestinationEntry::decode(nested(attributes, 2), service.key.family()).unwrap();
                assert!(entry.unknown.is_empty());
                entry.destination
            })
            .collect();
        assert_eq!(read, expected);
    }
}

#[test]
fn version_and_time_outs_are_the_kernels() {
    let info = Info::decode(commands(&titled("GET_INFO")[0])[0].1).unwrap();
    assert_eq!((info.version, info.connection_table_size), (Version { major: 1, minor: 2, patch: 1 }, 4096));
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let timeouts = Timeouts::decode(commands(&titled("GET_CONFIG")[0])[0].1).unwrap();
    assert_eq!(timeouts, Timeouts { tcp: seconds(900), tcp_fin: seconds(120), udp: seconds(300) });
    assert!(commands(&titled("GET_DAEMON dump")[0]).is_empty());
}

#[test]
fn refusals_have_the_number_and_nothing_else() {
    for (title, errno) in [("NEW_SERVICE unknown scheduler", 2), ("NEW_DEST no service", 3)] {
        let exchange = &titled(title)[0];
        let message = messages(&exchange.answers[0]).next().unwrap().unwrap();
        assert_eq!(message.sequence, u32::from_ne_bytes(*exchange.request[8..].first_chunk().unwrap()));
        let Content::Answer(answer) = message.content().unwrap() else { panic!("{message:?}") };
        assert_eq!((answer.errno, answer.text), (errno, None));
    }
}

/// The bytes that a kernel has taken, but for what only a sender knows (type, flags, number) and for the mask of the
/// flags, which leaves the kernel's own flag out here.
#[test]
fn requests_are_written_as_the_kernel_takes_them() {
    let capture = |title| {
        let mut bytes = titled(title).remove(0).request;
        bytes[4..12].fill(0);
        bytes
    };
    let key = ServiceKey::tcp(at("10.96.1.7:80"));
    let mut batch = Batch::new();
    batch.add_service(&Service::new(key, "nosuch".parse().unwrap())).unwrap();
    let mut expected = capture("NEW_SERVICE unknown scheduler");
    let mask = expected.windows(8).position(|bytes| bytes == [0, 0, 0, 0, 255, 255, 255, 255]).unwrap();
    expected[mask + 4] = !2;
    assert_eq!(batch.as_bytes(), expected);

    batch.clear();
    batch.add_destination(&key, &Destination::new(at("10.244.0.0:1"))).unwrap();
    assert_eq!(batch.as_bytes(), capture("NEW_DEST no service"));
}
