//! Golden files (`VIPD_BLESS=1 cargo test -p vipd-nftables golden` writes them anew), and the laws of rendering.

use std::{env, fs, path::Path};

use proptest::prelude::*;
use vipd_engine::Plan;
use vipd_model::{PortRange, Protocol, ServiceKey};

use super::*;

fn spot(place: Place, protocol: Protocol, first: u16, last: u16) -> Spot {
    Spot { place, protocol, ports: PortRange { first, last } }
}

fn vip(address: &str, protocol: Protocol, port: u16) -> Spot {
    spot(Place::Vip(address.parse().unwrap()), protocol, port, port)
}

fn input(mut entries: Vec<GuardEntry>) -> GuardInput {
    entries.sort();
    GuardInput { key: ServiceKey::new("test", "service").unwrap(), entries }
}

fn networks(of: &[&str]) -> Vec<IpNet> {
    of.iter().map(|net| net.parse().unwrap()).collect()
}

fn text(objects: &Objects<Key, Value>) -> String {
    let plan = Plan::difference(&Objects::new(), objects);
    plan.make.iter().map(|operation| format!("{}\n", operation.to_string().trim_end())).collect()
}

fn golden(name: &str, have: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guard/render/golden").join(name);
    if env::var_os("VIPD_BLESS").is_some() {
        fs::write(&path, have).unwrap();
    }
    let want = fs::read_to_string(&path).unwrap();
    assert_eq!(have, want, "{} differs", path.display());
}

#[test]
fn golden_node() {
    let mut with_ranges = Node::default();
    with_ranges.network.virtual_ranges = networks(&["10.96.0.0/16", "192.0.2.1/32", "fd96::/64"]);
    golden("node.nft", &text(&node(&with_ranges, TableFlags::OWNED)));
}

#[test]
fn golden_service() {
    let at_node = |addresses: &[&str], protocol, first, last| {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        spot(Place::Node { family: Family::V4, addresses }, protocol, first, last)
    };
    let web = vip("10.96.0.1", Protocol::Tcp, 80);
    let entries = vec![
        GuardEntry::Allow { spot: web.clone(), sources: networks(&["10.1.0.0/24", "10.2.0.0/24", "192.0.2.7/32"]) },
        GuardEntry::Allow { spot: vip("fd96::1", Protocol::Udp, 53), sources: networks(&["fd00::/8"]) },
        GuardEntry::Capture { spot: web, port: 15001 },
        GuardEntry::Capture { spot: vip("fd96::1", Protocol::Udp, 53), port: 20053 },
        GuardEntry::Capture { spot: at_node(&[], Protocol::Tcp, 30000, 30002), port: 15001 },
        GuardEntry::Capture { spot: at_node(&["10.1.0.1", "127.0.0.1"], Protocol::Tcp, 30100, 30100), port: 15001 },
        GuardEntry::Refuse { spot: vip("10.96.0.2", Protocol::Tcp, 80), how: NoEndpoints::Reject },
        GuardEntry::Refuse { spot: at_node(&[], Protocol::Udp, 30200, 30200), how: NoEndpoints::Drop },
    ];
    golden("service.nft", &text(&service(&input(entries)).unwrap()));
}

#[test]
fn a_range_that_needs_too_much_is_refused_by_name() {
    let wide = spot(Place::Vip([10, 96, 0, 1].into()), Protocol::Tcp, 1, u16::MAX);
    let capture = GuardEntry::Capture { spot: wide.clone(), port: 15001 };
    assert_eq!(service(&input(vec![capture.clone()])).unwrap().len(), 65_535 + 1);
    let allow = GuardEntry::Allow { spot: wide, sources: networks(&["10.0.0.0/8", "11.0.0.0/8"]) };
    let error = service(&input(vec![capture, allow])).unwrap_err();
    assert_eq!(error.problem.code, ProblemCode::Limit);
    assert!(error.to_string().contains("narrower"), "{error}");
}

fn entries() -> impl Strategy<Value = Vec<GuardEntry>> {
    let spot = (0..4u8, 0..3u16, any::<bool>()).prop_map(|(host, port, udp)| {
        let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
        vip(&format!("10.96.0.{host}"), protocol, 80 + port)
    });
    let entry = (spot, 0..3u8, 0..4u8).prop_map(|(spot, kind, n)| match kind {
        0 => GuardEntry::Capture { spot, port: 15001 },
        1 => GuardEntry::Refuse { spot, how: NoEndpoints::Reject },
        _ => GuardEntry::Allow { spot, sources: networks(&["10.0.0.0/8", "10.1.0.0/16"][..usize::from(n) % 3]) },
    });
    proptest::collection::vec(entry, 0..12)
}

proptest! {
    /// What an element needs (its set, its rule, the chain of that rule) stands before it, or is the node's.
    #[test]
    fn objects_stand_after_what_they_refer_to(entries in entries()) {
        let mut objects = node(&Node::default(), TableFlags::default());
        objects.extend(service(&input(entries)).unwrap());
        let mut seen = Vec::new();
        for key in objects.keys() {
            let needs = match &key.object {
                super::super::object::Object::Element(set, _) => vec![Key::set(*set)],
                super::super::object::Object::Prefix(prefix) => {
                    vec![Key::set(SetName::Prefix(*prefix)), Key::chain(prefix.chain())]
                }
                _ => vec![],
            };
            prop_assert!(needs.iter().all(|need| seen.contains(need)), "{key} before {needs:?}");
            seen.push(key.clone());
        }
    }

    /// Restrictions and the protection of the proxy's ports come into force before what they restrict.
    #[test]
    fn nobody_is_let_in_before_source_ranges_are_known(entries in entries()) {
        let rank = |key: &Key| match key.object {
            super::super::object::Object::Element(SetName::ProxyPorts | SetName::Prefix(_), _) => 1,
            super::super::object::Object::Element(SetName::Spots { role: Role::Ranged, .. }, _) => 2,
            super::super::object::Object::Element(..) => 3,
            _ => 0,
        };
        prop_assert!(service(&input(entries)).unwrap().keys().is_sorted_by_key(rank));
    }

    #[test]
    fn the_order_of_entries_does_not_matter(entries in entries()) {
        let mut reversed = input(entries.clone());
        reversed.entries.reverse();
        prop_assert_eq!(service(&input(entries)).unwrap(), service(&reversed).unwrap());
    }
}
