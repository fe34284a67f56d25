//! This node: the engines that it can run, its guard, its addresses, and what an operator should know of the host.
//!
//! [`lanes`] probes and starts what moves packets ([`iptables`] only when it is needed), [`addresses`] follows the node's addresses, [`cleaner`] forgets stale
//! UDP flows, [`findings`] looks at the host. All of them read; only the lanes write, and not before they are told.

pub mod addresses;
pub mod cleaner;
pub mod cleanup;
pub mod findings;
pub mod inspect;
mod iptables;
pub mod lanes;
mod lazy;
pub mod start;

pub use cleanup::cleanup;
pub use inspect::{Inspected, inspect};
pub use lanes::{NodeLanes, Unavailable};
pub use start::{Node, StartError};
