//! Names of everything in the balancer's table, typed, and how they are spelt.
//!
//! Declaration order is the order in which objects may be made. No name may be a word of nft's own language: a chain
//! called `reject` cannot be listed.

use std::fmt;

use vipd_model::Family;

use super::kind::{Affinity, Kind};
use crate::digit;

/// The balancer's table, of family `inet`.
pub const TABLE: &str = "vipd-nft";

/// Pools are spread over banks of maps by their ids: a new chain's first rule that names a map walks all of it in the
/// kernel, and a dump starts its walk anew for every 32 KiB.
pub(super) const POOLS_PER_BANK: u32 = 1024;

/// The bank of a pool.
pub(super) fn bank(pool: u32) -> u16 {
    (pool / POOLS_PER_BANK) as u16
}

/// What maps of a bank hold, by pool and slot or by pool and endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Slot → address and port.
    Endpoints,
    /// Slot → address.
    Hosts,
    /// Slot → index.
    Slots,
    /// Index → address and port.
    Members,
    /// Index → address.
    MemberHosts,
    /// Index → address and port, up to a number of connections.
    Limited,
    /// Index → address, up to a number of connections.
    LimitedHosts,
}

impl Content {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Endpoints,
        Self::Hosts,
        Self::Slots,
        Self::Members,
        Self::MemberHosts,
        Self::Limited,
        Self::LimitedHosts,
    ];
    /// What an index may lead to.
    pub(super) const INDEXED: [Self; 4] = [Self::Members, Self::MemberHosts, Self::Limited, Self::LimitedHosts];

    fn as_str(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints",
            Self::Hosts => "hosts",
            Self::Slots => "slots",
            Self::Members => "members",
            Self::MemberHosts => "member-hosts",
            Self::Limited => "limited",
            Self::LimitedHosts => "limited-hosts",
        }
    }

    /// Whether an element's data is an address without a port.
    pub(super) fn is_host(self) -> bool {
        matches!(self, Self::Hosts | Self::MemberHosts | Self::LimitedHosts)
    }
}

/// How a frontend is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// A VIP, by address, protocol and port.
    Vip,
    /// A node port on a selected address of this node, likewise.
    At,
    /// A node port on every address of this node, by protocol and port.
    Node,
}

impl Reach {
    /// All, in the order in which they are asked.
    pub const ALL: [Self; 3] = [Self::Vip, Self::At, Self::Node];

    fn as_str(self) -> &'static str {
        match self {
            Self::Vip => "vips",
            Self::At => "node-ports-at",
            Self::Node => "node-ports",
        }
    }
}

/// Sets and maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetName {
    /// Clients that affinity remembers.
    Clients(Family),
    /// Pool and slot, or pool and endpoint, to where the packet goes.
    Bank {
        /// What.
        content: Content,
        /// Of the pools.
        family: Family,
        /// Number.
        bank: u16,
    },
    /// Pairs of equal numbers, always the same: two hashes are looked up in it to see whether they are equal.
    Equal,
    /// Kind → its chain.
    Kinds,
    /// Pool → its kind.
    Pools,
    /// Pool → the pool of sources from outside, and its kind.
    Outside,
    /// Endpoints that take no new flows and keep their UDP flows, by pool; no rule asks.
    Lingering(Family),
    /// Networks and ports of endpoints.
    EndpointNets(Family),
    /// Endpoints whose flows are to end, by pool.
    Ending(Family),
    /// Those of them whose flows may go on until the element goes by itself.
    Grace(Family),
    /// The node's own addresses.
    Node(Family),
    /// Local sources.
    Inside(Family),
    /// Sources that may come, cut to a length, by pool and list.
    Allowed {
        /// Of the frontends.
        family: Family,
        /// In bits.
        length: u8,
    },
    /// Frontend → pool and flags.
    Frontends {
        /// How it is found.
        reach: Reach,
        /// Of the frontends.
        family: Family,
    },
}

impl SetName {
    /// The sets that are always there.
    pub fn constant() -> impl Iterator<Item = Self> {
        let by_family = Family::ALL.into_iter().flat_map(|family| {
            let frontends = Reach::ALL.into_iter().map(move |reach| Self::Frontends { reach, family });
            [Self::Lingering(family), Self::EndpointNets(family), Self::Node(family), Self::Inside(family)]
                .into_iter()
                .chain(frontends)
        });
        [Self::Equal, Self::Kinds, Self::Pools, Self::Outside].into_iter().chain(by_family)
    }

