//! Frontends and node ports.

use std::net::IpAddr;

use vipd_model::{At, Frontend, NodePort, Policy, PortRange, Scope, SourceNat};
use vipd_proto::v1;

use super::path::{Path, Problems};
use super::scalar;

/// The frontends of a service. A node port that names no family gets the families of the service's addresses.
pub fn parse_list(messages: &[v1::Frontend], at: &Path<'_>, problems: &mut Problems) -> Option<Vec<Frontend>> {
    let mut frontends = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        frontends.extend(parse(message, &at.index(index), problems));
    }
    fill_in_families(&mut frontends);
    (frontends.len() == messages.len()).then_some(frontends)
}

/// Node ports still without a family: those of the service's addresses, both if it has none.
fn fill_in_families(frontends: &mut [Frontend]) {
    let has = |wanted: fn(&IpAddr) -> bool| {
        frontends.iter().any(|f| matches!(&f.at, At::Address(address) if wanted(address)))
    };
    let (v4, v6) = match (has(IpAddr::is_ipv4), has(IpAddr::is_ipv6)) {
        (false, false) => (true, true),
        families => families,
    };
    for frontend in frontends {
        if let At::NodePort(node_port) = &mut frontend.at
            && !node_port.v4
            && !node_port.v6
        {
            (node_port.v4, node_port.v6) = (v4, v6);
        }
    }
}

/// One frontend; a node port that names no family has none yet.
fn parse(message: &v1::Frontend, at: &Path<'_>, problems: &mut Problems) -> Option<Frontend> {
    let place = match &message.at {
        Some(v1::frontend::At::Address(text)) => parse_vip(text, &at.field("address"), problems).map(At::Address),
        Some(v1::frontend::At::NodePort(node_port)) => {
            parse_node_port(node_port, &at.field("node_port"), problems).map(At::NodePort)
        }
        None => problems.invalid(at, "has neither `address` nor `node_port`; give one of them"),
    };
    let ports = parse_ports(message, at, problems);
    let scope = scalar::known(message.scope, &at.field("scope"), problems).map(|scope| match scope {
        v1::frontend::Scope::Internal => Scope::Internal,
        v1::frontend::Scope::External => Scope::External,
        v1::frontend::Scope::Unspecified => match place {
            Some(At::NodePort(_)) => Scope::External,
            _ => Scope::Internal,
        },
    });
    let policy = scalar::known(message.policy, &at.field("policy"), problems).map(|policy| match policy {
        v1::frontend::Policy::Unspecified | v1::frontend::Policy::All => Policy::All,
        v1::frontend::Policy::Local => Policy::Local,
    });
    let source_nat = scalar::known(message.source_nat, &at.field("source_nat"), problems).map(|nat| match nat {
        v1::frontend::SourceNat::Unspecified | v1::frontend::SourceNat::Auto => SourceNat::Auto,
        v1::frontend::SourceNat::Always => SourceNat::Always,
        v1::frontend::SourceNat::Never => SourceNat::Never,
    });
    let source_ranges = scalar::prefixes(&message.source_ranges, &at.field("source_ranges"), problems);
    Some(Frontend {
        at: place?,
        ports: ports?,
        scope: scope?,
        policy: policy?,
        source_ranges: source_ranges?,
        source_nat: source_nat?,
    })
}

fn parse_vip(text: &str, at: &Path<'_>, problems: &mut Problems) -> Option<IpAddr> {
    match scalar::address(text) {
        Ok(address) => Some(address),
        Err(why) => problems.invalid(at, why),
    }
}

fn parse_ports(message: &v1::Frontend, at: &Path<'_>, problems: &mut Problems) -> Option<PortRange> {
    let first = scalar::port(message.port, &at.field("port"), problems);
    let last = scalar::port(message.port_end, &at.field("port_end"), problems);
    Some(match (first?, last?) {
        (first, 0) => PortRange::one(first),
        (first, last) => PortRange { first, last },
    })
}

fn parse_node_port(message: &v1::NodePort, at: &Path<'_>, problems: &mut Problems) -> Option<NodePort> {
    use v1::node_port::Family;
    let families = scalar::known(message.family, &at.field("family"), problems).map(|family| match family {
        Family::Unspecified => (false, false),
        Family::Ipv4 => (true, false),
        Family::Ipv6 => (false, true),
        Family::Both => (true, true),
    });
    let addresses = scalar::prefixes(&message.addresses, &at.field("addresses"), problems);
    let (v4, v6) = families?;
    Some(NodePort { v4, v6, addresses: addresses? })
}

/// One frontend as replies show it.
#[must_use]
pub fn message(frontend: &Frontend) -> v1::Frontend {
    let at = match &frontend.at {
        At::Address(address) => v1::frontend::At::Address(address.to_string()),
        At::NodePort(node_port) => v1::frontend::At::NodePort(node_port_message(node_port)),
    };
    let scope = match frontend.scope {
        Scope::Internal => v1::frontend::Scope::Internal,
        Scope::External => v1::frontend::Scope::External,
    };
    let policy = match frontend.policy {
        Policy::All => v1::frontend::Policy::All,
        Policy::Local => v1::frontend::Policy::Local,
    };
    let source_nat = match frontend.source_nat {
        SourceNat::Auto => v1::frontend::SourceNat::Auto,
        SourceNat::Always => v1::frontend::SourceNat::Always,
        SourceNat::Never => v1::frontend::SourceNat::Never,
    };
    v1::Frontend {
        at: Some(at),
        port: frontend.ports.first.into(),
        port_end: if frontend.ports.is_one() { 0 } else { frontend.ports.last.into() },
        scope: scope.into(),
        policy: policy.into(),
        source_ranges: scalar::prefixes_message(&frontend.source_ranges),
        source_nat: source_nat.into(),
    }
}

fn node_port_message(node_port: &NodePort) -> v1::NodePort {
    use v1::node_port::Family;
    let family = match (node_port.v4, node_port.v6) {
        (true, false) => Family::Ipv4,
        (false, true) => Family::Ipv6,
        (true, true) => Family::Both,
        (false, false) => Family::Unspecified,
    };
    v1::NodePort { family: family.into(), addresses: scalar::prefixes_message(&node_port.addresses) }
}
