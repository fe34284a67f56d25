//! Every operation on a real kernel, each test in a network namespace of its own. Not part of a plain `cargo test`: see
//! Cargo.toml.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, outside of a #[test] function")]

mod support;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use ipvs_rs::proc::{self, ProcKey};
use ipvs_rs::{
    Daemon, DaemonRole, Destination, Error, Family, Forwarding, Ipvs, Netmask, PersistenceEngine, Reason, Refusal,
    Scheduler, Service, ServiceFlags, ServiceKey, Timeouts, Tunnel, TunnelFlags, TunnelKind, Version, Width,
};
use support::{run, with_ipvs};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn web() -> ServiceKey {
    ServiceKey::tcp(at("10.96.0.10:80"))
}

fn mark(mark: u32, family: Family) -> ServiceKey {
    ServiceKey::fwmark(NonZeroU32::new(mark).unwrap(), family)
}

#[track_caller]
fn refused<T>(result: Result<T, Error>, reason: Reason) -> Refusal {
    match result {
        Err(Error::Refused(refusal)) if refusal.reason == reason => *refusal,
        Err(other) => panic!("{other:?} instead of {reason:?}"),
        Ok(_) => panic!("done instead of {reason:?}"),
    }
}

#[test]
fn every_kind_of_service_is_made_changed_read_and_removed() {
    with_ipvs(|mut ipvs| {
        let day = Duration::from_secs(86_400);
        let keys = [
            web(),
            ServiceKey::udp(at("10.96.0.10:80")),
            ServiceKey::sctp(at("10.96.0.10:80")),
            ServiceKey::tcp(at("[fd96::10]:80")),
            ServiceKey::udp(at("[fd96::10]:80")),
            ServiceKey::sctp(at("[fd96::10]:80")),
            mark(7, Family::V4),
            mark(7, Family::V6),
            mark(u32::MAX, Family::V4),
        ];
        for key in keys {
            let plain = Service::new(key, Scheduler::ROUND_ROBIN);
            let prefix = if key.family() == Family::V4 { 24 } else { 64 };
            let sticky = Service::new(key, Scheduler::SOURCE_HASHING)
                .with_flags(ServiceFlags::SH_FALLBACK | ServiceFlags::SH_PORT)
                .persistent(day, Netmask::Prefix(prefix));
            ipvs.add_service(&plain).unwrap();
            assert_eq!(ipvs.service(&key).unwrap().service, plain);
            ipvs.set_service(&sticky).unwrap();
            let entry = ipvs.service(&key).unwrap();
            assert_eq!((entry.service, entry.unknown.len()), (sticky, 0));
            // And back: what is no longer set is gone.
            ipvs.set_service(&plain).unwrap();
            assert_eq!(ipvs.service(&key).unwrap().service, plain);
        }
        let read: BTreeSet<_> = ipvs.services().unwrap().iter().map(|entry| entry.service.key).collect();
        assert_eq!(read, BTreeSet::from(keys));
        for key in keys {
            ipvs.delete_service(&key).unwrap();
            refused(ipvs.service(&key), Reason::NoService);
        }
        assert_eq!(ipvs.services().unwrap(), []);
    });
}

#[test]
fn masks_time_outs_and_one_packet_scheduling_are_exact() {
    with_ipvs(|mut ipvs| {
        let odd = Netmask::Bits([255, 0, 255, 0].into());
        let masks = [Netmask::Host, Netmask::Prefix(0), Netmask::Prefix(31), odd];
        for (port, netmask) in (1..).zip(masks) {
            let key = ServiceKey::udp(SocketAddr::new([10, 96, 0, 1].into(), port));
            let service = Service::new(key, Scheduler::ROUND_ROBIN).persistent(Service::LONGEST_TIMEOUT, netmask);
            ipvs.add_service(&service).unwrap();
            assert_eq!(ipvs.service(&key).unwrap().service, service);
        }
        for bits in [1, 64, 127] {
            let key = ServiceKey::udp(SocketAddr::new("fd96::1".parse().unwrap(), bits));
            let netmask = Netmask::Prefix(bits as u8);
            let service = Service::new(key, Scheduler::ROUND_ROBIN).persistent(Duration::from_secs(1), netmask);
            ipvs.add_service(&service).unwrap();
            assert_eq!(ipvs.service(&key).unwrap().service, service);
        }
        let service = Service::new(ServiceKey::udp(at("10.96.0.10:53")), Scheduler::ROUND_ROBIN)
            .with_flags(ServiceFlags::ONE_PACKET);
        ipvs.add_service(&service).unwrap();
        assert_eq!(ipvs.service(&service.key).unwrap().service, service);
    });
}

