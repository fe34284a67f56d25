//! Names of everything in our tables, typed, and how they are spelt.
//!
//! Declaration order is the order in which objects may be made. No name may be a word of nft's own language: a chain
//! called `reject` cannot be listed.

use std::fmt;

use vipd_model::Family;

use crate::digit;

/// Our tables, both of family `inet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableName {
    /// Keeps connection tracking and NAT alive for established flows: first made, last removed.
    Anchor,
    /// Everything else.
    Main,
}

impl TableName {
    /// Both, in the order in which they are made.
    pub const ALL: [Self; 2] = [Self::Anchor, Self::Main];

    /// As the kernel has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anchor => "vipd-anchor",
            Self::Main => "vipd",
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happens at a frontend. In the order in which a change may come into force: a frontend that is captured before its
/// source ranges are known would let everybody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Only listed sources may come.
    Ranged,
    /// New flows are told that nobody is there.
    Reject,
    /// New flows get silence.
    Drop,
    /// New flows go to the proxy.
    Capture,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ranged, Self::Reject, Self::Drop, Self::Capture];
    /// Those that say that a frontend exists, and what becomes of a new flow to it.
    pub const FATES: [Self; 3] = [Self::Capture, Self::Reject, Self::Drop];

    fn as_str(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Reject => "reject",
            Self::Drop => "drop",
            Self::Ranged => "ranged",
        }
    }
}

/// How a frontend is found by a packet's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// By address, protocol and port.
    Address,
    /// By protocol and port at any address that is the node's own at that moment.
    Node,
}

impl Reach {
    /// Both; an address wins over the node, so that a node's address can be a VIP.
    pub const ALL: [Self; 2] = [Self::Address, Self::Node];

    fn infix(self) -> &'static str {
        match self {
            Self::Address => "",
            Self::Node => "-node",
        }
    }
}

/// Prefixes of one length: a hash set of masked addresses, and a rule that masks and looks up.
///
/// A hash for each length in use, because interval sets cost milliseconds per change at thousands of elements, and
/// refuse to hold a new range beside the old one that it overlaps while a change is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Prefix {
    /// Sources that may come to a ranged frontend.
    Allow {
        /// How the frontend is found.
        reach: Reach,
        /// Family of both.
        family: Family,
        /// In bits.
        length: u8,
    },
    /// Destinations of which nothing but frontends is served.
    Virtual {
        /// Family.
        family: Family,
        /// In bits.
        length: u8,
    },
}

impl Prefix {
    /// Its length in bits.
    #[must_use]
    pub fn length(self) -> u8 {
        match self {
            Self::Allow { length, .. } | Self::Virtual { length, .. } => length,
        }
    }

    /// Its family.
    #[must_use]
    pub fn family(self) -> Family {
        match self {
            Self::Allow { family, .. } | Self::Virtual { family, .. } => family,
        }
    }

    /// The chain that its rule is in.
    #[must_use]
    pub fn chain(self) -> ChainName {
        match self {
            Self::Allow { reach, family, .. } => ChainName::Allowed { reach, family },
            Self::Virtual { family, .. } => ChainName::Virtual { family },
        }
    }

    fn parse(name: &str) -> Option<Self> {
        let (head, length) = name.rsplit_once('-')?;
        let length = length.parse().ok()?;
        let of_family = |family| {
            let virtual_range =
                (head == format!("virtual{}", digit(family))).then_some(Self::Virtual { family, length });
            virtual_range.or_else(|| {
                let reach = Reach::ALL.into_iter().find(|r| head == format!("allow{}{}", r.infix(), digit(family)))?;
                Some(Self::Allow { reach, family, length })
            })
        };
        Family::ALL.into_iter().find_map(of_family).filter(|prefix| prefix.to_string() == name)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow { reach, family, length } => write!(f, "allow{}{}-{length}", reach.infix(), digit(*family)),
            Self::Virtual { family, length } => write!(f, "virtual{}-{length}", digit(*family)),
        }
    }
}

/// Sets and maps of the main table. In the order in which their elements may come into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetName {
    /// Ports that the proxy listens on for captured flows, by protocol.
    ProxyPorts,
    /// Prefixes of one length; made when the first of them is needed.
    Prefix(Prefix),
    /// Frontends with a role; a map to the proxy's port for [`Role::Capture`].
    Spots {
        /// What happens there.
        role: Role,
        /// How they are found.
        reach: Reach,
        /// Of this family.
        family: Family,
    },
}

impl SetName {
    /// The sets that are always there.
    pub fn constant() -> impl Iterator<Item = Self> {
        let spots = Role::ALL.into_iter().flat_map(|role| {
            Family::ALL
                .into_iter()
                .flat_map(move |family| Reach::ALL.into_iter().map(move |reach| Self::Spots { role, reach, family }))
        });
        [Self::ProxyPorts].into_iter().chain(spots)
    }

