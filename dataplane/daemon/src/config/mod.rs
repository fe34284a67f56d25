//! Configuration: a TOML file, then the environment (`VIPD_STATE_DIR`, `VIPD_LIMITS__CALLS`), then flags; the later
//! wins. A key that vipd does not know is an error that suggests the one that was meant.
//!
//! [`settings`] has every key, [`load`] reads, [`example`] prints the commented file.

pub mod access;
pub mod example;
pub mod load;
pub mod paths;
pub mod settings;
pub mod value;

pub use load::{ConfigError, Sources};
pub use settings::Config;

/// Where metrics are served unless something else is said. As nobody asked for it, a port that is taken is no reason not
/// to start.
pub const DEFAULT_METRICS: &str = "127.0.0.1:9464";