#[test]
fn schedulers_that_the_kernel_has_are_taken_and_others_named() {
    with_ipvs(|mut ipvs| {
        let mut lacking = Vec::new();
        for scheduler in Scheduler::KNOWN {
            let service = Service::new(web(), *scheduler);
            match ipvs.add_service(&service) {
                Ok(()) => {
                    assert_eq!(ipvs.service(&web()).unwrap().service, service);
                    ipvs.delete_service(&web()).unwrap();
                }
                Err(error) => {
                    refused(Err::<(), _>(error), Reason::NoSchedulerOrEngine);
                    lacking.push(*scheduler);
                }
            }
        }
        println!("this kernel lacks {lacking:?}");
        assert!(lacking.len() <= 1, "{lacking:?}: a Debian kernel lacks twos at most");
        let refusal =
            refused(ipvs.add_service(&Service::new(web(), "nosuch".parse().unwrap())), Reason::NoSchedulerOrEngine);
        assert!(refusal.to_string().starts_with("add service tcp 10.96.0.10:80: the kernel has no such scheduler"));
        let sip = Service::new(ServiceKey::udp(at("10.96.0.10:5060")), Scheduler::ROUND_ROBIN)
            .persistent(Duration::from_secs(60), Netmask::Host)
            .with_persistence_engine(PersistenceEngine::SIP);
        match ipvs.add_service(&sip) {
            Ok(()) => assert_eq!(ipvs.service(&sip.key).unwrap().service, sip),
            Err(error) => _ = refused(Err::<(), _>(error), Reason::NoSchedulerOrEngine),
        }
    });
}

#[test]
fn every_kind_of_destination_is_made_changed_read_and_removed() {
    with_ipvs(|mut ipvs| {
        ipvs.add_service(&Service::new(web(), Scheduler::WEIGHTED_ROUND_ROBIN)).unwrap();
        let tunnel = |kind, flags| Forwarding::Tunnel(Tunnel { kind, flags });
        let gue = TunnelKind::Gue { port: 6080 };
        let mut destinations = vec![
            Destination::new(at("10.1.1.1:8080")),
            Destination::new(at("10.1.1.2:8080")).with_weight(Destination::HEAVIEST).with_thresholds(100, 50),
            Destination::new(at("10.1.1.3:80")).with_forwarding(Forwarding::DirectRoute).with_weight(0),
            Destination::new(at("10.1.1.4:80")).with_forwarding(tunnel(TunnelKind::Ipip, TunnelFlags::empty())),
            Destination::new(at("10.1.1.5:80")).with_forwarding(tunnel(gue, TunnelFlags::CHECKSUM)),
            Destination::new(at("10.1.1.6:80")).with_forwarding(tunnel(gue, TunnelFlags::REMOTE_CHECKSUM)),
            Destination::new(at("10.1.1.7:80")).with_forwarding(tunnel(TunnelKind::Gre, TunnelFlags::CHECKSUM)),
            // Of another family than its service: by a tunnel only.
            Destination::new(at("[fd00:1::8]:80")).with_forwarding(tunnel(TunnelKind::Ipip, TunnelFlags::empty())),
        ];
        for destination in &destinations {
            ipvs.add_destination(&web(), destination).unwrap();
        }
        let read = |ipvs: &mut Ipvs| {
            let mut read: Vec<_> = ipvs.destinations(&web()).unwrap().iter().map(|entry| entry.destination).collect();
            read.sort_by_key(|destination| destination.key);
            read
        };
        assert_eq!(read(&mut ipvs), destinations);
        for destination in &mut destinations {
            *destination = destination.with_weight(7).with_thresholds(9, 8);
            ipvs.set_destination(&web(), destination).unwrap();
        }
        // The method and the tunnel can be changed in place, too.
        destinations[0] = destinations[0].with_forwarding(tunnel(gue, TunnelFlags::CHECKSUM));
        ipvs.set_destination(&web(), &destinations[0]).unwrap();
        assert_eq!(read(&mut ipvs), destinations);
        for destination in destinations {
            ipvs.delete_destination(&web(), &destination.key).unwrap();
        }
        assert_eq!(ipvs.destinations(&web()).unwrap(), []);
        let own = Destination::new(at("127.0.0.1:8080")).with_forwarding(Forwarding::LocalNode);
        ipvs.add_destination(&web(), &own).unwrap();
        assert_eq!(read(&mut ipvs), [own]);
    });
}

