//! An EndpointSlice.

use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::{self as discovery, EndpointSlice};
use k8s_openapi::jiff::Timestamp;

use super::{Key, Protocol, is_hidden, lenient};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What counts of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceFacts {
    /// Whose endpoints these are.
    pub service: Key,
    /// Which of two slices is the newer.
    pub version: SliceVersion,
    /// What its endpoints serve; each with a number.
    pub ports: Vec<SlicePort>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// When what it tells of came to pass: the oldest change that no earlier version of the slice had told of.
    pub triggered: Option<Timestamp>,
    /// Endpoints of the wrong family, unparsable or not addresses of a host: the first one's text.
    pub unusable: Option<Box<str>>,
}

/// Orders the slices of one service: by the last write, which the resource version tells; by creation where a server's
/// versions are no numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SliceVersion {
    resource: u64,
    created: Option<Timestamp>,
    name: Box<str>,
}

/// A port of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Which port of the Service.
    pub name: Box<str>,
    /// Part of that question.
    pub protocol: Protocol,
    /// Where the endpoints listen.
    pub port: u16,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it is.
    pub address: IpAddr,
    /// It is on this node.
    pub local: bool,
    /// Absent is true. With publishNotReadyAddresses it is true of every pod.
    pub ready: bool,
    /// Absent is true.
    pub serving: bool,
    /// Absent is false.
    pub terminating: bool,
    /// It has hints for nodes; whether one is for this node.
    pub node_hint: Option<bool>,
    /// Hints for zones.
    pub zone_hints: Box<[Box<str>]>,
    /// Who it is: "pod shop/web-7f9".
    pub target: Box<str>,
    /// And which of that name.
    pub target_uid: Box<str>,
}

impl SliceFacts {
    /// Reads the object on the node of that name. `None` for what is of no use here: hidden by a label, without a Service,
    /// names instead of addresses.
    #[must_use]
    pub fn read(object: &EndpointSlice, node: &str) -> Option<Self> {
        let metadata = &object.metadata;
        let service = metadata.labels.as_ref()?.get(SERVICE_NAME).filter(|name| !name.is_empty())?;
        let v6 = match object.address_type.as_str() {
            "IPv4" => false,
            "IPv6" => true,
            _ => return None,
        };
        if is_hidden(metadata) {
            return None;
        }
        let mut unusable = None;
        let mut endpoints = Vec::with_capacity(object.endpoints.len());
        for endpoint in &object.endpoints {
            // Only the first counts, as the API says since 1.22.
            let Some(text) = endpoint.addresses.first() else { continue };
            match lenient::address(text).filter(|address| address.is_ipv6() == v6 && is_of_a_host(address)) {
                Some(address) => endpoints.push(read_endpoint(endpoint, address, node)),
                None => unusable = unusable.or_else(|| Some(text.as_str().into())),
            }
        }
        let annotations = metadata.annotations.as_ref();
        Some(Self {
            service: Key::new(metadata.namespace.as_deref().unwrap_or_default(), service),
            version: SliceVersion {
                resource: metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0),
                created: metadata.creation_timestamp.as_ref().map(|time| time.0),
                name: metadata.name.as_deref().unwrap_or_default().into(),
            },
            ports: object.ports.iter().flatten().filter_map(read_port).collect(),
            endpoints,
            triggered: annotations.and_then(|all| all.get(TRIGGER_TIME)).and_then(|text| text.parse().ok()),
            unusable,
        })
    }
}

/// A port without name belongs to no port; one without number would mean all of them, which is not implemented anywhere.
fn read_port(port: &discovery::EndpointPort) -> Option<SlicePort> {
    let number = port.port.and_then(|number| u16::try_from(number).ok()).filter(|&number| number != 0)?;
    let protocol = Protocol::parse(port.protocol.as_deref())?;
    Some(SlicePort { name: port.name.as_deref()?.into(), protocol, port: number })
}

fn read_endpoint(endpoint: &discovery::Endpoint, address: IpAddr, node: &str) -> Endpoint {
    let conditions = endpoint.conditions.as_ref();
    let hints = endpoint.hints.as_ref();
    let for_nodes = hints.and_then(|hints| hints.for_nodes.as_deref()).filter(|nodes| !nodes.is_empty());
    let for_zones = hints.and_then(|hints| hints.for_zones.as_deref()).unwrap_or_default();
    let target = endpoint.target_ref.as_ref();
    let named = target.map(|target| {
        let kind = target.kind.as_deref().unwrap_or("object").to_lowercase();
        let namespace = target.namespace.as_deref().unwrap_or_default();
        format!("{kind} {namespace}/{}", target.name.as_deref().unwrap_or_default())
    });
    Endpoint {
        address,
        local: endpoint.node_name.as_deref() == Some(node),
        ready: conditions.and_then(|conditions| conditions.ready).unwrap_or(true),
        serving: conditions.and_then(|conditions| conditions.serving).unwrap_or(true),
        terminating: conditions.and_then(|conditions| conditions.terminating).unwrap_or(false),
        node_hint: for_nodes.map(|nodes| nodes.iter().any(|hint| hint.name == node)),
        zone_hints: for_zones.iter().map(|zone| zone.name.as_str().into()).collect(),
        target: named.unwrap_or_default().into(),
        target_uid: target.and_then(|target| target.uid.as_deref()).unwrap_or_default().into(),
    }
}

/// An address that nobody can be reached at would have the whole service refused.
fn is_of_a_host(address: &IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
}
