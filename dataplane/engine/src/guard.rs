//! The guard's input: what is the same for every balancer that does not do it in its own objects.
//!
//! A guard implements [`Steps`](crate::Steps) with [`GuardInput`]; its node objects are what [`Node`](crate::Node)
//! asks for: refused virtual ranges, the scoped treatment of INVALID packets, the anchor that keeps connection tracking
//! and NAT alive.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use vipd_model::service::NoEndpoints;
use vipd_model::{Family, PortRange, Protocol, ServiceKey};

/// What happens to INVALID packets to a frontend (out of window, or of a flow that was forgotten).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InvalidPackets {
    /// Dropped: answered with a reset they could end a healthy connection.
    #[default]
    Drop,
    /// Left alone.
    Off,
}

/// Where a frontend is, to the guard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A virtual IP.
    Vip(IpAddr),
    /// Addresses of this node.
    Node {
        /// In this family.
        family: Family,
        /// These of them; empty: every local address, as the kernel knows them at that moment.
        addresses: Vec<IpAddr>,
    },
}

impl Place {
    /// Its family.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Self::Vip(address) => Family::of(*address),
            Self::Node { family, .. } => *family,
        }
    }
}

/// A frontend, to the guard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spot {
    /// Where.
    pub place: Place,
    /// L4 protocol.
    pub protocol: Protocol,
    /// Port or ports.
    pub ports: PortRange,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Vip(address) => write!(f, "{address} . {} . {}", self.protocol, self.ports),
            Place::Node { family: Family::V4, .. } => write!(f, "node4 . {} . {}", self.protocol, self.ports),
            Place::Node { family: Family::V6, .. } => write!(f, "node6 . {} . {}", self.protocol, self.ports),
        }
    }
}

/// What the guard must do at one frontend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GuardEntry {
    /// New flows go to this port of the proxy on this node, which must be ready before. Direct connections to that port
    /// are refused.
    Capture {
        /// Which.
        spot: Spot,
        /// The proxy's listening port.
        port: u16,
    },
    /// New flows are refused.
    Refuse {
        /// Which.
        spot: Spot,
        /// How.
        how: NoEndpoints,
    },
    /// New flows from other sources are dropped before any other decision.
    Allow {
        /// Which.
        spot: Spot,
        /// CIDRs of the spot's family; if empty, nobody.
        sources: Vec<IpNet>,
    },
}

impl GuardEntry {
    /// The proxy's port that it captures to.
    #[must_use]
    pub fn captured_to(&self) -> Option<u16> {
        match self {
            Self::Capture { port, .. } => Some(*port),
            Self::Refuse { .. } | Self::Allow { .. } => None,
        }
    }

    /// The frontend.
    #[must_use]
    pub fn spot(&self) -> &Spot {
        match self {
            Self::Capture { spot, .. } | Self::Refuse { spot, .. } | Self::Allow { spot, .. } => spot,
        }
    }
}

/// One service's entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardInput {
    /// Whose.
    pub key: ServiceKey,
    /// Sorted.
    pub entries: Vec<GuardEntry>,
}
