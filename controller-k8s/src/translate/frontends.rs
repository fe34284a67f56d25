//! Where a port of a Service is reachable.

use std::net::IpAddr;

use ipnet::IpNet;
use vipd_proto::v1;
use vipd_proto::v1::frontend::{At, Policy, Scope};

use super::Context;
use crate::facts::{NodeFacts, Port, ServiceFacts};

/// The frontends of a port: virtual addresses, then the node port. An address that the Service has twice is one: the
/// cluster's own use of it comes first, then that with source ranges.
pub(super) fn frontends(service: &ServiceFacts, port: &Port, context: Context<'_>) -> Vec<v1::Frontend> {
    let internal = policy(service.internal_local);
    let external = policy(service.external_local);
    let mut found: Vec<v1::Frontend> = Vec::new();
    let mut add = |address: &IpAddr, scope: Scope, policy: Policy, source_ranges: Vec<String>| {
        let at = Some(At::Address(address.to_string()));
        if found.iter().all(|other| other.at != at) {
            let (scope, policy) = (scope.into(), policy.into());
            found.push(v1::Frontend { at, port: port.port.into(), scope, policy, source_ranges, ..Default::default() });
        }
    };
    for address in &service.cluster_ips {
        add(address, Scope::Internal, internal, Vec::new());
    }
    for address in &service.load_balancer.addresses {
        add(address, Scope::External, external, source_ranges(service, *address, context.node));
    }
    for address in &service.external_ips {
        add(address, Scope::External, external, Vec::new());
    }
    if let Some(node_port) = node_port(service, port, context) {
        found.push(v1::Frontend {
            at: Some(At::NodePort(node_port)),
            port: port.node_port.into(),
            scope: Scope::External.into(),
            policy: external.into(),
            ..Default::default()
        });
    }
    found
}

/// The ranges of the frontend's family; none of it is everybody. A node that may come in at all may come from the
/// virtual address too: that is the source of its own processes where the address is on one of its interfaces.
fn source_ranges(service: &ServiceFacts, address: IpAddr, node: &NodeFacts) -> Vec<String> {
    let v6 = address.is_ipv6();
    let ranges = service.load_balancer.source_ranges.iter().filter(|range| range.addr().is_ipv6() == v6);
    let mut ranges: Vec<IpNet> = ranges.copied().collect();
    if node.address(v6).is_some_and(|node| ranges.iter().any(|range| range.contains(&node))) {
        ranges.push(address.into());
    }
    ranges.sort();
    ranges.dedup();
    ranges.iter().map(IpNet::to_string).collect()
}

fn node_port(service: &ServiceFacts, port: &Port, context: Context<'_>) -> Option<v1::NodePort> {
    if port.node_port == 0 {
        return None;
    }
    let mut addresses = Vec::new();
    let mut serve = |v6: bool| {
        let at = context.node_ports.addresses(v6, context.node);
        let served = service.has_family(v6) && at.is_some();
        addresses.extend(at.filter(|_| served).into_iter().flatten().map(|range| range.to_string()));
        served
    };
    let family = match (serve(false), serve(true)) {
        (true, true) => v1::node_port::Family::Both,
        (true, false) => v1::node_port::Family::Ipv4,
        (false, true) => v1::node_port::Family::Ipv6,
        (false, false) => return None,
    };
    Some(v1::NodePort { family: family.into(), addresses })
}

fn policy(local: bool) -> Policy {
    if local { Policy::Local } else { Policy::All }
}
