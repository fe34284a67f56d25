//! Who is inside: clients on this node and the owners' local sources.

use std::fmt;
use std::net::IpAddr;

use vipd_model::Network;
use vipd_model::source::{Arrival, SourceClass};

/// What the data path knows of the network; swapped as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The union over the owners. A proxy sees no interface, so the local interfaces say nothing to it.
    pub network: Network,
    /// Addresses of this node, sorted.
    pub addresses: Vec<IpAddr>,
}

impl Sources {
    /// What a client is to this node.
    #[must_use]
    pub fn class(&self, client: IpAddr) -> SourceClass {
        let is_node = |address| self.addresses.binary_search(&address).is_ok();
        SourceClass::of(client, Arrival::Unknown, &self.network, is_node)
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (addresses, local) = (self.addresses.len(), self.network.local_sources.len());
        write!(f, "{addresses} node addresses, {local} local sources")
    }
}
