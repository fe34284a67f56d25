//! Laws: what is written is read back, and no bytes make a decoder panic.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, outside of a #[test] function")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use ipvs_rs::attr::Attributes;
use ipvs_rs::message::{Message, messages};
use ipvs_rs::{
    Batch, Daemon, DaemonEntry, DaemonRole, Destination, DestinationEntry, Family, Forwarding, Info, Name, Netmask,
    PersistenceEngine, Protocol, Request, Scheduler, Service, ServiceEntry, ServiceFlags, ServiceKey, Stats, Timeouts,
    Tunnel, TunnelFlags, TunnelKind, Width,
};
use proptest::prelude::*;

fn address() -> impl Strategy<Value = SocketAddr> {
    any::<(IpAddr, u16)>().prop_map(SocketAddr::from)
}

fn key() -> impl Strategy<Value = ServiceKey> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
    prop_oneof![
        (protocol, address()).prop_map(|(protocol, at)| ServiceKey::at(protocol, at)),
        (any::<NonZeroU32>(), prop_oneof![Just(Family::V4), Just(Family::V6)])
            .prop_map(|(mark, family)| ServiceKey::fwmark(mark, family)),
    ]
}

fn name() -> impl Strategy<Value = Name> {
    "[a-z0-9_.-]{1,15}".prop_map(|text| text.parse().unwrap())
}

fn netmask(family: Family) -> BoxedStrategy<Netmask> {
    match family {
        Family::V4 => prop_oneof![
            Just(Netmask::Host),
            (0..32_u8).prop_map(Netmask::Prefix),
            any::<u32>()
                .prop_filter("a prefix", |bits| bits.leading_ones() < bits.count_ones())
                .prop_map(|bits| Netmask::Bits(Ipv4Addr::from_bits(bits))),
        ]
        .boxed(),
        Family::V6 => prop_oneof![Just(Netmask::Host), (1..128_u8).prop_map(Netmask::Prefix)].boxed(),
    }
}

fn service() -> impl Strategy<Value = Service> {
    let timeout = 0..=Service::LONGEST_TIMEOUT.as_secs();
    key()
        .prop_flat_map(move |key| {
            let flags = any::<u32>().prop_map(|bits| ServiceFlags::from_bits_retain(bits & !2));
            (Just(key), name(), flags, timeout.clone(), netmask(key.family()), proptest::option::of(name()))
        })
        .prop_map(|(key, scheduler, flags, timeout, netmask, engine)| Service {
            key,
            scheduler: Scheduler(scheduler),
            flags,
            timeout: Duration::from_secs(timeout),
            netmask,
            persistence_engine: engine.map(PersistenceEngine),
        })
}

fn forwarding() -> impl Strategy<Value = Forwarding> {
    let kind = prop_oneof![
        Just(TunnelKind::Ipip),
        Just(TunnelKind::Gre),
        (1..=u16::MAX).prop_map(|port| TunnelKind::Gue { port }),
        (3..=u8::MAX, any::<u16>()).prop_map(|(number, port)| TunnelKind::Other { number, port }),
    ];
    prop_oneof![
        Just(Forwarding::Masquerade),
        Just(Forwarding::LocalNode),
        Just(Forwarding::DirectRoute),
        Just(Forwarding::Bypass),
        (5..8_u8).prop_map(Forwarding::Other),
        (kind, any::<u16>()).prop_map(|(kind, flags)| {
            Forwarding::Tunnel(Tunnel { kind, flags: TunnelFlags::from_bits_retain(flags) })
        }),
    ]
}

fn destination() -> impl Strategy<Value = Destination> {
    (address(), forwarding(), 0..=Destination::HEAVIEST, any::<(u32, u32)>()).prop_map(
        |(at, forwarding, weight, pair)| {
            let (upper, lower) = (pair.0.max(pair.1), pair.0.min(pair.1));
            Destination::new(at).with_forwarding(forwarding).with_weight(weight).with_thresholds(upper, lower)
        },
    )
}

fn daemon() -> impl Strategy<Value = Daemon> {
    use proptest::option::of;
    let optional = (of(any::<u16>()), of(any::<IpAddr>()), of(any::<u16>()), of(any::<u8>()));
    (any::<bool>(), name(), any::<u32>(), optional).prop_map(|(master, interface, sync_id, optional)| {
        let role = if master { DaemonRole::Master } else { DaemonRole::Backup };
        let (max_length, group, port, ttl) = optional;
        Daemon { max_length, group, port, ttl, ..Daemon::new(role, interface, sync_id) }
    })
}

/// The only message of a batch.
fn only(batch: &Batch) -> Message<'_> {
    let mut all = messages(batch.as_bytes());
    let message = all.next().unwrap().unwrap();
    assert!(all.next().is_none());
    message
}

fn attributes<'a>(message: &Message<'a>) -> Attributes<'a> {
    message.command().unwrap().1
}

fn nested<'a>(message: &Message<'a>, kind: u16) -> Attributes<'a> {
    attributes(message).map(Result::unwrap).find(|attribute| attribute.kind == kind).unwrap().nested()
}

