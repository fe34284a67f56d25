//! What vipd says to the kernel over netlink: nftables batches and read-back, conntrack deletions, node addresses.
//!
//! Small, synchronous and typed. Every refusal of the kernel comes back as an [`Error`] that says which operation
//! failed, why in the kernel's own words, and which object of the batch it was. Nothing here knows a service or a
//! frontend: that is the business of `vipd-nftables`.
//! Read [`socket`] first, then [`nft`]. Decoders take `&[u8]` and never panic, whatever they are fed.

pub mod addresses;
pub mod attr;
pub mod conntrack;
pub mod error;
pub mod message;
pub mod nft;
pub mod socket;
pub mod xtables;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use error::{Error, Refusal};
