//! The gRPC server: requests into commands, answers back. Generated types stop here, and there is no logic: what a call
//! means is decided in the model, when it is in force by the reconciler.
//!
//! Reading order: [`transport`] (how callers get in), [`identity`] and [`access`] (who they are, what they may), [`call`]
//! (what every call begins with), [`convert`] (messages and values), then `dataplane` and `node` (the calls),
//! [`status`] (the one place where errors become gRPC statuses).

pub mod access;
pub mod call;
pub mod change;
pub mod convert;
pub mod dataplane;
mod events;
mod explain;
mod flows;
pub mod identity;
mod info;
pub mod intake;
pub mod limits;
mod list;
mod node;
pub mod relay;
pub mod server;
mod stats;
pub mod status;
mod sync;
pub mod transport;
mod watch;

pub use access::Access;
pub use call::{Api, Room};
pub use info::kernel;
pub use server::{Listeners, serve};
