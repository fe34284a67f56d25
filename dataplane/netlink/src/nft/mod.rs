//! nf_tables over netlink: write in batches ([`Batch`]), read back in dumps that belong to one generation ([`Nft`]).
//!
//! No `nft` process: parsing text and listing through it is what made others slow. Everything here is of family
//! `inet`. Objects are plain values ([`Table`], [`Chain`], [`Rule`], [`Set`], [`Element`]) that are equal after a
//! round trip through the kernel, so that a difference between two of them is a difference in the kernel.
//! Numbers are those of linux/netfilter/nf_tables.h.

mod batch;
mod connection;
mod expr;
mod item;
mod monitor;
mod object;
mod operand;
mod set;

pub use batch::Batch;
pub use connection::Nft;
pub use expr::{Expr, FIB_DADDR, FIB_SADDR, parse_expressions};
pub use item::{Found, Item, Payload, parse_found};
pub use monitor::{Committer, Monitor, parse_committers};
pub use object::{Chain, ChainKind, Hook, HookPoint, Rule, Table, TableFlags, parse_chain, parse_rule, parse_table};
pub use operand::{Cmp, CtKey, Direction, Header, MetaKey, Numbers, Reg, RejectWith, SetChange, Verdict};
pub use set::{Data, Element, Field, KeyBytes, Set, Traits, parse_element, parse_set};

/// `NFNL_SUBSYS_NFTABLES`
const SUBSYSTEM: u16 = 10;
/// `NFPROTO_INET`: one table for IPv4 and IPv6.
const INET: u8 = 1;
/// `NFTA_LIST_ELEM`
const LIST_ELEM: u16 = 1;

/// `NFT_MSG_*`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
enum Command {
    NewTable = 0,
    GetTable = 1,
    DelTable = 2,
    NewChain = 3,
    GetChain = 4,
    DelChain = 5,
    NewRule = 6,
    GetRule = 7,
    DelRule = 8,
    NewSet = 9,
    GetSet = 10,
    DelSet = 11,
    NewElement = 12,
    GetElement = 13,
    DelElement = 14,
    GetGeneration = 16,
}

impl Command {
    fn kind(self) -> u16 {
        SUBSYSTEM << 8 | self as u16
    }
}

#[cfg(test)]
mod tests;