    /// The set of that name, if it is one of ours.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let number: Option<u16> = name.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
        let of_family = |family: Family| {
            let banks =
                Content::ALL.into_iter().map(move |content| Self::Bank { content, family, bank: number.unwrap_or(0) });
            let length = number.and_then(|length| u8::try_from(length).ok()).unwrap_or(0);
            [Self::Clients(family), Self::Ending(family), Self::Grace(family), Self::Allowed { family, length }]
                .into_iter()
                .chain(banks)
        };
        Self::constant().chain(Family::ALL.into_iter().flat_map(of_family)).find(|set| set.to_string() == name)
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clients(family) => write!(f, "clients{}", digit(*family)),
            Self::Bank { content, family, bank } => write!(f, "{}{}-{bank}", content.as_str(), digit(*family)),
            Self::Equal => f.write_str("equal"),
            Self::Kinds => f.write_str("kinds"),
            Self::Pools => f.write_str("pools"),
            Self::Outside => f.write_str("outside-pools"),
            Self::Lingering(family) => write!(f, "lingering{}", digit(*family)),
            Self::EndpointNets(family) => write!(f, "endpoint-nets{}", digit(*family)),
            Self::Ending(family) => write!(f, "ending{}", digit(*family)),
            Self::Grace(family) => write!(f, "grace{}", digit(*family)),
            Self::Node(family) => write!(f, "node{}", digit(*family)),
            Self::Inside(family) => write!(f, "inside{}", digit(*family)),
            Self::Allowed { family, length } => write!(f, "allowed{}-{length}", digit(*family)),
            Self::Frontends { reach, family } => write!(f, "{}{}", reach.as_str(), digit(*family)),
        }
    }
}

/// Chains; what others jump to comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// Tells a sender that nobody is there.
    Answer,
    /// Translates the source.
    Masquerade,
    /// Translates the source if it is this node.
    IfNode,
    /// Translates the source of an INTERNAL frontend where the node says so.
    IfForeign,
    /// Decides about the source of a translated packet.
    SourceNat,
    /// Finds the frontend that a translated packet came for.
    Translated,
    /// The source is inside.
    IsInside,
    /// Takes the flag off where the source is inside.
    Classify,
    /// Lets listed sources through and drops the others.
    Admit,
    /// The pool of sources from outside.
    Outside,
    /// From frontend to pool, kind and endpoint.
    Choose,
    /// Finds node ports.
    NodePorts,
    /// Answer or silence, of sources from outside.
    RefusedOutside,
    /// Answer or silence.
    Refused,
    /// Finds node ports that were not translated.
    RefuseNodePorts,
    /// Finds frontends that were not translated.
    Refuse,
    /// Drops INVALID packets to frontends and from endpoints.
    Invalid,
    /// From an index to the address.
    Member {
        /// Of the pools.
        family: Family,
        /// Of the maps.
        bank: u16,
    },
    /// Records a client's endpoint, and goes there.
    Remember {
        /// How long, and who is one client.
        affinity: Affinity,
        /// Of the pools.
        family: Family,
        /// Of the maps.
        bank: u16,
    },
    /// Goes to the remembered endpoint, or forgets it.
    Keep {
        /// How long, and who is one client.
        affinity: Affinity,
        /// Of the pools.
        family: Family,
        /// Of the maps.
        bank: u16,
    },
    /// A kind of pick.
    Kind(Kind),
    /// Ends a flow whose endpoint has left too long ago.
    End,
    /// Finds the frontend that a packet of an established flow came for.
    Ending,
    /// Hook: ends of drains, packets for others. Here only while some drain may end with a reset.
    EndForward,
    /// Hook: ends of drains, packets for this node.
    EndIn,
    /// Hook: ends of drains, the node's own packets.
    EndOut,
    /// Hook: arriving packets.
    NatPre,
    /// Hook: the node's own packets.
    NatOut,
    /// Hook: source NAT.
    NatPost,
    /// Hook: refusal, arriving packets.
    RefusePre,
    /// Hook: refusal, the node's own packets.
    RefuseOut,
}

