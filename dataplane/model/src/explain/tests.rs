//! Explain on a small node, by example and by law.

mod laws;
mod matrix;

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::frontend::{At, Family, Frontend, NodePort, Policy, PortRange, Scope};
use crate::scheduler::{Algorithm, Scheduler};
use crate::select::select;
use crate::service::{ClientAffinity, Definition, Revisions, Service};
use crate::{EndpointState, ServiceKey};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A node with a pod network, a range of VIPs, and the addresses 192.0.2.10, 10.244.0.1 and fd00::10.
#[derive(Clone, Debug)]
struct Node {
    services: Vec<Arc<Selected>>,
    network: Network,
    node_port_addresses: Vec<IpNet>,
    loopback: bool,
    guard: bool,
    affinity: BTreeMap<IpAddr, EndpointKey>,
}

impl Node {
    fn new(services: Vec<Arc<Selected>>) -> Self {
        let network = Network {
            local_sources: vec![net("10.244.0.0/24"), net("fd00:244::/64")],
            local_source_interfaces: vec!["veth*".into()],
            virtual_ranges: vec![net("10.96.0.0/16"), net("fd00:96::/112")],
            source_nat_all: false,
        };
        Self {
            services,
            network,
            node_port_addresses: Vec::new(),
            loopback: true,
            guard: true,
            affinity: BTreeMap::new(),
        }
    }
}

impl View for Node {
    fn holder(&self, place: Place, protocol: Protocol, port: u16) -> Option<Held> {
        self.services.iter().filter(|s| s.service.definition.protocol == protocol).find_map(|selected| {
            let holds = |f: &Frontend| f.spans().any(|span| span.place == place && span.ports.contains(port));
            let (frontend, _) = selected.service.held_frontends().find(|(_, f)| holds(f))?;
            Some(Held { selected: Arc::clone(selected), frontend })
        })
    }
    fn network(&self) -> &Network {
        &self.network
    }
    fn is_node_address(&self, address: IpAddr) -> bool {
        [ip("192.0.2.10"), ip("10.244.0.1"), ip("fd00::10")].contains(&address)
    }
    fn node_port_addresses(&self) -> &[IpNet] {
        &self.node_port_addresses
    }
    fn serves_loopback(&self) -> bool {
        self.loopback
    }
    fn has_guard(&self) -> bool {
        self.guard
    }
    fn affinity(&self, _: &ServiceKey, client: IpAddr) -> Option<EndpointKey> {
        self.affinity.get(&client).copied()
    }
}

/// A TCP service under round robin, to be changed.
fn service(frontends: Vec<Frontend>, mut endpoints: Vec<Endpoint>) -> Service {
    endpoints.sort_by_key(|e| e.key);
    Service {
        key: ServiceKey::new("ops", "web").unwrap(),
        definition: Arc::new(Definition { frontends, ..Definition::default() }),
        scheduler: Scheduler::default(),
        endpoints: endpoints.into(),
        leaving: Arc::new([]),
        revisions: Revisions::default(),
        waiting: Vec::new(),
    }
}

fn served(service: Service, engine: EngineKind) -> Arc<Selected> {
    let algorithm = match service.scheduler.algorithm {
        Algorithm::Default => Algorithm::Rr,
        named => named,
    };
    Arc::new(select(&Arc::new(service), engine, algorithm))
}

fn node_port(port: u16) -> Frontend {
    let at = At::NodePort(NodePort { v4: true, v6: true, addresses: Vec::new() });
    Frontend { at, scope: Scope::External, ..Frontend::vip(ip("0.0.0.0"), port) }
}

/// Two endpoints: 10.1.0.2 on another node, 10.244.0.5 on this one.
fn remote_and_local() -> Vec<Endpoint> {
    vec![Endpoint::new(ip("10.1.0.2"), 8080), Endpoint { local: true, ..Endpoint::new(ip("10.244.0.5"), 8080) }]
}

fn packet<'a>(source: &str, destination: &str, arrival: Arrival<'a>) -> Packet<'a> {
    let destination: std::net::SocketAddr = destination.parse().unwrap();
    Packet {
        source: ip(source),
        source_port: None,
        destination: destination.ip(),
        destination_port: destination.port(),
        protocol: Protocol::Tcp,
        arrival,
    }
}

fn from_outside<'a>(destination: &str) -> Packet<'a> {
    packet("198.51.100.7", destination, Arrival::Interface("eth0"))
}

fn outcome(told: &Explanation, stage: Stage) -> &str {
    told.steps.iter().find(|step| step.stage == stage).map_or("", |step| step.outcome.as_str())
}

