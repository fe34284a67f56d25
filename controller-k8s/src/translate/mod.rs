//! Facts of Kubernetes → services and endpoints of vipd: the one place where both vocabularies meet.
//!
//! Pure, one Service at a time: the same facts are the same messages in whatever order they came. A vipd service is a
//! port of a Service, in both families: `shop/web:http/tcp`, in the group `shop/web`. What each field becomes is in
//! docs/kubernetes.md; `frontends`, `endpoints` and `tiers` have the three parts, `owner` what is said once for the node.

mod endpoints;
mod frontends;
mod node_ports;
mod owner;
#[cfg(test)]
mod tests;
mod tiers;

use vipd_proto::v1;

use crate::facts::{Key, NodeFacts, Port, Protocol, Remark, ServiceFacts, SliceFacts};

pub use node_ports::NodePorts;
pub use owner::{LocalSources, OWNER, owner};

/// What is not in the Service itself.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// This node.
    pub node: &'a NodeFacts,
    /// Where node ports are served.
    pub node_ports: &'a NodePorts,
    /// The algorithm of every service; absent: an operator's choice for one is kept.
    pub scheduler: Option<v1::scheduler::Algorithm>,
}

/// One port of a Service, as vipd is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// Without endpoints.
    pub definition: v1::Service,
    /// Ordered by address and port; each pair once.
    pub endpoints: Vec<v1::Endpoint>,
}

/// What one Service becomes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Translation {
    /// In the order of its ports.
    pub services: Vec<Declared>,
    /// What its author should know, each once.
    pub remarks: Vec<Remark>,
}

/// Translates one Service with all its slices.
#[must_use]
pub fn translate(key: &Key, service: &ServiceFacts, slices: &[&SliceFacts], context: Context<'_>) -> Translation {
    let mut remarks = service.remarks.clone();
    for slice in slices {
        remarks.extend(slice.unusable.as_deref().map(|text| {
            let text = format!("endpoint {text:?} is left out: it is no address of a host of the slice's address type");
            Remark::new("InvalidEndpoint", text)
        }));
    }
    let declare = |port: &Port| {
        let merged = endpoints::merge(slices, &port.name, port.protocol);
        let tiers = tiers::tiers(&merged, context.node.zone.as_deref());
        remarks.extend(tiers.ignored.iter().cloned());
        Declared {
            definition: define(key, service, port, context),
            endpoints: merged.iter().zip(&tiers.of).map(|(endpoint, &tier)| endpoint.declare(tier)).collect(),
        }
    };
    let services = service.ports.iter().map(declare).collect();
    remarks.sort();
    remarks.dedup();
    Translation { services, remarks }
}

/// The name of the vipd service: the protocol is part of it, since a port may change that while it keeps its own name.
#[must_use]
pub fn service_name(key: &Key, port: &str, protocol: Protocol) -> String {
    format!("{key}:{port}/{}", protocol.word())
}

/// The Service that a vipd service is a port of.
#[must_use]
pub fn service_key(name: &str) -> Option<Key> {
    let (service, _) = name.split_once(':')?;
    let (namespace, name) = service.split_once('/')?;
    Some(Key::new(namespace, name))
}

fn define(key: &Key, service: &ServiceFacts, port: &Port, context: Context<'_>) -> v1::Service {
    let seconds = |seconds: u32| pbjson_types::Duration { seconds: seconds.into(), nanos: 0 };
    v1::Service {
        owner: OWNER.to_owned(),
        name: service_name(key, &port.name, port.protocol),
        protocol: protocol(port.protocol).into(),
        frontends: frontends::frontends(service, port, context),
        scheduler: context.scheduler.map(|algorithm| v1::Scheduler {
            algorithm: algorithm.into(),
            fallback: v1::scheduler::Fallback::Nearest.into(),
            ..Default::default()
        }),
        client_affinity: service
            .affinity
            .map(|timeout| v1::ClientAffinity { timeout: Some(seconds(timeout)), ..Default::default() }),
        group: key.to_string(),
        // Of two Services with one address and port the older has it, on every node.
        on_contest: v1::service::Contest::Wait.into(),
        precedence: service.created.max(1),
        health_port: service.health_port.into(),
        ..Default::default()
    }
}

fn protocol(protocol: Protocol) -> v1::Protocol {
    match protocol {
        Protocol::Tcp => v1::Protocol::Tcp,
        Protocol::Udp => v1::Protocol::Udp,
        Protocol::Sctp => v1::Protocol::Sctp,
    }
}
