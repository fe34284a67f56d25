use std::sync::Arc;
use std::time::Duration;

use vipd_model::service::{ClientAffinity, Definition, Revisions, Service};
use vipd_model::{Algorithm, EndpointState, EngineKind, NodePort, PortRange, Scheduler, ServiceKey, select};

use super::*;

fn endpoints() -> Vec<Endpoint> {
    let mut endpoints: Vec<Endpoint> = (1..4).map(|n| Endpoint::new(IpAddr::from([10, 2, 0, n]), 8080)).collect();
    endpoints[0].local = true;
    endpoints[2].weight = 2;
    endpoints
}

fn selected(definition: Definition, endpoints: Vec<Endpoint>, algorithm: Algorithm) -> Selected {
    let service = Service {
        key: ServiceKey::new("k8s", "shop/web:http").unwrap(),
        definition: Arc::new(definition),
        scheduler: Scheduler::default(),
        endpoints: endpoints.into(),
        leaving: Arc::new([]),
        revisions: Revisions::default(),
        waiting: Vec::new(),
    };
    select(&Arc::new(service), EngineKind::Iptables, algorithm)
}

fn vip() -> Frontend {
    Frontend::vip(IpAddr::from([10, 96, 0, 1]), 80)
}

fn print(selected: &Selected) -> String {
    let objects = service(&Node::default(), selected).unwrap();
    objects.iter().map(|(key, value)| format!("{key}: {value}\n")).collect()
}

#[test]
fn rules_read_as_they_are_meant() {
    let external = Frontend {
        scope: Scope::External,
        policy: Policy::Local,
        source_ranges: vec!["192.0.2.0/24".parse().unwrap()],
        ..Frontend::vip(IpAddr::from([198, 51, 100, 1]), 80)
    };
    let at = At::NodePort(NodePort { v4: true, v6: false, addresses: Vec::new() });
    let node_port = Frontend { at, ports: PortRange::one(30080), scope: Scope::External, ..vip() };
    let plain = Definition { frontends: vec![vip(), external, node_port], ..Definition::default() };
    let affine = Definition {
        frontends: vec![vip()],
        client_affinity: Some(ClientAffinity { timeout: Duration::from_secs(300), prefix_v4: 24, prefix_v6: 64 }),
        ..Definition::default()
    };
    let mut one_drains = endpoints();
    one_drains[1].state = EndpointState::Draining;
    let dns = Definition { protocol: Protocol::Udp, frontends: vec![vip()], ..Definition::default() };
    let printed = [
        ("random, three frontends", print(&selected(plain.clone(), endpoints(), Algorithm::Random))),
        ("no endpoints", print(&selected(plain.clone(), Vec::new(), Algorithm::Random))),
        ("in turn", print(&selected(Definition { frontends: vec![vip()], ..plain }, endpoints(), Algorithm::Rr))),
        ("affinity", print(&selected(affine, endpoints(), Algorithm::Random))),
        ("UDP, one drains", print(&selected(dns, one_drains, Algorithm::Random))),
    ];
    let printed: String = printed.iter().map(|(name, text)| format!("== {name}\n{text}\n")).collect();
    if std::env::var_os("VIPD_WRITE_GOLDEN").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/render/golden.txt"), &printed).unwrap();
    }
    assert_eq!(printed, include_str!("golden.txt"), "src/render/golden.txt; VIPD_WRITE_GOLDEN=1 writes it");
}

/// The rules of one service are bounded, and a refusal says what to do.
#[test]
fn too_many_rules_are_refused_by_name() {
    let many = (0..60_000u32).map(|n| Endpoint::new(IpAddr::from((0x0a00_0000 + n).to_be_bytes()), 80)).collect();
    let affinity = ClientAffinity { timeout: Duration::from_secs(300), prefix_v4: 32, prefix_v6: 128 };
    let definition = Definition { frontends: vec![vip()], client_affinity: Some(affinity), ..Definition::default() };
    let error = service(&Node::default(), &selected(definition, many, Algorithm::Random)).unwrap_err();
    assert!(error.problem.message.contains("120"), "{}", error.problem.message);
}
