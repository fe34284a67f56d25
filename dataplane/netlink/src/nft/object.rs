//! Tables, chains and rules as values.

use super::expr::{Expr, parse_expressions};
use crate::attr::{Attrs, Encoder};

/// Flags of a table (`NFT_TABLE_F_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableFlags {
    /// `owner`: only the socket that holds it may change it, and another's `flush ruleset` passes it by.
    pub owner: bool,
    /// `persist` (kernel 6.9): it outlives its owner's socket and may then be taken over by another one.
    pub persist: bool,
}

impl TableFlags {
    const OWNER: u32 = 0x2;
    const PERSIST: u32 = 0x4;

    /// What a table of ours should have where the kernel knows it.
    pub const OWNED: Self = Self { owner: true, persist: true };

    pub(super) fn bits(self) -> u32 {
        (u32::from(self.owner) * Self::OWNER) | (u32::from(self.persist) * Self::PERSIST)
    }

    fn parse(bits: u32) -> Self {
        Self { owner: bits & Self::OWNER != 0, persist: bits & Self::PERSIST != 0 }
    }
}

/// A table of family `inet` as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Name.
    pub name: String,
    /// Flags.
    pub flags: TableFlags,
    /// Netlink port of the socket that owns it; none if it was orphaned or never owned.
    pub owner: Option<u32>,
}

/// Reads a `NFT_MSG_NEWTABLE` behind its `nfgenmsg`.
#[must_use]
pub fn parse_table(attrs: Attrs<'_>) -> Option<Table> {
    Some(Table {
        name: attrs.string(1)?,
        flags: TableFlags::parse(attrs.be32(2).unwrap_or(0)),
        owner: attrs.be32(7).filter(|&port| port != 0),
    })
}

/// What a base chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChainKind {
    /// Let pass or not.
    Filter,
    /// Translate addresses; sees the first packet of a connection only.
    Nat,
}

/// Where a base chain sees packets (`NF_INET_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum HookPoint {
    /// All that arrives, before routing.
    Prerouting = 0,
    /// What is for this host.
    Input = 1,
    /// What is for others.
    Forward = 2,
    /// What this host sends.
    Output = 3,
    /// All that leaves.
    Postrouting = 4,
}

/// How a base chain hangs in the packet's way. The policy is always accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hook {
    /// What it may do.
    pub kind: ChainKind,
    /// Where.
    pub point: HookPoint,
    /// Lower sees packets earlier.
    pub priority: i32,
}

impl Hook {
    fn parse(attrs: Attrs<'_>, kind: &str) -> Option<Self> {
        let kind = match kind {
            "filter" => ChainKind::Filter,
            "nat" => ChainKind::Nat,
            _ => return None,
        };
        let point = match attrs.be32(1)? {
            0 => HookPoint::Prerouting,
            1 => HookPoint::Input,
            2 => HookPoint::Forward,
            3 => HookPoint::Output,
            4 => HookPoint::Postrouting,
            _ => return None,
        };
        Some(Self { kind, point, priority: attrs.be32(2)? as i32 })
    }
}

/// A chain: a base chain if it has a hook, else one to jump to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chain {
    /// At most 127 bytes (`NFT_CHAIN_MAXNAMELEN`).
    pub name: String,
    /// None of a chain that is only jumped to.
    pub hook: Option<Hook>,
}

impl Chain {
    /// `NF_ACCEPT`
    const POLICY_ACCEPT: u32 = 1;

    pub(super) fn encode(&self, encoder: &mut Encoder) {
        encoder.string(3, &self.name);
        if let Some(hook) = self.hook {
            encoder.nest(4, |attrs| {
                attrs.be32(1, hook.point as u32);
                attrs.be32(2, hook.priority as u32);
            });
            encoder.be32(5, Self::POLICY_ACCEPT);
            encoder.string(
                7,
                match hook.kind {
                    ChainKind::Filter => "filter",
                    ChainKind::Nat => "nat",
                },
            );
        }
    }
}

/// Reads a `NFT_MSG_NEWCHAIN` behind its `nfgenmsg`: table name and chain.
#[must_use]
pub fn parse_chain(attrs: Attrs<'_>) -> Option<(String, Chain)> {
    let hook = match attrs.nested(4) {
        Some(hook) => Hook::parse(hook, &attrs.string(7)?),
        None => None,
    };
    Some((attrs.string(1)?, Chain { name: attrs.string(3)?, hook }))
}

/// A rule as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Chain that it is in.
    pub chain: String,
    /// The kernel's number for it within the table.
    pub handle: u64,
    /// What it does.
    pub expressions: Vec<Expr>,
    /// Its comment, as `nft` shows it.
    pub comment: Option<String>,
}

/// `NFTNL_UDATA_RULE_COMMENT`: user data are type, length, value, one byte each for the first two.
const COMMENT: u8 = 0;

/// User data of a rule that `nft` prints as its comment; cut at what one length byte can say.
pub(super) fn comment_user_data(comment: &str) -> Vec<u8> {
    let text = &comment.as_bytes()[..comment.len().min(250)];
    let mut bytes = vec![COMMENT, text.len() as u8 + 1];
    bytes.extend_from_slice(text);
    bytes.push(0);
    bytes
}

fn parse_comment(mut user_data: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = user_data {
        let value = rest.get(..usize::from(*length))?;
        if *kind == COMMENT {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        user_data = &rest[usize::from(*length)..];
    }
    None
}

/// Reads a `NFT_MSG_NEWRULE` behind its `nfgenmsg`: table name and rule.
#[must_use]
pub fn parse_rule(attrs: Attrs<'_>) -> Option<(String, Rule)> {
    let rule = Rule {
        chain: attrs.string(2)?,
        handle: attrs.be64(3)?,
        expressions: attrs.get(4).map(parse_expressions).unwrap_or_default(),
        comment: attrs.get(7).and_then(parse_comment),
    };
    Some((attrs.string(1)?, rule))
}
