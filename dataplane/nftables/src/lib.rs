//! nftables by netlink: the guard, and the balancer.
//!
//! Each has tables of its own on a socket of its own, because a table that has an owner belongs to one socket: [`guard`]
//! has `inet vipd` and `inet vipd-anchor`, the balancer `inet vipd-nft`. Foreign tables are neither touched nor parsed,
//! and no process is started. What both need: [`rule`] builds rules and what `nft` prints for them, `owner` takes our
//! tables, `generation` notices strangers.

pub mod balancer;
mod failure;
mod generation;
pub mod guard;
mod owner;
pub mod rule;
mod strangers;

use vipd_model::Family;

pub use balancer::Nftables;
pub use guard::Guard;
pub use owner::Unusable;
pub use rule::Rule;

/// 4 or 6, the suffix of names.
pub(crate) fn digit(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}