/// Everything that takes bytes.
fn decode_all(bytes: &[u8]) {
    for message in messages(bytes).flatten() {
        let _ = (message.content(), message.command());
        decode_body(message.body);
    }
    let _ = Request::decode(bytes);
    decode_body(bytes);
}

fn decode_body(bytes: &[u8]) {
    let attributes = Attributes::new(bytes);
    let _ = (ServiceEntry::decode(attributes), DestinationEntry::decode(attributes, Family::V6));
    let _ = (DaemonEntry::decode(attributes), Info::decode(attributes), Timeouts::decode(attributes));
    let _ = Stats::decode(attributes, Width::Bits32);
    for attribute in attributes.flatten() {
        let nested = attribute.nested();
        let _ = (ServiceEntry::decode(nested), DestinationEntry::decode(nested, Family::V4));
        let _ = DaemonEntry::decode(nested);
    }
}

proptest! {
    #[test]
    fn a_service_is_read_as_it_was_written(service in service()) {
        let mut batch = Batch::new();
        batch.add_service(&service).unwrap();
        let entry = ServiceEntry::decode(nested(&only(&batch), 1)).unwrap();
        prop_assert_eq!(entry.service, service);
        prop_assert!(entry.unknown.is_empty());
        prop_assert_eq!(batch.request(0), Some(Request::AddService(service.key)));
    }

    #[test]
    fn a_destination_is_read_as_it_was_written(key in key(), destination in destination()) {
        let mut batch = Batch::new();
        batch.set_destination(&key, &destination).unwrap();
        let other = if key.family() == Family::V4 { Family::V6 } else { Family::V4 };
        // Its own family is written: the service's does not matter.
        for family in [key.family(), other] {
            let entry = DestinationEntry::decode(nested(&only(&batch), 2), family).unwrap();
            prop_assert_eq!(entry.destination, destination);
        }
        prop_assert_eq!(batch.request(0), Some(Request::SetDestination(key, destination.key)));
    }

    #[test]
    fn a_daemon_is_read_as_it_was_written(daemon in daemon()) {
        let mut batch = Batch::new();
        batch.start_daemon(&daemon);
        prop_assert_eq!(DaemonEntry::decode(nested(&only(&batch), 3)).unwrap().daemon, daemon);
        prop_assert_eq!(batch.request(0), Some(Request::StartDaemon(daemon.role)));
    }

    #[test]
    fn time_outs_are_read_as_they_were_written(tcp in 1..u32::MAX, udp in 1..u32::MAX) {
        let timeouts = Timeouts {
            tcp: Some(Duration::from_secs(tcp.into())),
            tcp_fin: None,
            udp: Some(Duration::from_secs(udp.into())),
        };
        let mut batch = Batch::new();
        batch.set_timeouts(&timeouts).unwrap();
        prop_assert_eq!(Timeouts::decode(attributes(&only(&batch))), Ok(timeouts));
    }

    #[test]
    fn requests_of_a_batch_stay_what_they_are(keys in proptest::collection::vec((key(), address()), 1..40)) {
        let mut batch = Batch::new();
        let mut expected = Vec::new();
        for (key, at) in keys {
            batch.delete_service(&key);
            batch.delete_destination(&key, &at.into());
            batch.zero_service(&key);
            batch.zero_all();
            batch.flush();
            batch.stop_daemon(DaemonRole::Backup);
            expected.extend([
                Request::DeleteService(key),
                Request::DeleteDestination(key, at.into()),
                Request::ZeroService(key),
                Request::ZeroAll,
                Request::Flush,
                Request::StopDaemon(DaemonRole::Backup),
            ]);
        }
        let read: Vec<_> = (0..batch.len()).map(|index| batch.request(index).unwrap()).collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn what_is_unknown_is_kept(service in service(), kind in 13..0x3fff_u16, payload in any::<Vec<u8>>()) {
        let mut batch = Batch::new();
        batch.add_service(&service).unwrap();
        let message = only(&batch);
        let first = attributes(&message).next().unwrap().unwrap();
        let mut bytes = first.payload.to_vec();
        bytes.extend_from_slice(&(4 + payload.len() as u16).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&payload);
        let entry = ServiceEntry::decode(Attributes::new(&bytes)).unwrap();
        prop_assert_eq!(entry.service, service);
        prop_assert_eq!((entry.unknown[0].kind, &*entry.unknown[0].payload), (kind, payload.as_slice()));
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in any::<Vec<u8>>()) {
        decode_all(&bytes);
    }

    #[test]
    fn no_change_to_a_message_makes_a_decoder_panic(
        service in service(),
        destination in destination(),
        daemon in daemon(),
        changes in proptest::collection::vec(any::<(prop::sample::Index, u8)>(), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut batch = Batch::new();
        batch.add_service(&service).unwrap();
        batch.add_destination(&service.key, &destination).unwrap();
        batch.start_daemon(&daemon);
        let mut bytes = batch.as_bytes().to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        decode_all(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        decode_all(&bytes);
    }
}
