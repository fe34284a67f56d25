//! The one owner of change. Commands come in by [`Control`]; those that arrive while something runs are taken together.
//!
//! ```text
//! dispatch → store → accepted → balancers and guard → programmed → stale flows gone → clean → caller answered
//! ```
//! [`run`] is the loop, [`program`] the way of one batch through the engines, [`core`] the state that the API reads.
//! Engines, guard, store and cleaner block, each on a thread of its own ([`worker`]); nothing here does.

mod accept;
mod apply;
mod beside;
mod busy;
pub mod changes;
pub mod clean;
pub mod control;
pub mod core;
mod describe;
mod drain;
mod drift;
mod flows;
mod holds;
pub mod journal;
pub mod lanes;
pub mod persist;
pub mod program;
mod queries;
pub mod run;
#[cfg(test)]
mod tests;
pub mod totals;
pub mod track;
mod upkeep;
mod waiters;
pub mod worker;

pub use clean::{Cleaner, Watched};
pub use control::{Accepted, CallError, Control, Planned, Verified};
pub use core::{Core, Hold, Status};
pub use lanes::{Balancer, Balancers, GuardLane, Lane, Lanes};
pub use persist::{Forgetful, Persist, PersistError};
pub use run::{Reconciler, Settings, Start};
pub use track::ServiceState;
pub use waiters::Target;
pub use worker::Worker;
