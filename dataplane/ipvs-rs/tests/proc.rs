//! `/proc/net/ip_vs` as a real kernel wrote it.

use ipvs_rs::proc::{ProcForwarding, ProcKey, ProcPersistence, parse};
use ipvs_rs::{Scheduler, ServiceKey};
use proptest::prelude::*;

const CAPTURE: &str = include_str!("captures/proc-6.1.txt");

#[test]
fn the_file_is_read_whole() {
    let view = parse(CAPTURE).unwrap();
    assert_eq!((view.version.to_string().as_str(), view.connection_table_size), ("1.2.1", 4096));
    let keys: Vec<_> = view.services.iter().map(|service| service.key).collect();
    let at = |text: &str| text.parse().unwrap();
    assert_eq!(
        keys,
        [
            ProcKey::Address(ServiceKey::tcp(at("10.96.0.10:80"))),
            ProcKey::Address(ServiceKey::udp(at("[fd96::10]:53"))),
            ProcKey::Address(ServiceKey::udp(at("10.96.0.10:53"))),
            ProcKey::Address(ServiceKey::sctp(at("10.96.0.10:3868"))),
            ProcKey::Fwmark(7),
            ProcKey::Fwmark(8),
        ]
    );
    let [web, dns, packets, ..] = &view.services[..] else { panic!("{view:?}") };
    let mask = u32::from_ne_bytes([255, 255, 255, 0]);
    assert_eq!(web.persistence, Some(ProcPersistence { ticks: 1_080_000, netmask: mask }));
    assert_eq!(dns.persistence.map(|persistence| persistence.netmask), Some(128));
    assert_eq!((web.scheduler, packets.one_packet), (Scheduler::WEIGHTED_ROUND_ROBIN, true));
    let weights: Vec<_> = web.destinations.iter().map(|destination| destination.weight).collect();
    assert_eq!((weights, packets.destinations[0].weight), (vec![0, 3], i32::MAX as u32));
    assert_eq!(dns.destinations[0].forwarding, ProcForwarding::Tunnel);
    assert_eq!(dns.destinations[1].key.to_string(), "[fd00:1::2]:5353");
}

#[test]
fn a_line_that_no_kernel_writes_is_named() {
    let broken = CAPTURE.replace("0A010302:0000", "0A01:xyz");
    let unreadable = parse(&broken).unwrap_err();
    assert_eq!(unreadable.line, 15);
    assert!(unreadable.text.contains("0A01:xyz"));
    assert_eq!(parse("").unwrap_err().line, 1);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>(), cut in 0..CAPTURE.len(), insert in "[ -~]{0,8}") {
        let _ = parse(&text);
        let _ = parse(&format!("{}{insert}{}", &CAPTURE[..cut], &CAPTURE[cut..]));
    }
}
