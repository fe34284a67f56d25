//! Objects of the runner: chains of ours, and entries of the tree that leads to them.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use vipd_model::{Family, PortRange, Protocol};

use crate::names::Table;

/// Names an object. In the order in which objects may be made: what is led to comes before what leads there. An entry is
/// no rule of its own in the books: the tree's chains are composed from all entries when they are written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A chain whose rules follow the node: which sources are local, where refusals go, what ranges are refused.
    Node(Family, Table, Arc<str>),
    /// What all services of a family share: our rules in the kernel's own chains, and chains that never change.
    Base(Family),
    /// INVALID packets of TCP from here are dropped: endpoints are here.
    Source(IpNet),
    /// A chain of one service or frontend.
    Chain(Family, Arc<str>),
    /// A frontend, in the tree.
    Entry(Door),
    /// A chain of ours that is not as the entries say.
    Stray(Family, Table, Arc<str>),
}

impl Key {
    /// Which of the two kernels of iptables it is in.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Self::Node(family, ..) | Self::Base(family) | Self::Chain(family, _) | Self::Stray(family, ..) => *family,
            Self::Source(net) => Family::of_net(net),
            Self::Entry(door) => door.place.family(),
        }
    }
}

/// Where a frontend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A virtual IP.
    Vip(IpAddr),
    /// One address of this node, of a node port that selects by address. A VIP on the same address comes first.
    Own(IpAddr),
    /// Every address of this node.
    Node(Family),
    /// No frontend: a port that the proxy listens on, closed to whoever was not sent there.
    Proxy(Family),
}

impl Place {
    /// Its family.
    #[must_use]
    pub fn family(self) -> Family {
        match self {
            Self::Vip(address) | Self::Own(address) => Family::of(address),
            Self::Node(family) | Self::Proxy(family) => family,
        }
    }

    /// Its address, if it has one.
    #[must_use]
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::Vip(address) | Self::Own(address) => Some(address),
            Self::Node(_) | Self::Proxy(_) => None,
        }
    }
}

/// A frontend, as packets find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Door {
    /// Where.
    pub place: Place,
    /// L4 protocol.
    pub protocol: Protocol,
    /// One or several.
    pub ports: PortRange,
}

/// What a door leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A chain of ours.
    Chain(Arc<str>),
    /// An answer: refused.
    Reject,
    /// Silence.
    Drop,
    /// A port of the proxy.
    Redirect(u16),
}

/// Who is given another source address, beside those who reach themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceNatClass {
    /// Nobody.
    Keep,
    /// Everybody.
    Always,
    /// Processes of this node.
    Node,
    /// As the node's network says for INTERNAL frontends.
    Internal,
}

/// An entry of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Whose: [`crate::names::service`].
    pub service: Arc<str>,
    /// For people: the service's name.
    pub name: Arc<str>,
    /// Where new flows go.
    pub goal: Goal,
    /// Where those of clients inside go, if that is elsewhere.
    pub inside: Option<Goal>,
    /// Source NAT; absent: nothing is translated here.
    pub nat: Option<SourceNatClass>,
}

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Rules, one a line, as [`crate::Rule`] prints them.
    Rules(Arc<str>),
    /// All of it is there.
    Whole,
    /// See [`Key::Entry`].
    Leaf(Arc<Leaf>),
    /// It is not as we write it: in words.
    Damaged(Arc<str>),
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Vip(address) => write!(f, "{address} . {} . {}", self.protocol, self.ports),
            Place::Own(address) => write!(f, "node {address} . {} . {}", self.protocol, self.ports),
            Place::Node(Family::V4) => write!(f, "node4 . {} . {}", self.protocol, self.ports),
            Place::Node(Family::V6) => write!(f, "node6 . {} . {}", self.protocol, self.ports),
            Place::Proxy(Family::V4) => write!(f, "proxy4 . {} . {}", self.protocol, self.ports),
            Place::Proxy(Family::V6) => write!(f, "proxy6 . {} . {}", self.protocol, self.ports),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain(chain) => f.write_str(chain),
            Self::Reject => f.write_str("reject"),
            Self::Drop => f.write_str("drop"),
            Self::Redirect(port) => write!(f, "redirect to {port}"),
        }
    }
}

fn version(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(family, table, chain) | Self::Stray(family, table, chain) => {
                write!(f, "{} {table} chain {chain}", version(*family))
            }
            Self::Base(family) => write!(f, "{} jumps to our chains", version(*family)),
            Self::Source(net) => write!(f, "INVALID from {net}"),
            Self::Chain(family, chain) => write!(f, "{} nat chain {chain}", version(*family)),
            Self::Entry(door) => write!(f, "entry {door}"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(rules) => write!(f, "{{ {} }}", rules.replace('\n', "; ")),
            Self::Whole => f.write_str("in place"),
            Self::Leaf(leaf) => {
                write!(f, "{}: {}", leaf.name, leaf.goal)?;
                if let Some(inside) = &leaf.inside {
                    write!(f, ", from inside {inside}")?;
                }
                match leaf.nat {
                    Some(nat) => write!(f, ", source NAT {nat:?}"),
                    None => Ok(()),
                }
            }
            Self::Damaged(why) => f.write_str(why),
        }
    }
}

impl Leaf {
    /// Of a port of the proxy; several services share it.
    #[must_use]
    pub fn proxy() -> Self {
        Self { service: "".into(), name: "proxy".into(), goal: Goal::Reject, inside: None, nat: None }
    }

    /// Whether flows of clients somewhere go to this chain.
    #[must_use]
    pub fn leads_through(&self, chain: &str) -> bool {
        let is = |goal: &Goal| matches!(goal, Goal::Chain(name) if **name == *chain);
        is(&self.goal) || self.inside.as_ref().is_some_and(is)
    }

    /// The comment of its rule.
    #[must_use]
    pub fn comment(&self, of_node: bool) -> String {
        let place = if of_node { "node" } else { "vip" };
        format!("{place} {} #{}", self.name, self.service)
    }

    /// The same read back: whether it is of the node, the name, the service.
    #[must_use]
    pub fn parse_comment(comment: &str) -> Option<(bool, &str, &str)> {
        let (place, rest) = comment.split_once(' ')?;
        let (name, service) = rest.rsplit_once(" #")?;
        match place {
            "vip" => Some((false, name, service)),
            "node" => Some((true, name, service)),
            _ => None,
        }
    }
}
