//! What is said once for the node: the owner "k8s" with what it knows of the network.

use ipnet::IpNet;
use vipd_proto::v1;

use crate::facts::NodeFacts;

/// Under which name everything of Kubernetes is declared.
pub const OWNER: &str = "k8s";

/// How clients that live on this node are known: kube-proxy's `detectLocalMode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalSources {
    /// By these ranges, the whole cluster's. None: they are not known, and nothing is decided by it.
    Ranges(Vec<IpNet>),
    /// By the Node's `podCIDRs`, followed as they change.
    NodeRanges,
    /// By the interface that they come in at; `veth*` is every one that begins so.
    Interfaces(String),
}

/// The owner's settings. No lease, and state is restored at once: what is served outlives the API server.
#[must_use]
pub fn owner<'a>(
    node: &NodeFacts,
    local: &LocalSources,
    service_ranges: impl IntoIterator<Item = &'a IpNet>,
    source_nat_all: bool,
) -> v1::Owner {
    let texts = |mut ranges: Vec<IpNet>| {
        ranges.sort();
        ranges.dedup();
        ranges.iter().map(IpNet::to_string).collect()
    };
    let (ranges, interfaces) = match local {
        LocalSources::Ranges(ranges) => (ranges.clone(), Vec::new()),
        LocalSources::NodeRanges => (node.pod_ranges.clone(), Vec::new()),
        LocalSources::Interfaces(pattern) => (Vec::new(), vec![pattern.clone()]),
    };
    v1::Owner {
        name: OWNER.to_owned(),
        network: Some(v1::Network {
            local_sources: texts(ranges),
            local_source_interfaces: interfaces,
            virtual_ranges: texts(service_ranges.into_iter().copied().collect()),
            source_nat_all,
        }),
        on_restart: v1::owner::Restart::Restore.into(),
        node_draining: node.going,
        ..Default::default()
    }
}