impl ChainName {
    /// The chains that are always there, in the order in which they are made.
    pub const CONSTANT: [Self; 22] = [
        Self::Answer,
        Self::Masquerade,
        Self::IfNode,
        Self::IfForeign,
        Self::SourceNat,
        Self::Translated,
        Self::IsInside,
        Self::Classify,
        Self::Admit,
        Self::Outside,
        Self::Choose,
        Self::NodePorts,
        Self::RefusedOutside,
        Self::Refused,
        Self::RefuseNodePorts,
        Self::Refuse,
        Self::Invalid,
        Self::NatPre,
        Self::NatOut,
        Self::NatPost,
        Self::RefusePre,
        Self::RefuseOut,
    ];

    /// The chains that end drains.
    pub const OF_DRAIN: [Self; 5] = [Self::End, Self::Ending, Self::EndForward, Self::EndIn, Self::EndOut];

    /// The chain of that name, if it is one of ours.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let constant = Self::CONSTANT.into_iter().chain(Self::OF_DRAIN).find(|chain| chain.to_string() == name);
        constant.or_else(|| Kind::parse(name).map(Self::Kind)).or_else(|| Self::parse_shared(name))
    }

    fn parse_shared(name: &str) -> Option<Self> {
        let (head, place) = name.rsplit_once("-v")?;
        let (family, bank) = place.split_once('b')?;
        let family = if family == "4" { Family::V4 } else { Family::V6 };
        let bank = bank.parse().ok()?;
        let chain = match head.split_once('-') {
            None if head == "member" => Self::Member { family, bank },
            Some(("remember", part)) => Self::Remember { affinity: Affinity::parse(part)?, family, bank },
            Some(("keep", part)) => Self::Keep { affinity: Affinity::parse(part)?, family, bank },
            _ => return None,
        };
        (chain.to_string() == name).then_some(chain)
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answer => "answer",
            Self::Masquerade => "masq",
            Self::IfNode => "masq-if-node",
            Self::IfForeign => "masq-if-foreign",
            Self::SourceNat => "source-nat",
            Self::Translated => "translated",
            Self::IsInside => "is-inside",
            Self::Classify => "classify",
            Self::Admit => "admit",
            Self::Outside => "choose-outside",
            Self::Choose => "choose",
            Self::NodePorts => "find-node-port",
            Self::RefusedOutside => "refused-outside",
            Self::Refused => "refused",
            Self::RefuseNodePorts => "refuse-node-port",
            Self::Refuse => "refuse",
            Self::Invalid => "invalid",
            Self::End => "end-drained",
            Self::Ending => "find-drained",
            Self::EndForward => "end-forward",
            Self::EndIn => "end-in",
            Self::EndOut => "end-out",
            Self::NatPre => "nat-pre",
            Self::NatOut => "nat-out",
            Self::NatPost => "nat-post",
            Self::RefusePre => "refuse-pre",
            Self::RefuseOut => "refuse-out",
            Self::Kind(kind) => return kind.fmt(f),
            Self::Member { family, bank } => return write!(f, "member-v{}b{bank}", digit(*family)),
            Self::Remember { affinity, family, bank } => {
                return write!(f, "remember-{affinity}-v{}b{bank}", digit(*family));
            }
            Self::Keep { affinity, family, bank } => return write!(f, "keep-{affinity}-v{}b{bank}", digit(*family)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let (family, bank) = (Family::V6, 12);
        let affinity = Affinity { milliseconds: 1500, prefix: 64 };
        let shared = [
            ChainName::Member { family, bank },
            ChainName::Remember { affinity, family, bank },
            ChainName::Keep { affinity, family, bank },
        ];
        for chain in ChainName::CONSTANT.into_iter().chain(ChainName::OF_DRAIN).chain(shared) {
            assert_eq!(ChainName::parse(&chain.to_string()), Some(chain));
        }
        let banks = Content::ALL.into_iter().map(|content| SetName::Bank { content, family, bank });
        let others = [
            SetName::Clients(family),
            SetName::Ending(family),
            SetName::Grace(family),
            SetName::Allowed { family, length: 64 },
        ];
        for set in SetName::constant().chain(banks).chain(others) {
            assert_eq!(SetName::parse(&set.to_string()), Some(set));
        }
        assert_eq!(SetName::parse("allowed4-024"), None);
        assert_eq!(ChainName::parse("capture"), None);
    }

    #[test]
    fn constant_chains_are_listed_in_the_order_in_which_they_are_made() {
        assert!(ChainName::CONSTANT.is_sorted());
    }
}
