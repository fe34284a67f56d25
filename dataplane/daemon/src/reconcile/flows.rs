//! Which flows are a service's, and who may answer them. Pure: from what is declared and what this node is.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use vipd_engine::{Answerers, FlowFilter, Judge, Node};
use vipd_model::{At, EndpointKey, EndpointState, Family, Place, PortRange, Protocol, Service};

/// Above so many filters one walk that judges costs less.
const FEW: usize = 8;

/// Where clients reach a service: every address with its ports, node ports on every address that serves them.
pub(super) fn places(service: &Service, node: &Node) -> Vec<(IpAddr, PortRange)> {
    let mut places = Vec::new();
    for (_, frontend) in service.held_frontends() {
        match &frontend.at {
            At::Address(address) => places.push((*address, frontend.ports)),
            At::NodePort(at) => {
                let of = |family| node.node_port_addresses(at, family);
                places.extend(Family::ALL.into_iter().flat_map(of).map(|address| (address, frontend.ports)));
            }
        }
    }
    places
}

/// Adds the rule for a UDP service: its endpoints that may keep flows may answer, and these ports of relays.
pub(super) fn judge(judge: &mut Judge, service: &Service, node: &Node, relays: &[u16]) {
    if service.definition.protocol != Protocol::Udp {
        return;
    }
    let endpoints = keepers(service).map(|key| (key.address, key.port)).collect();
    let answerers = Arc::new(Answerers { endpoints, relays: relays.to_vec() });
    for (address, ports) in places(service, node) {
        judge.add(address, ports, &answerers);
    }
}

/// Who answers flows that the kernel translates, endpoints that are leaving included.
pub(super) fn answerers(service: &Service) -> Arc<Answerers> {
    let leaving = service.leaving.iter().map(|leaving| leaving.key);
    let keys = service.endpoints.iter().map(|endpoint| endpoint.key).chain(leaving);
    Arc::new(Answerers { endpoints: keys.map(|key| (key.address, key.port)).collect(), relays: Vec::new() })
}

/// Endpoints that may keep UDP flows.
fn keepers(service: &Service) -> impl Iterator<Item = EndpointKey> {
    service.endpoints.iter().filter(|endpoint| endpoint.state != EndpointState::NotReady).map(|endpoint| endpoint.key)
}

/// UDP flows that the kernel still sends to endpoints which may keep none any more. An engine names those that it has made
/// itself; these may be another's, which served the service before. Absent: too many to name, judge them.
pub(super) fn to_lost_endpoints(before: &Service, after: &Service, node: &Node) -> Option<Vec<FlowFilter>> {
    if before.definition.protocol != Protocol::Udp || after.definition.protocol != Protocol::Udp {
        return Some(Vec::new());
    }
    let kept: Vec<EndpointKey> = keepers(after).collect();
    let lost: Vec<EndpointKey> = keepers(before).filter(|key| !kept.contains(key)).collect();
    if lost.is_empty() {
        return Some(Vec::new());
    }
    let places = places(before, node);
    if places.len() * lost.len() > FEW || places.iter().any(|(_, ports)| !ports.is_one()) {
        return None;
    }
    let filter = |(address, ports): &(IpAddr, PortRange), key: &EndpointKey| FlowFilter {
        family: Family::of(*address),
        protocol: Protocol::Udp,
        destination: Some(*address),
        port: ports.first,
        reply_source: Some((key.address, key.port)),
    };
    let same_family = |place: &&(IpAddr, PortRange), key: &EndpointKey| place.0.is_ipv4() == key.address.is_ipv4();
    Some(
        lost.iter()
            .flat_map(|key| places.iter().filter(move |p| same_family(p, key)).map(move |p| filter(p, key)))
            .collect(),
    )
}

/// Services by where clients reach them, as filters name it: an address, or the node in a family.
pub(super) struct ByPlace(HashMap<(Family, Option<IpAddr>), Vec<PortRange>>);

/// Of these UDP services.
pub(super) fn by_place(services: &[&Arc<Service>], node: &Node) -> ByPlace {
    let mut by_place: HashMap<_, Vec<PortRange>> = HashMap::new();
    for service in services {
        for (address, ports) in places(service, node) {
            by_place.entry((Family::of(address), Some(address))).or_default().push(ports);
        }
        for span in service.held_frontends().flat_map(|(_, frontend)| frontend.spans()) {
            if let Place::Node(family) = span.place {
                by_place.entry((family, None)).or_default().push(span.ports);
            }
        }
    }
    ByPlace(by_place)
}

impl ByPlace {
    /// Whether a filter forgets all flows of one of them, whoever answers.
    pub(super) fn forgets_all_of_one(&self, filter: &FlowFilter) -> bool {
        let ports = self.0.get(&(filter.family, filter.destination)).into_iter().flatten();
        filter.protocol == Protocol::Udp
            && filter.reply_source.is_none()
            && ports.into_iter().any(|ports| ports.contains(filter.port))
    }
}
