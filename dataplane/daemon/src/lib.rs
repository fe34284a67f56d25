//! The vipd daemon as a library: [`Daemon::start`] runs a whole one inside another program.

pub mod api;
pub mod check;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod health;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod node;
pub mod notify;
pub mod reconcile;
pub mod store;

pub use config::Config;
pub use daemon::{Daemon, DaemonError, Handle};
