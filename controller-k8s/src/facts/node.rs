//! This Node.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;

use super::lenient;

const ZONE: &str = "topology.kubernetes.io/zone";
/// The cluster autoscaler's announcement that the node goes.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// What counts of the Node that we run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its zone; empty is none.
    pub zone: Option<Box<str>>,
    /// One address for each family: the first InternalIP, else the first ExternalIP. The primary family's comes first.
    pub addresses: Vec<IpAddr>,
    /// Where its pods are.
    pub pod_ranges: Vec<IpNet>,
    /// It is being deleted, or will be: load balancers should send no new traffic. `spec.unschedulable` does not count.
    pub going: bool,
}

impl NodeFacts {
    /// Reads the object.
    #[must_use]
    pub fn read(object: &Node) -> Self {
        let labels = object.metadata.labels.as_ref();
        let zone = labels.and_then(|labels| labels.get(ZONE)).filter(|zone| !zone.is_empty());
        let spec = object.spec.as_ref();
        let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let ranges = spec.and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default();
        Self {
            zone: zone.map(|zone| zone.as_str().into()),
            addresses: addresses(object),
            pod_ranges: ranges.iter().filter_map(|text| lenient::range(text)).collect(),
            going: object.metadata.deletion_timestamp.is_some()
                || taints.iter().any(|taint| taint.key == TO_BE_DELETED),
        }
    }

    /// Its address of a family.
    #[must_use]
    pub fn address(&self, v6: bool) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv6() == v6)
    }
}

fn addresses(object: &Node) -> Vec<IpAddr> {
    let listed = object.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
    let of_type = |wanted: &'static str| {
        listed.iter().filter(move |a| a.type_ == wanted).filter_map(|a| lenient::address(&a.address))
    };
    let mut found: Vec<IpAddr> = Vec::new();
    for address in of_type("InternalIP").chain(of_type("ExternalIP")) {
        if found.iter().all(|other| other.is_ipv6() != address.is_ipv6()) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> NodeFacts {
        NodeFacts::read(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn the_first_internal_address_of_each_family_counts() {
        let node = read(json!({
            "metadata": { "name": "n", "labels": { "topology.kubernetes.io/zone": "a" } },
            "spec": { "podCIDRs": ["10.244.1.0/24", "nonsense"] },
            "status": { "addresses": [
                { "type": "ExternalIP", "address": "192.0.2.1" },
                { "type": "Hostname", "address": "n" },
                { "type": "InternalIP", "address": "fd00::1" },
                { "type": "InternalIP", "address": "10.0.0.1" },
                { "type": "InternalIP", "address": "10.0.0.2" },
            ] },
        }));
        assert_eq!(node.addresses, ["fd00::1".parse::<IpAddr>().unwrap(), "10.0.0.1".parse().unwrap()]);
        assert_eq!(node.pod_ranges, ["10.244.1.0/24".parse::<IpNet>().unwrap()]);
        assert_eq!((node.zone.as_deref(), node.going), (Some("a"), false));
    }

    #[test]
    fn a_node_that_goes_is_known_by_its_deletion_or_its_taint() {
        assert!(read(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })).going);
        let tainted =
            |key: &str| read(json!({ "metadata": {}, "spec": { "taints": [{ "key": key, "effect": "NoSchedule" }] } }));
        assert!(tainted("ToBeDeletedByClusterAutoscaler").going);
        assert!(!tainted("node.kubernetes.io/unschedulable").going);
    }
}
