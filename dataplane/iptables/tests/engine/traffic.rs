//! What becomes of real packets: from another host and from the node itself, IPv4 and IPv6, TCP and UDP.

use std::collections::BTreeSet;

use vipd_model::{Family, Protocol};

use crate::kit::*;
use crate::lab::*;

#[test]
fn a_service_is_served_from_everywhere() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let web = spec("web", Protocol::Tcp).vip("10.96.0.1", 80).vip("fd96::1", 80).to(&[11, 12, 13]);
        let dns = spec("dns", Protocol::Udp).vip("10.96.0.1", 80).vip("fd96::1", 80).to(&[11, 12, 13]);
        put(&mut runner, &[&web, &dns]);
        settled(&mut runner);
        for family in Family::ALL {
            let to = at(&vip_of(family, 1), 80);
            let mut by = BTreeSet::new();
            for _ in 0..30 {
                let fates = [lab.client.connect(to), connect(to), lab.client.ask(to), ask(to)];
                assert!(fates.iter().all(|fate| fate.by().is_some()), "{to}: {fates:?}");
                by.extend(fates[0].by());
            }
            assert_eq!(by.len(), 3, "{by:?}");
        }
        remove(&mut runner, &[&web, &dns]);
        assert!(observed(backend).is_empty());
    });
}

#[test]
fn an_endpoint_reaches_itself() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        put(&mut runner, &[&spec("web", Protocol::Tcp).vip("10.96.0.1", 80).vip("fd96::1", 80).to(&[11])]);
        for (from, vip, seen) in [("10.2.0.11", "10.96.0.1", "10.2.0.1"), ("fd02::11", "fd96::1", "fd02::1")] {
            let fate = lab.backends.run(move || connect_from(Some(ip(from)), at(vip, 80)));
            assert_eq!(fate, Fate::Served { by: at(from, 8080), seen: ip(seen) });
        }
        let fate = lab.client.connect(at("10.96.0.1", 80));
        assert_eq!(fate.seen(), Some(ip(Lab::CLIENT_V4)), "whoever is another keeps its address");
    });
}

#[test]
fn without_endpoints_it_is_refused_at_once() {
    on_both(|backend| {
        let lab = Lab::new();
        let mut runner = started(backend, node());
        let web = spec("web", Protocol::Tcp).vip("10.96.0.1", 80).vip("fd96::1", 80).node_port(30080);
        let dns = spec("dns", Protocol::Udp).vip("10.96.0.1", 80).vip("fd96::1", 80).node_port(30080);
        put(&mut runner, &[&web, &dns]);
        settled(&mut runner);
        for to in ["10.96.0.1", "fd96::1"].map(|vip| at(vip, 80)) {
            assert_eq!(lab.client.connect(to), Fate::Refused);
            assert_eq!(lab.client.ask(to), Fate::Refused);
            assert_eq!(connect(to), Fate::Refused, "from the node");
            assert_eq!(ask(to), Fate::Refused, "from the node");
        }
        for to in [Lab::NODE_V4, Lab::NODE_V6].map(|node| at(node, 30080)) {
            assert_eq!(lab.client.connect(to), Fate::Refused);
            assert_eq!(lab.client.ask(to), Fate::Refused);
            assert_eq!(connect(to), Fate::Refused, "from the node");
        }
        let quiet = |spec: Spec| spec.with(|s| s.definition.on_no_endpoints = vipd_model::service::NoEndpoints::Drop);
        put(&mut runner, &[&quiet(web), &quiet(dns)]);
        for to in ["10.96.0.1", "fd96::1"].map(|vip| at(vip, 80)) {
            assert_eq!(lab.client.connect(to), Fate::Silence);
            assert_eq!(lab.client.ask(to), Fate::Silence);
            assert_eq!(connect(to), Fate::Silence, "from the node");
            assert_eq!(ask(to), Fate::Silence, "from the node");
        }
    });
}
