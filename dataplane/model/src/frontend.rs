//! Frontends: where clients connect.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in order.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The family of a prefix.
    #[must_use]
    pub fn of_net(net: &IpNet) -> Self {
        Self::of(net.addr())
    }
}

/// One port or several, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// 1..=65535.
    pub first: u16,
    /// Not below `first`.
    pub last: u16,
}

impl PortRange {
    /// A range of one.
    #[must_use]
    pub fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Whether it is just one port.
    #[must_use]
    pub fn is_one(self) -> bool {
        self.first == self.last
    }

    /// Whether a port is in it.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Whether two have a port in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_one() { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// Addresses of this node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePort {
    /// Whether on IPv4 addresses.
    pub v4: bool,
    /// Whether on IPv6 addresses.
    pub v6: bool,
    /// CIDRs that select among the node's addresses; empty: as the daemon is configured.
    pub addresses: Vec<IpNet>,
}

/// The place of a frontend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum At {
    /// A virtual IP.
    Address(IpAddr),
    /// Addresses of this node, followed as they come and go.
    NodePort(NodePort),
}

impl At {
    /// Whether this place is reached over the family.
    #[must_use]
    pub fn has_family(&self, family: Family) -> bool {
        match (self, family) {
            (Self::Address(address), _) => Family::of(*address) == family,
            (Self::NodePort(node_port), Family::V4) => node_port.v4,
            (Self::NodePort(node_port), Family::V6) => node_port.v6,
        }
    }
}

/// Who is meant to come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Clients that live inside.
    Internal,
    /// Clients from outside.
    External,
}

/// Which endpoints serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// All of them.
    #[default]
    All,
    /// Only those with `local`.
    Local,
}

/// When the source address is translated; a hairpin always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceNat {
    /// Where it is needed: see `vipd.v1.Frontend.SourceNat`.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Where clients connect: a place, a port or a range, and the rules of entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// A virtual IP or the node's addresses.
    pub at: At,
    /// The port, or a range that keeps the client's destination port.
    pub ports: PortRange,
    /// Who is meant to come in.
    pub scope: Scope,
    /// Which endpoints serve.
    pub policy: Policy,
    /// Empty: everybody. Others are dropped before any other decision. Sorted, without duplicates.
    pub source_ranges: Vec<IpNet>,
    /// When the source is translated.
    pub source_nat: SourceNat,
}

impl Frontend {
    /// A VIP with one port and the defaults for the rest.
    #[must_use]
    pub fn vip(address: IpAddr, port: u16) -> Self {
        Self {
            at: At::Address(address),
            ports: PortRange::one(port),
            scope: Scope::Internal,
            policy: Policy::All,
            source_ranges: Vec::new(),
            source_nat: SourceNat::Auto,
        }
    }
}

/// A place where two services can meet: a VIP, or this node's addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A virtual IP.
    Address(IpAddr),
    /// The node's addresses; which of them a node port selects makes no difference to who holds its number.
    Node(Family),
}

/// Ports of a place. A node port for both families has two spans, every other frontend one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Where.
    pub place: Place,
    /// Which ports.
    pub ports: PortRange,
}

impl Span {
    /// Whether a packet could be for both.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.place == other.place && self.ports.overlaps(other.ports)
    }
}

impl Frontend {
    /// What it takes up, in order.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        let ports = self.ports;
        let places = match &self.at {
            At::Address(address) => [Some(Place::Address(*address)), None],
            At::NodePort(n) => [n.v4.then_some(Place::Node(Family::V4)), n.v6.then_some(Place::Node(Family::V6))],
        };
        places.into_iter().flatten().map(move |place| Span { place, ports })
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            At::Address(IpAddr::V4(address)) => write!(f, "{address}:{}", self.ports),
            At::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.ports),
            At::NodePort(_) => write!(f, "node port {}", self.ports),
        }
    }
}