#[test]
fn what_no_frontend_names_is_refused_in_virtual_ranges_and_left_alone_elsewhere() {
    let vips = vec![Frontend::vip(ip("10.96.0.10"), 80), Frontend::vip(ip("203.0.113.5"), 80)];
    let node = Node::new(vec![served(service(vips, remote_and_local()), EngineKind::Nftables)]);
    let verdict = |destination| explain(&node, &from_outside(destination)).verdict;
    assert_eq!(verdict("10.96.0.10:80"), Verdict::Forwarded);
    assert_eq!(verdict("10.96.0.10:81"), Verdict::Rejected, "another port of a VIP in a virtual range");
    assert_eq!(verdict("10.96.7.7:80"), Verdict::Rejected, "an address of it that is no VIP");
    assert_eq!(verdict("203.0.113.5:81"), Verdict::NotOurs, "another port of a VIP elsewhere");
    assert_eq!(verdict("192.0.2.10:22"), Verdict::NotOurs);
    assert_eq!(verdict("[fd00:96::5]:80"), Verdict::Rejected);
    let udp = Packet { protocol: Protocol::Udp, ..from_outside("10.96.0.10:80") };
    assert_eq!(explain(&node, &udp).verdict, Verdict::Rejected, "the protocol is part of a frontend");

    let mut bound = node.clone();
    bound.network.virtual_ranges = vec![net("192.0.2.0/24")];
    assert_eq!(explain(&bound, &from_outside("192.0.2.10:22")).verdict, Verdict::Rejected, "even if the node has it");
    bound.guard = false;
    assert_eq!(explain(&bound, &from_outside("192.0.2.10:22")).verdict, Verdict::NotOurs, "nobody refuses");
}

#[test]
fn a_vip_wins_over_a_node_port_on_one_address() {
    let other = ServiceKey::new("ops", "vip").unwrap();
    let by_port = served(service(vec![node_port(30080)], remote_and_local()), EngineKind::Nftables);
    let by_vip = Service { key: other.clone(), ..service(vec![Frontend::vip(ip("192.0.2.10"), 30080)], vec![]) };
    let node = Node::new(vec![by_port, served(by_vip, EngineKind::Nftables)]);
    let told = explain(&node, &from_outside("192.0.2.10:30080"));
    assert_eq!(told.held.unwrap().selected.service.key, other);
    assert_eq!(told.verdict, Verdict::Rejected, "and it does not fall back when the VIP has no endpoints");
    assert_eq!(explain(&node, &from_outside("10.244.0.1:30080")).verdict, Verdict::Forwarded);
}

#[test]
fn a_node_port_is_served_on_the_addresses_that_were_asked_for() {
    let mut at_some = node_port(30080);
    at_some.at = At::NodePort(NodePort { v4: true, v6: false, addresses: vec![net("192.0.2.0/24")] });
    let verdict = |frontend: &Frontend, configured: &[IpNet], destination: &str| {
        let mut node = Node::new(vec![served(service(vec![frontend.clone()], remote_and_local()), EngineKind::Ipvs)]);
        node.node_port_addresses = configured.to_vec();
        explain(&node, &from_outside(destination)).verdict
    };
    let everywhere = node_port(30080);
    assert_eq!(verdict(&at_some, &[], "192.0.2.10:30080"), Verdict::Forwarded);
    assert_eq!(verdict(&at_some, &[], "10.244.0.1:30080"), Verdict::NotOurs);
    assert_eq!(verdict(&at_some, &[], "[fd00::10]:30080"), Verdict::NotOurs);
    assert_eq!(verdict(&at_some, &[net("10.0.0.0/8")], "192.0.2.10:30080"), Verdict::Forwarded, "its own word is last");
    assert_eq!(verdict(&everywhere, &[net("10.0.0.0/8")], "192.0.2.10:30080"), Verdict::NotOurs);
    assert_eq!(verdict(&everywhere, &[net("10.0.0.0/8")], "10.244.0.1:30080"), Verdict::Forwarded);
    assert_eq!(verdict(&everywhere, &[], "203.0.113.77:30080"), Verdict::NotOurs, "another node's address");
    assert_eq!(verdict(&everywhere, &[], "[fd00::10]:30080"), Verdict::Rejected, "no endpoint of the family");
}

