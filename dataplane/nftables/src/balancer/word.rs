//! The word that goes with a packet from rule to rule, in `skb->priority`.
//!
//! ```text
//! 31 ............ 14 13 ............ 0
//! pool id            flags of the frontend, then the kind of pick, then the index of an endpoint
//! ```
//! Registers do not survive a rule (6.18 refuses to read one that the rule did not write), and a mark would be seen by
//! others; every path puts the priority back to 0. `nft` prints the word as a class id, two hexadecimal halves.

use std::fmt;

/// Bits of the pool id.
pub(super) const POOL: u32 = !LOW;
/// The other bits.
pub(super) const LOW: u32 = (1 << SHIFT) - 1;
const SHIFT: u32 = 14;
/// Most pools: a service has one for each family and policy in use.
pub const MAX_POOLS: u32 = 1 << (32 - SHIFT);
/// Most endpoints that can be told apart in a pool.
pub const MAX_MEMBERS: usize = 1 << SHIFT;
/// Most kinds of pick.
pub(super) const MAX_KINDS: u32 = 1 << SHIFT;

/// Bits of the list of sources that may come; 0: everybody.
pub(super) const LIST: u32 = 0x1f;
/// Most lists of one pool.
pub const MAX_LISTS: u32 = LIST;
/// Sources from outside get another pool.
pub(super) const SPLIT: u32 = 0x20;
/// The source is translated.
pub(super) const NAT_ALWAYS: u32 = 0x40;
/// The source is kept.
pub(super) const NAT_NEVER: u32 = 0x80;
/// The source is translated if it is this node.
pub(super) const NAT_NODE: u32 = 0x100;

/// A word as a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word(pub u32);

impl Word {
    /// A pool's id and the lower bits.
    #[must_use]
    pub fn new(pool: u32, low: u32) -> Self {
        Self(pool << SHIFT | low & LOW)
    }

    /// The pool's id.
    #[must_use]
    pub fn pool(self) -> u32 {
        self.0 >> SHIFT
    }

    /// The lower bits.
    #[must_use]
    pub fn low(self) -> u32 {
        self.0 & LOW
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("none"),
            word => write!(f, "{:x}:{:x}", word >> 16, word & 0xffff),
        }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
