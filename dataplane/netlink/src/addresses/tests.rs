//! The node's addresses against the real kernel.

use super::*;
use crate::testing::{in_namespace, run};

#[test]
fn addresses_are_listed_with_their_interface_and_changes_are_noticed() {
    in_namespace(|| {
        let mut monitor = AddressMonitor::open().unwrap();
        let mut addresses = Addresses::open().unwrap();
        let plain: Vec<_> = addresses.list().unwrap().iter().map(|a| a.address.to_string()).collect();
        assert_eq!(plain, ["127.0.0.1", "::1"]);
        assert!(!monitor.wait(Duration::from_millis(10)).unwrap());

        run("ip", &["link", "add", "eth7", "type", "veth", "peer", "name", "eth8"]);
        run("ip", &["addr", "add", "10.7.0.1/24", "dev", "eth7"]);
        run("ip", &["addr", "add", "fd07::1/64", "dev", "eth7", "nodad"]);
        assert!(monitor.wait(Duration::from_secs(5)).unwrap());
        // IPv6 tells of an address once it has settled, a little later.
        while monitor.wait(Duration::from_millis(100)).unwrap() {}
        let list = addresses.list().unwrap();
        let v4 = list.iter().find(|a| a.address == IpAddr::from([10, 7, 0, 1])).unwrap();
        assert_eq!((v4.prefix, v4.interface_name.as_str(), v4.usable), (24, "eth7", true));
        assert!(list.iter().any(|a| a.address.to_string() == "fd07::1" && a.prefix == 64 && a.usable));

        run("ip", &["addr", "del", "10.7.0.1/24", "dev", "eth7"]);
        run("ip", &["link", "del", "eth7"]);
        assert!(monitor.wait(Duration::from_secs(5)).unwrap());
        assert_eq!(addresses.list().unwrap().len(), 2);
    });
}

#[test]
fn an_address_under_duplicate_detection_is_not_usable_yet() {
    let mut body = vec![libc::AF_INET6 as u8, 64, 0x40, 0];
    body.extend(7u32.to_ne_bytes());
    let mut attrs = Encoder::new();
    attrs.bytes(1, &Ipv6Addr::LOCALHOST.octets());
    body.extend(attrs.as_slice());
    assert!(!parse_address(&body).unwrap().usable);
    body[2] = 0;
    assert!(parse_address(&body).unwrap().usable);
    for length in 0..body.len() {
        let _ = parse_address(&body[..length]);
    }
}