#[test]
fn node_ports_on_loopback_are_the_proxys() {
    let frontends = vec![node_port(30080)];
    let mut node = Node::new(vec![served(service(frontends, remote_and_local()), EngineKind::Nftables)]);
    let local = packet("127.0.0.1", "127.0.0.1:30080", Arrival::Node);
    let told = explain(&node, &local);
    assert_eq!((told.verdict, told.engine), (Verdict::Forwarded, Some(EngineKind::Userspace)));
    assert_eq!(told.source_nat, Some(NatReason::Relayed));
    node.loopback = false;
    assert_eq!(explain(&node, &local).verdict, Verdict::NotOurs);
}

#[test]
fn a_range_of_ports_is_one_frontend() {
    let ranged = Frontend { ports: PortRange { first: 5000, last: 5010 }, ..Frontend::vip(ip("10.96.0.10"), 0) };
    let node = Node::new(vec![served(service(vec![ranged], remote_and_local()), EngineKind::Userspace)]);
    for (port, verdict) in [(4999, Verdict::Rejected), (5000, Verdict::Forwarded), (5010, Verdict::Forwarded)] {
        assert_eq!(explain(&node, &from_outside(&format!("10.96.0.10:{port}"))).verdict, verdict);
    }
}

#[test]
fn a_hairpin_is_said_where_one_endpoint_is_the_client() {
    let vip = Frontend::vip(ip("10.96.0.10"), 80);
    let both = Node::new(vec![served(service(vec![vip.clone()], remote_and_local()), EngineKind::Nftables)]);
    let itself = packet("10.244.0.5", "10.96.0.10:80", Arrival::Interface("veth3"));
    let told = explain(&both, &itself);
    assert_eq!(told.source_nat, Some(NatReason::LocalSource));
    assert_eq!(told.candidates.iter().map(|c| c.hairpin).collect::<Vec<_>>(), [false, true]);
    assert!(outcome(&told, Stage::SourceNat).ends_with("translated if 10.244.0.5:8080 itself is picked"));

    let only = remote_and_local().split_off(1);
    let alone = Node::new(vec![served(service(vec![vip], only), EngineKind::Nftables)]);
    assert_eq!(explain(&alone, &itself).source_nat, Some(NatReason::Hairpin));
}

#[test]
fn affinity_holds_while_its_endpoint_takes_flows() {
    let pinned = remote_and_local()[1].key;
    let affinity = ClientAffinity { timeout: Duration::from_secs(60), prefix_v4: 24, prefix_v6: 64 };
    let with = |state, record: IpAddr| {
        let mut endpoints = remote_and_local();
        endpoints[1].state = state;
        let mut service = service(vec![Frontend::vip(ip("10.96.0.10"), 80)], endpoints);
        Arc::make_mut(&mut service.definition).client_affinity = Some(affinity);
        let mut node = Node::new(vec![served(service, EngineKind::Nftables)]);
        node.affinity.insert(record, pinned);
        explain(&node, &from_outside("10.96.0.10:80"))
    };
    let probabilities = |told: &Explanation| told.candidates.iter().map(|c| c.probability).collect::<Vec<_>>();
    let told = with(EndpointState::Ready, ip("198.51.100.0"));
    assert_eq!(probabilities(&told), [0.0, 1.0]);
    assert!(told.candidates[1].pinned);
    assert_eq!(told.candidates[0].why_not.as_deref(), Some("affinity: the client stays with 10.244.0.5:8080"));
    let told = with(EndpointState::Draining, ip("198.51.100.0"));
    assert_eq!(probabilities(&told), [1.0, 0.0], "a record for a draining endpoint is ignored");
    assert_eq!(told.candidates[1].why_not.as_deref(), Some("DRAINING; 1 READY is usable"));
    assert!(!told.candidates[0].pinned);
    assert_eq!(
        probabilities(&with(EndpointState::Ready, ip("198.51.100.7"))),
        [0.5, 0.5],
        "the record is the prefix's"
    );
}

#[test]
fn a_hash_pins_only_where_the_model_picks() {
    for (engine, pins) in [(EngineKind::Userspace, true), (EngineKind::Ipvs, false)] {
        for algorithm in [Algorithm::Sh, Algorithm::Mh, Algorithm::Dh] {
            let mut service = service(vec![Frontend::vip(ip("10.96.0.10"), 80)], remote_and_local());
            service.scheduler.algorithm = algorithm;
            let told = explain(&Node::new(vec![served(service, engine)]), &from_outside("10.96.0.10:80"));
            assert_eq!(told.candidates.iter().any(|c| c.pinned), pins, "{engine} {algorithm:?}");
            assert_eq!(told.candidates.iter().any(|c| c.probability == 1.0), pins, "{engine} {algorithm:?}");
        }
    }
}