#[test]
fn each_mistake_has_its_own_name() {
    with_ipvs(|mut ipvs| {
        let service = Service::new(web(), Scheduler::ROUND_ROBIN);
        let destination = Destination::new(at("10.1.1.1:8080"));
        refused(ipvs.set_service(&service), Reason::NoService);
        refused(ipvs.delete_service(&web()), Reason::NoService);
        refused(ipvs.zero_service(&web()), Reason::NoService);
        refused(ipvs.add_destination(&web(), &destination), Reason::NoService);
        ipvs.add_service(&service).unwrap();
        refused(ipvs.add_service(&service), Reason::ServiceExists);
        refused(ipvs.set_destination(&web(), &destination), Reason::NoDestination);
        refused(ipvs.delete_destination(&web(), &destination.key), Reason::NoDestination);
        ipvs.add_destination(&web(), &destination).unwrap();
        let refusal = refused(ipvs.add_destination(&web(), &destination), Reason::DestinationExists);
        assert_eq!(
            refusal.to_string(),
            "add destination 10.1.1.1:8080 to tcp 10.96.0.10:80: the service has that destination already (EEXIST)"
        );
        // Another family without a tunnel.
        refused(ipvs.add_destination(&web(), &Destination::new(at("[fd00::1]:80"))), Reason::Invalid);
        for nobody in ["224.0.0.1:80", "255.255.255.255:80"] {
            refused(ipvs.add_destination(&web(), &Destination::new(at(nobody))), Reason::Invalid);
        }
        // Every port takes persistence; the kernel does not insist, so neither does this crate.
        let every = Service::new(ServiceKey::tcp(at("10.96.0.10:0")), Scheduler::ROUND_ROBIN);
        ipvs.add_service(&every.persistent(Duration::from_secs(60), Netmask::Host)).unwrap();
        // A service that is not there has no destinations: the kernel's word for it.
        assert_eq!(ipvs.destinations(&ServiceKey::udp(at("10.96.0.99:1"))).unwrap(), []);
    });
}

/// Set in the copy of this test that has no rights.
const POOR: &str = "IPVS_RS_TEST_WITHOUT_RIGHTS";

#[test]
fn without_the_right_it_says_so() {
    if std::env::var_os(POOR).is_some() {
        let mut ipvs = Ipvs::open().unwrap();
        let refusal = refused(ipvs.info(), Reason::NotPermitted);
        assert!(refusal.to_string().contains("CAP_NET_ADMIN"), "{refusal}");
        refused(ipvs.services(), Reason::NotPermitted);
        refused(ipvs.flush(), Reason::NotPermitted);
        return;
    }
    with_ipvs(|_| {
        let mut copy = Command::new(std::env::current_exe().unwrap());
        copy.args(["--exact", "without_the_right_it_says_so", "--nocapture"]).env(POOR, "1").uid(65_534).gid(65_534);
        let output = copy.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    });
}

