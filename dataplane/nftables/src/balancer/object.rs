//! The balancer's objects: what it has in the kernel, by name, printed as `nft` prints it.

use std::{fmt, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use vipd_model::{EndpointKey, Family, Millis};
use vipd_netlink::nft::{Hook, TableFlags};

use super::{
    kind::Kind,
    names::{ChainName, Reach, SetName, TABLE},
    pool::Pool,
    word::Word,
};
use crate::rule::Rule;

/// A frontend as a packet shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    /// The VIP or the selected address; of a node port on every address only the family.
    pub place: FrontendPlace,
    /// Protocol number.
    pub protocol: u8,
    /// Port.
    pub port: u16,
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendPlace {
    /// At a virtual address.
    Vip(IpAddr),
    /// At an address of this node that was selected.
    At(IpAddr),
    /// At every address of this node.
    Node(Family),
}

impl FrontendKey {
    pub(super) fn set(&self) -> SetName {
        let (reach, family) = match self.place {
            FrontendPlace::Vip(address) => (Reach::Vip, Family::of(address)),
            FrontendPlace::At(address) => (Reach::At, Family::of(address)),
            FrontendPlace::Node(family) => (Reach::Node, family),
        };
        SetName::Frontends { reach, family }
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        match self.place {
            FrontendPlace::Vip(address) | FrontendPlace::At(address) => Some(address),
            FrontendPlace::Node(_) => None,
        }
    }
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address() {
            write!(f, "{address} . ")?;
        }
        match self.protocol {
            6 => write!(f, "tcp . {}", self.port),
            17 => write!(f, "udp . {}", self.port),
            132 => write!(f, "sctp . {}", self.port),
            other => write!(f, "{other} . {}", self.port),
        }
    }
}

/// Names one object. Ordered so that what others refer to comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The table itself.
    Table,
    /// A set of another layout than this one's: of another version of vipd, or somebody's.
    StraySet(Box<str>),
    /// A chain of another layout.
    StrayChain(Box<str>),
    /// A set or map.
    Set(SetName),
    /// A chain with its rules; of [`ChainName::Kind`] also the element of `kinds` that leads there.
    Chain(ChainName),
    /// The rule of a prefix length, in front of its chain.
    Prefix {
        /// Of the sources.
        family: Family,
        /// In bits.
        length: u8,
    },
    /// An address of this node.
    NodeAddress(IpAddr),
    /// The local sources of a family.
    Inside(Family),
    /// An element of ours that nothing explains, by its bytes.
    StrayElement(SetName, Box<[u8]>),
    /// Endpoints.
    Pool(u32),
    /// An endpoint whose flows are reset when its drain is over.
    Ending {
        /// Of flows to this pool.
        pool: u32,
        /// Which.
        endpoint: EndpointKey,
    },
    /// Sources that may come.
    Allowed {
        /// To frontends of this pool,
        pool: u32,
        /// that have this list.
        list: u8,
    },
    /// A frontend.
    Frontend(FrontendKey),
}

impl Key {
    /// Whether it is elements of sets and nothing else.
    pub(super) fn is_made_of_elements(&self) -> bool {
        match self {
            Self::Table
            | Self::StraySet(_)
            | Self::StrayChain(_)
            | Self::Set(_)
            | Self::Chain(_)
            | Self::Prefix { .. } => false,
            Self::NodeAddress(_)
            | Self::Inside(_)
            | Self::StrayElement(..)
            | Self::Pool(_)
            | Self::Ending { .. }
            | Self::Allowed { .. }
            | Self::Frontend(_) => true,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => write!(f, "table inet {TABLE}"),
            Self::StraySet(name) => write!(f, "set inet {TABLE} {name}"),
            Self::StrayChain(name) => write!(f, "chain inet {TABLE} {name}"),
            Self::Set(set) => write!(f, "set inet {TABLE} {set}"),
            Self::Chain(chain) => write!(f, "chain inet {TABLE} {chain}"),
            Self::Prefix { family, length } => {
                write!(
                    f,
                    "rule inet {TABLE} {} of {}",
                    ChainName::Admit,
                    SetName::Allowed { family: *family, length: *length }
                )
            }
            Self::NodeAddress(address) => {
                write!(f, "element inet {TABLE} {} {{ {address} }}", SetName::Node(Family::of(*address)))
            }
            Self::Inside(family) => write!(f, "elements of inet {TABLE} {}", SetName::Inside(*family)),
            Self::StrayElement(set, key) => write!(f, "element inet {TABLE} {set} {{ {key:02x?} }}"),
            Self::Pool(pool) => write!(f, "element inet {TABLE} pools {{ {} }} and its endpoints", Word::new(*pool, 0)),
            Self::Ending { pool, endpoint } => {
                let set = SetName::Ending(endpoint.family());
                write!(f, "element inet {TABLE} {set} {{ {} . {endpoint} }}", Word::new(*pool, 0))
            }
            Self::Allowed { pool, list } => {
                write!(f, "elements inet {TABLE} allowed {{ {} }}", Word::new(*pool, u32::from(*list)))
            }
            Self::Frontend(frontend) => write!(f, "element inet {TABLE} {} {{ {frontend} }}", frontend.set()),
        }
    }
}

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Flags of a table that is ours alone now.
    Table(TableFlags),
    /// A table whose owner is another running process, by its netlink port.
    OwnedByAnother(u32),
    /// Just what its name says.
    AsNamed,
    /// A set that is otherwise than its name says, or stray.
    Otherwise(Box<str>),
    /// A chain whose rules depend on the node, or are otherwise than its name says.
    Chain(Arc<ChainValue>),
    /// A kind's number; its chain is as named.
    Kind(u32),
    /// Disjoint ranges, ascending: first and last.
    Ranges(Arc<[(IpAddr, IpAddr)]>),
    /// Endpoints.
    Pool(Arc<Pool>),
    /// Prefixes, sorted.
    Sources(Arc<[IpNet]>),
    /// A frontend's pool and flags.
    Word(Word),
    /// When flows end.
    Until(Millis),
}

impl Value {
    pub(super) fn pool(&self) -> Option<&Pool> {
        match self {
            Self::Pool(pool) => Some(pool),
            _ => None,
        }
    }
}

/// A chain that is not just what its name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainValue {
    /// None if it is only jumped to.
    pub hook: Option<Hook>,
    /// In order.
    pub rules: Vec<Rule>,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(flags) => write!(f, "{{ owner {}, persist {} }}", flags.owner, flags.persist),
            Self::OwnedByAnother(port) => write!(f, "{{ owned by another process, netlink port {port} }}"),
            Self::AsNamed => f.write_str("as named"),
            Self::Otherwise(text) => f.write_str(text),
            Self::Chain(chain) => {
                f.write_str("{")?;
                chain.rules.iter().try_for_each(|rule| write!(f, "\n  {rule}"))?;
                f.write_str("\n}")
            }
            Self::Kind(number) => write!(f, "by {}", Word(*number)),
            Self::Ranges(ranges) => {
                let ranges: Vec<_> = ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
                write!(f, "{{ {} }}", ranges.join(", "))
            }
            Self::Pool(pool) => pool.fmt(f),
            Self::Sources(sources) => {
                let sources: Vec<_> = sources.iter().map(ToString::to_string).collect();
                write!(f, "{{ {} }}", sources.join(", "))
            }
            Self::Word(word) => write!(f, ": {word}"),
            Self::Until(Millis(end)) => write!(f, "until {end} ms"),
        }
    }
}

impl Kind {
    /// The object that it is.
    pub(super) fn object(self) -> Key {
        Key::Chain(ChainName::Kind(self))
    }
}
