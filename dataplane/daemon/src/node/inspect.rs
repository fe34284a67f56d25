//! What this node could run, for `vipd check`: probes and reads, changes nothing.

use vipd_model::{Engines, Problem};

use super::findings;
use super::lanes::{NodeLanes, Unavailable};
use crate::config::Config;

/// What was found.
pub struct Inspected {
    /// Every engine, the default first in the order.
    pub engines: Result<Engines, Unavailable>,
    /// Why there is no guard; absent: there is one.
    pub no_guard: Option<String>,
    /// What an operator should know of the host.
    pub findings: Vec<Problem>,
}

/// Probes. What was started for it ends again.
#[must_use]
pub fn inspect(config: &Config) -> Inspected {
    let findings = findings::host();
    match NodeLanes::start(config) {
        Ok(lanes) => Inspected { engines: Ok(lanes.engines), no_guard: lanes.no_guard, findings },
        Err(why) => Inspected { no_guard: Some(why.to_string()), engines: Err(why), findings },
    }
}
