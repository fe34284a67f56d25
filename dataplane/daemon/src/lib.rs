//! The vipd daemon as a library.

pub mod api;
pub mod config;
pub mod node;
pub mod reconcile;
pub mod store;

pub use config::Config;