    /// The set of that name, if it is one of ours.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let constant = Self::constant().find(|set| set.to_string() == name);
        constant.or_else(|| Prefix::parse(name).map(Self::Prefix))
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spots { role, reach, family } => {
                write!(f, "{}{}{}", role.as_str(), reach.infix(), digit(*family))
            }
            Self::ProxyPorts => f.write_str("proxy-ports"),
            Self::Prefix(prefix) => prefix.fmt(f),
        }
    }
}

/// Chains of both tables; what others jump to comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// Anchor: the rule that keeps connection tracking in use.
    Track,
    /// Anchor: the chain that keeps NAT in use.
    Translate,
    /// Tells a sender that nobody is there.
    Answer,
    /// Lets listed sources through and drops the others.
    Allowed {
        /// How the frontend is found.
        reach: Reach,
        /// Family.
        family: Family,
    },
    /// Finds node ports that have source ranges.
    SourcesNode,
    /// Finds frontends that have source ranges.
    Sources,
    /// Redirects node ports to the proxy.
    CaptureNode,
    /// Redirects to the proxy.
    Capture,
    /// Finds virtual ranges.
    Virtual {
        /// Family.
        family: Family,
    },
    /// Finds refused node ports.
    RefuseNode,
    /// Finds refused frontends, then virtual ranges.
    Refuse,
    /// Drops INVALID packets to frontends.
    Invalid,
    /// Hook: source ranges, arriving packets.
    SourcesPre,
    /// Hook: source ranges, the node's own packets.
    SourcesOut,
    /// Hook: capture, arriving packets.
    NatPre,
    /// Hook: capture, the node's own packets.
    NatOut,
    /// Hook: refusal, arriving packets.
    RefusePre,
    /// Hook: refusal, the node's own packets.
    RefuseOut,
    /// Hook: direct connections to the proxy's ports.
    ProxyIn,
}

impl ChainName {
    /// All of them, in the order in which they are made.
    pub fn all() -> impl Iterator<Item = Self> {
        let allowed = Reach::ALL
            .into_iter()
            .flat_map(|reach| Family::ALL.into_iter().map(move |family| Self::Allowed { reach, family }));
        [Self::Track, Self::Translate, Self::Answer]
            .into_iter()
            .chain(allowed)
            .chain([Self::SourcesNode, Self::Sources, Self::CaptureNode, Self::Capture])
            .chain(Family::ALL.into_iter().map(|family| Self::Virtual { family }))
            .chain([
                Self::RefuseNode,
                Self::Refuse,
                Self::Invalid,
                Self::SourcesPre,
                Self::SourcesOut,
                Self::NatPre,
                Self::NatOut,
            ])
            .chain([Self::RefusePre, Self::RefuseOut, Self::ProxyIn])
    }

    /// The table that it is in.
    #[must_use]
    pub fn table(self) -> TableName {
        match self {
            Self::Track | Self::Translate => TableName::Anchor,
            _ => TableName::Main,
        }
    }

    /// The chain of that name, if it is one of ours.
    #[must_use]
    pub fn parse(table: TableName, name: &str) -> Option<Self> {
        Self::all().find(|chain| chain.table() == table && chain.to_string() == name)
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Track => f.write_str("track"),
            Self::Translate => f.write_str("translate"),
            Self::Answer => f.write_str("answer"),
            Self::Allowed { reach, family } => write!(f, "allowed{}{}", reach.infix(), digit(*family)),
            Self::SourcesNode => f.write_str("sources-node"),
            Self::Sources => f.write_str("sources"),
            Self::CaptureNode => f.write_str("capture-node"),
            Self::Capture => f.write_str("capture"),
            Self::Virtual { family } => write!(f, "virtual{}", digit(*family)),
            Self::RefuseNode => f.write_str("refuse-node"),
            Self::Refuse => f.write_str("refuse"),
            Self::Invalid => f.write_str("invalid"),
            Self::SourcesPre => f.write_str("sources-pre"),
            Self::SourcesOut => f.write_str("sources-out"),
            Self::NatPre => f.write_str("nat-pre"),
            Self::NatOut => f.write_str("nat-out"),
            Self::RefusePre => f.write_str("refuse-pre"),
            Self::RefuseOut => f.write_str("refuse-out"),
            Self::ProxyIn => f.write_str("proxy-in"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let prefixes = [
            Prefix::Allow { reach: Reach::Node, family: Family::V6, length: 64 },
            Prefix::Virtual { family: Family::V4, length: 16 },
        ];
        for set in SetName::constant().chain(prefixes.map(SetName::Prefix)) {
            assert_eq!(SetName::parse(&set.to_string()), Some(set));
        }
        for chain in ChainName::all() {
            assert_eq!(ChainName::parse(chain.table(), &chain.to_string()), Some(chain));
        }
        assert_eq!(SetName::parse("allow4-024"), None);
        assert_eq!(SetName::parse("slots-0"), None);
    }

    #[test]
    fn chains_are_listed_in_the_order_in_which_they_are_made() {
        assert!(ChainName::all().is_sorted());
    }
}
