//! What expressions work on: registers, and the names of what is loaded, compared, counted and decided.

use crate::attr::{Attrs, Encoder};

/// A 32-bit register, 0 to 15. Values longer than four bytes fill the following ones as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reg(pub u8);

impl Reg {
    /// `NFT_REG32_00`
    const FIRST: u32 = 8;
    /// `NFT_REG_VERDICT`: where a verdict map's data goes.
    pub const VERDICT: Self = Self(u8::MAX);

    pub(super) fn encoded(self) -> u32 {
        if self == Self::VERDICT { 0 } else { Self::FIRST + u32::from(self.0) }
    }

    /// The kernel prints registers 0, 4, 8 and 12 by the names of the old 128-bit ones, 1 to 4.
    pub(super) fn parse(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::VERDICT),
            1..=4 => Some(Self((number as u8 - 1) * 4)),
            8..=23 => Some(Self((number - Self::FIRST) as u8)),
            _ => None,
        }
    }
}

/// `NFT_META_*` keys in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MetaKey {
    /// The packet's priority (`skb->priority`), host order: a word that goes with the packet from rule to rule.
    Priority = 2,
    /// Name of the incoming interface, 16 bytes; no match where there is none.
    InputInterfaceName = 6,
    /// `NFPROTO_IPV4` or `NFPROTO_IPV6`, one byte.
    Family = 15,
    /// Layer 4 protocol number, one byte.
    Protocol = 16,
}

/// Header that a payload expression reads from (`NFT_PAYLOAD_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Header {
    /// IPv4 or IPv6.
    Network = 1,
    /// TCP, UDP or SCTP.
    Transport = 2,
}

/// Comparison (`NFT_CMP_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Cmp {
    /// Equal.
    Eq = 0,
    /// Not equal.
    Ne = 1,
}

/// `NFT_CT_*` keys in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CtKey {
    /// Bit mask of states, host order: invalid 1, established 2, related 4, new 8, untracked 64.
    State = 0,
    /// Bit mask of `IPS_*`, host order; 0x20 is "destination was translated".
    Status = 2,
    /// Source port of a direction.
    SourcePort = 11,
    /// Destination port of a direction.
    DestinationPort = 12,
    /// IPv4 source address of a direction; no match for other families.
    SourceIpv4 = 19,
    /// IPv4 destination address of a direction.
    DestinationIpv4 = 20,
    /// IPv6 source address of a direction.
    SourceIpv6 = 21,
    /// IPv6 destination address of a direction.
    DestinationIpv6 = 22,
}

impl CtKey {
    pub(super) fn parse(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::State,
            2 => Self::Status,
            11 => Self::SourcePort,
            12 => Self::DestinationPort,
            19 => Self::SourceIpv4,
            20 => Self::DestinationIpv4,
            21 => Self::SourceIpv6,
            22 => Self::DestinationIpv6,
            _ => return None,
        })
    }
}

/// Where a number generator takes its numbers from (`NFT_NG_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Numbers {
    /// One after the other, counted by the rule itself.
    Increasing = 0,
    /// At random.
    Random = 1,
}

/// What a rule does to a set's element (`NFT_DYNSET_OP_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SetChange {
    /// Adds it, or starts its time-out anew; data that is there stays.
    Update = 1,
    /// Deletes it, whatever its data.
    Delete = 2,
}

/// Direction of a conntrack key (`IP_CT_DIR_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// As the first packet went.
    Original = 0,
    /// As answers go.
    Reply = 1,
}

/// What a refused sender is told (`NFT_REJECT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectWith {
    /// A TCP reset.
    TcpReset,
    /// ICMP or ICMPv6 "port unreachable", whichever the packet's family asks for (`NFT_REJECT_ICMPX_PORT_UNREACH`).
    PortUnreachable,
}

/// What becomes of the packet, or where it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// `NF_DROP`
    Drop,
    /// `NF_ACCEPT`
    Accept,
    /// `NFT_JUMP`
    Jump(String),
    /// `NFT_GOTO`
    Goto(String),
    /// `NFT_RETURN`
    Return,
}

impl Verdict {
    pub(super) fn code(&self) -> i32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Jump(_) => -3,
            Self::Goto(_) => -4,
            Self::Return => -5,
        }
    }

    /// Writes `NFTA_DATA_VERDICT` and what is in it.
    pub(super) fn encode(&self, encoder: &mut Encoder) {
        encoder.nest(2, |verdict| {
            verdict.be32(1, self.code() as u32);
            if let Self::Jump(chain) | Self::Goto(chain) = self {
                verdict.string(2, chain);
            }
        });
    }

    pub(super) fn parse(attrs: Attrs<'_>) -> Option<Self> {
        match attrs.be32(1)? as i32 {
            0 => Some(Self::Drop),
            1 => Some(Self::Accept),
            -3 => Some(Self::Jump(attrs.string(2)?)),
            -4 => Some(Self::Goto(attrs.string(2)?)),
            -5 => Some(Self::Return),
            _ => None,
        }
    }
}

pub(super) fn parse_meta_key(number: u32) -> Option<MetaKey> {
    match number {
        2 => Some(MetaKey::Priority),
        6 => Some(MetaKey::InputInterfaceName),
        15 => Some(MetaKey::Family),
        16 => Some(MetaKey::Protocol),
        _ => None,
    }
}