#[test]
fn time_outs_and_version_are_read_and_set() {
    with_ipvs(|mut ipvs| {
        let info = ipvs.info().unwrap();
        assert_eq!((info.version, info.unknown.len()), (Version { major: 1, minor: 2, patch: 1 }, 0));
        assert!(info.connection_table_size.is_power_of_two());
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let before = ipvs.timeouts().unwrap();
        assert_eq!(before, Timeouts { tcp: seconds(900), tcp_fin: seconds(120), udp: seconds(300) });
        ipvs.set_timeouts(&Timeouts { tcp_fin: seconds(11), ..Timeouts::default() }).unwrap();
        assert_eq!(ipvs.timeouts().unwrap(), Timeouts { tcp_fin: seconds(11), ..before });
        let long = Timeouts { udp: seconds(u32::MAX.into()), ..Timeouts::default() };
        refused(ipvs.set_timeouts(&long), Reason::Invalid);
    });
}

#[test]
fn daemons_are_started_listed_and_stopped() {
    with_ipvs(|mut ipvs| {
        run("ip", &["link", "add", "sync0", "type", "veth", "peer", "name", "sync1"]);
        run("ip", &["address", "add", "192.0.2.1/24", "dev", "sync0"]);
        run("ip", &["link", "set", "sync0", "up"]);
        run("ip", &["link", "set", "sync1", "up"]);
        let interface = "sync0".parse().unwrap();
        let plain = Daemon::new(DaemonRole::Backup, interface, 7);
        let full = Daemon {
            max_length: Some(1000),
            group: Some([224, 0, 0, 99].into()),
            port: Some(9000),
            ttl: Some(3),
            ..Daemon::new(DaemonRole::Master, interface, 42)
        };
        ipvs.start_daemon(&full).unwrap();
        ipvs.start_daemon(&plain).unwrap();
        refused(ipvs.start_daemon(&full), Reason::DaemonRuns);
        let read = ipvs.daemons().unwrap();
        assert!(read.iter().all(|entry| entry.unknown.is_empty()));
        assert_eq!(read[0].daemon, full);
        let backup = read[1].daemon;
        assert_eq!((backup.role, backup.interface, backup.sync_id), (DaemonRole::Backup, interface, 7));
        // What the kernel decided.
        assert_eq!((backup.group, backup.port, backup.ttl), (Some([224, 0, 0, 81].into()), Some(8848), Some(1)));
        ipvs.stop_daemon(DaemonRole::Master).unwrap();
        refused(ipvs.stop_daemon(DaemonRole::Master), Reason::NoDaemon);
        ipvs.stop_daemon(DaemonRole::Backup).unwrap();
        assert_eq!(ipvs.daemons().unwrap(), []);
        let nowhere = Daemon::new(DaemonRole::Master, "nowhere".parse().unwrap(), 1);
        refused(ipvs.start_daemon(&nowhere), Reason::NoInterface);
        let group = Some([10, 0, 0, 1].into());
        refused(ipvs.start_daemon(&Daemon { group, ..full }), Reason::Invalid);
    });
}

