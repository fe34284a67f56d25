//! This node: the engines that it can run, its guard, its addresses, and what an operator should know of the host.
//!
//! [`lanes`] probes and starts what moves packets, [`addresses`] follows the node's addresses, [`cleaner`] forgets stale
//! UDP flows, [`findings`] looks at the host. All of them read; only the lanes write, and not before they are told.

pub mod addresses;
pub mod cleaner;
pub mod findings;
pub mod inspect;
pub mod lanes;
pub mod start;

pub use inspect::{Inspected, inspect};
pub use lanes::{NodeLanes, Unavailable, cleanup};
pub use start::{Node, StartError};
