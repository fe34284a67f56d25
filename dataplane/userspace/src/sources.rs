//! Who is inside: clients on this node and the owners' local sources.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// What the data path knows of the network; swapped as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Addresses of this node.
    pub node: BTreeSet<IpAddr>,
    /// The union of the owners' `local_sources`.
    pub local: Vec<IpNet>,
}

impl Sources {
    /// Whether a client is on this node or among the local sources.
    #[must_use]
    pub fn is_inside(&self, client: IpAddr) -> bool {
        client.is_loopback() || self.node.contains(&client) || self.local.iter().any(|net| net.contains(&client))
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} node addresses, {} local sources", self.node.len(), self.local.len())
    }
}
