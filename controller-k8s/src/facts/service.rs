//! A Service.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use super::{Protocol, Remark, is_hidden, lenient};

/// `sessionAffinityConfig.clientIP.timeoutSeconds` when nobody says otherwise: three hours.
const AFFINITY_SECONDS: u32 = 10_800;

/// What counts of a Service that has a virtual address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFacts {
    /// For events.
    pub uid: Box<str>,
    /// Seconds since 1970.
    pub created: u64,
    /// At most one of each family; the first is the primary one.
    pub cluster_ips: Vec<IpAddr>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// `externalIPs` of the families that it has.
    pub external_ips: Vec<IpAddr>,
    /// What load balancers added.
    pub load_balancer: LoadBalancer,
    /// `internalTrafficPolicy: Local`
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`, on a Service that is reachable from outside.
    pub external_local: bool,
    /// `sessionAffinity: ClientIP`, for so many seconds.
    pub affinity: Option<u32>,
    /// Where load balancers ask whether this node has endpoints; 0: nowhere.
    pub health_port: u16,
    /// What could not be understood.
    pub remarks: Vec<Remark>,
}

/// What counts for the addresses of load balancers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancer {
    /// Those that nodes serve themselves: `ipMode` VIP, or none.
    pub addresses: Vec<IpAddr>,
    /// `loadBalancerSourceRanges` of both families.
    pub source_ranges: Vec<IpNet>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Empty: the only one.
    pub name: Box<str>,
    /// What is spoken there.
    pub protocol: Protocol,
    /// At the virtual addresses.
    pub port: u16,
    /// At the nodes' addresses; 0: nowhere.
    pub node_port: u16,
}

impl ServiceFacts {
    /// Reads the object. `None` for what is not ours to serve: headless, ExternalName, hidden by a label.
    #[must_use]
    pub fn read(object: &Service) -> Option<Self> {
        let spec = object.spec.as_ref()?;
        let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
        let cluster_ips = cluster_ips(spec);
        if is_hidden(&object.metadata) || kind == "ExternalName" || cluster_ips.is_empty() {
            return None;
        }
        let mut remarks = Vec::new();
        let has_family = |address: &IpAddr| cluster_ips.iter().any(|ip| ip.is_ipv6() == address.is_ipv6());
        let external_ips = external_ips(spec, &mut remarks);
        let loads = |kind: &str| kind == "LoadBalancer";
        let external = matches!(kind, "NodePort" | "LoadBalancer") || !external_ips.is_empty();
        let external_local = external && spec.external_traffic_policy.as_deref() == Some("Local");
        let checks = loads(kind) && external_local;
        Some(Self {
            uid: object.metadata.uid.as_deref().unwrap_or_default().into(),
            created: object.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second().max(0) as u64),
            ports: ports(spec, &mut remarks),
            load_balancer: LoadBalancer {
                addresses: balancer_addresses(object, &mut remarks).into_iter().filter(has_family).collect(),
                source_ranges: source_ranges(spec, &mut remarks),
            },
            external_ips: external_ips.into_iter().filter(has_family).collect(),
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            external_local,
            affinity: affinity(spec),
            health_port: if checks { port_number(spec.health_check_node_port).unwrap_or(0) } else { 0 },
            cluster_ips,
            remarks,
        })
    }

    /// Whether it has an address of this family, and so anything at all in it.
    #[must_use]
    pub fn has_family(&self, v6: bool) -> bool {
        self.cluster_ips.iter().any(|address| address.is_ipv6() == v6)
    }
}

/// `clusterIPs[i]` is of the family `ipFamilies[i]`; without families `clusterIP` is all there is.
fn cluster_ips(spec: &ServiceSpec) -> Vec<IpAddr> {
    let families = spec.ip_families.as_deref().unwrap_or_default();
    let listed = spec.cluster_ips.as_deref().unwrap_or_default();
    if families.is_empty() || listed.is_empty() {
        return spec.cluster_ip.as_deref().and_then(lenient::address).into_iter().collect();
    }
    let mut found: Vec<IpAddr> = Vec::new();
    for (family, text) in families.iter().zip(listed) {
        let address = lenient::address(text).filter(|address| address.is_ipv6() == (family == "IPv6"));
        found.extend(address.filter(|address| found.iter().all(|other| other.is_ipv6() != address.is_ipv6())));
    }
    found
}

fn ports(spec: &ServiceSpec, remarks: &mut Vec<Remark>) -> Vec<Port> {
    let read = |port: &ServicePort| {
        let name = port.name.as_deref().unwrap_or_default();
        let known = Protocol::parse(port.protocol.as_deref()).zip(port_number(Some(port.port)));
        if known.is_none() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let text = format!("port {name:?} ({protocol} {}) is not served: no such port or protocol", port.port);
            remarks.push(Remark::new("InvalidPort", text));
        }
        let (protocol, number) = known?;
        Some(Port { name: name.into(), protocol, port: number, node_port: port_number(port.node_port).unwrap_or(0) })
    };
    spec.ports.iter().flatten().filter_map(read).collect()
}

fn external_ips(spec: &ServiceSpec, remarks: &mut Vec<Remark>) -> Vec<IpAddr> {
    let listed = spec.external_ips.iter().flatten().filter(|text| !text.trim().is_empty());
    understood(listed, "InvalidExternalIP", "externalIPs", lenient::address, remarks)
}

fn balancer_addresses(object: &Service, remarks: &mut Vec<Remark>) -> Vec<IpAddr> {
    let balancer = object.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingresses = balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default();
    let ours = ingresses.iter().filter(|ingress| ingress.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"));
    let texts = ours.filter_map(|ingress| ingress.ip.as_ref()).filter(|text| !text.is_empty());
    understood(texts, "InvalidLoadBalancerIP", "status.loadBalancer.ingress", lenient::address, remarks)
}

fn source_ranges(spec: &ServiceSpec, remarks: &mut Vec<Remark>) -> Vec<IpNet> {
    let listed = spec.load_balancer_source_ranges.iter().flatten().filter(|text| !text.trim().is_empty());
    understood(listed, "InvalidSourceRange", "loadBalancerSourceRanges", lenient::range, remarks)
}

/// What parses, in order and once; what does not is left out with a remark.
fn understood<'a, T: PartialEq>(
    texts: impl Iterator<Item = &'a String>,
    reason: &'static str,
    field: &str,
    parse: impl Fn(&str) -> Option<T>,
    remarks: &mut Vec<Remark>,
) -> Vec<T> {
    let mut found = Vec::new();
    for text in texts {
        match parse(text) {
            Some(value) if !found.contains(&value) => found.push(value),
            Some(_) => {}
            None => remarks.push(Remark::new(reason, format!("{text:?} of {field} is left out: it cannot be parsed"))),
        }
    }
    found
}

fn affinity(spec: &ServiceSpec) -> Option<u32> {
    let wanted = spec.session_affinity.as_deref() == Some("ClientIP");
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = config.and_then(|config| config.timeout_seconds).and_then(|seconds| u32::try_from(seconds).ok());
    // The API allows 1 s to 24 h; so does vipd.
    wanted.then(|| seconds.unwrap_or(AFFINITY_SECONDS).clamp(1, 86_400))
}

fn port_number(number: Option<i32>) -> Option<u16> {
    number.and_then(|number| u16::try_from(number).ok()).filter(|&number| number != 0)
}