#[test]
fn counters_count_and_are_zeroed() {
    with_ipvs(|mut ipvs| {
        run("ip", &["address", "add", "10.96.0.10/32", "dev", "lo"]);
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let key = ServiceKey::udp(at("10.96.0.10:53"));
        ipvs.add_service(&Service::new(key, Scheduler::ROUND_ROBIN)).unwrap();
        ipvs.add_destination(&key, &Destination::new(server.local_addr().unwrap())).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(&[0; 100], "10.96.0.10:53").unwrap();
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut buffer = [0; 200];
        assert_eq!(server.recv_from(&mut buffer).unwrap().0, 100);

        // The kernel sums up every two seconds.
        let counted = |ipvs: &mut Ipvs, packets: u64| {
            let stats = |ipvs: &mut Ipvs| ipvs.service(&key).unwrap().stats;
            let there = (0..60).any(|_| {
                thread::sleep(Duration::from_millis(100));
                stats(ipvs).packets_in == packets
            });
            assert!(there, "{packets} packets expected: {:?}", stats(ipvs));
            stats(ipvs)
        };
        let stats = counted(&mut ipvs, 1);
        assert_eq!((stats.connections, stats.bytes_in, stats.width), (1, 128, Width::Bits64));
        let destination = ipvs.destinations(&key).unwrap().remove(0);
        assert_eq!((destination.stats.packets_in, destination.connections.inactive), (1, 1));
        ipvs.zero_service(&key).unwrap();
        assert_eq!(ipvs.service(&key).unwrap().stats.packets_in, 0);
        client.send_to(&[0; 100], "10.96.0.10:53").unwrap();
        server.recv_from(&mut buffer).unwrap();
        assert_eq!(counted(&mut ipvs, 1).connections, 0, "the same flow");
        ipvs.zero_all().unwrap();
        assert_eq!(ipvs.destinations(&key).unwrap()[0].stats.packets_in, 0);
    });
}

#[test]
fn the_quick_view_says_what_netlink_says() {
    with_ipvs(|mut ipvs| {
        let keys = [web(), ServiceKey::udp(at("[fd96::10]:53")), ServiceKey::sctp(at("10.96.0.10:3868"))];
        for key in keys {
            ipvs.add_service(&Service::new(key, Scheduler::LEAST_CONNECTION)).unwrap();
            let backend = if key.family() == Family::V4 { "10.1.1.2:8080" } else { "[fd00:1::2]:5353" };
            ipvs.add_destination(&key, &Destination::new(at(backend)).with_weight(5)).unwrap();
        }
        ipvs.add_service(&Service::new(mark(9, Family::V6), Scheduler::NONE)).unwrap();
        let view = proc::read().unwrap();
        assert_eq!(view.connection_table_size, ipvs.info().unwrap().connection_table_size);
        let seen: BTreeSet<_> = view.services.iter().map(|service| service.key).collect();
        let expected = keys.map(ProcKey::Address).into_iter().chain([ProcKey::Fwmark(9)]).collect();
        assert_eq!(seen, expected);
        for service in &view.services {
            let ProcKey::Address(key) = service.key else { continue };
            let destination = ipvs.destinations(&key).unwrap().remove(0).destination;
            assert_eq!(service.destinations[0].key, destination.key);
            assert_eq!((service.destinations[0].weight, service.scheduler), (5, Scheduler::LEAST_CONNECTION));
        }
        ipvs.flush().unwrap();
        assert!(proc::read().unwrap().services.is_empty());
    });
}

#[test]
fn a_module_that_was_unloaded_is_noticed_and_found_again() {
    with_ipvs(|mut ipvs| {
        assert_eq!(ipvs.services().unwrap(), []);
        // The namespace of the last test may still be on its way out, and hold it.
        let unload = || Command::new("modprobe").args(["-r", "ip_vs"]).output().is_ok_and(|o| o.status.success());
        run("sh", &["-c", "for m in $(awk '/^ip_vs_/ {print $1}' /proc/modules); do modprobe -r $m; done"]);
        let unloaded = (0..50).any(|_| {
            thread::sleep(Duration::from_millis(100));
            unload()
        });
        if !unloaded {
            return support::skip("module ip_vs is built in or in use");
        }
        let web = Service::new(web(), Scheduler::ROUND_ROBIN);
        assert!(matches!(ipvs.add_service(&web), Err(Error::ModuleReloaded)));
        ipvs.add_service(&web).unwrap();
        assert_eq!(ipvs.services().unwrap().len(), 1);
    });
}
