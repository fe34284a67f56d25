//! What a service's objects depend on besides the service: the node.

use std::net::IpAddr;

use ipnet::IpNet;
use vipd_model::{Family, Network, NodePort};

use crate::guard::InvalidPackets;

/// The node as the engines see it. A new value is rendered for the node's own objects and for every service with a node
/// port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The union over the owners.
    pub network: Network,
    /// Every address of this node, loopback included; sorted.
    pub addresses: Vec<IpAddr>,
    /// Configured: which of them serve node ports that do not say so themselves. Empty: all.
    pub node_port_addresses: Vec<IpNet>,
    /// What happens to packets that connection tracking calls INVALID and that concern a frontend.
    pub invalid_packets: InvalidPackets,
}

impl Node {
    /// The addresses that serve a node port, in one family.
    pub fn node_port_addresses<'a>(&'a self, at: &'a NodePort, family: Family) -> impl Iterator<Item = IpAddr> + 'a {
        let selectors = self.node_port_selectors(at);
        let wanted = match family {
            Family::V4 => at.v4,
            Family::V6 => at.v6,
        };
        self.addresses.iter().copied().filter(move |address| {
            wanted
                && Family::of(*address) == family
                && (selectors.is_empty() || selectors.iter().any(|net| net.contains(address)))
        })
    }

    /// The CIDRs that select them: the frontend's own, else the node's; empty: every address.
    #[must_use]
    pub fn node_port_selectors<'a>(&'a self, at: &'a NodePort) -> &'a [IpNet] {
        if at.addresses.is_empty() { &self.node_port_addresses } else { &at.addresses }
    }
}
