//! `vipd cleanup`: everything of ours goes from the kernel, whatever engine made it, and nothing else.

use vipd_engine::Steps;
use vipd_iptables::Iptables;
use vipd_nftables::{Guard, Nftables};

use super::iptables;
use crate::config::Config;

/// Removes everything of ours; returns how many objects.
///
/// # Errors
/// What could not be removed, or why the kernel cannot be asked. What could be removed is gone then.
pub fn cleanup(config: &Config) -> Result<u64, String> {
    let mut removed = 0;
    let mut errors = Vec::new();
    let mut take = |who: &str, outcome: Result<u64, String>| match outcome {
        Ok(count) => removed += count,
        Err(error) => errors.push(format!("{who}: {error}")),
    };
    // The guard is the last: its anchor is what established flows hang on.
    let options = iptables::options(config);
    if Iptables::probe(&options).is_ok() {
        let opened = Iptables::open(&options).map_err(|unusable| unusable.to_string());
        take("iptables", opened.and_then(clean));
        let _ = std::fs::remove_file(iptables::mark(config));
    }
    match Nftables::open() {
        Ok(engine) => take("nftables", clean(engine)),
        // Where this cannot be opened for want of a part of the kernel, it has left nothing; for want of a right, the guard
        // says so too.
        Err(unusable) => tracing::debug!(%unusable, "nftables"),
    }
    let opened = Guard::open().map_err(|unusable| unusable.to_string());
    take("guard", opened.and_then(clean));
    if errors.is_empty() { Ok(removed) } else { Err(errors.join("; ")) }
}

fn clean<S: Steps>(mut steps: S) -> Result<u64, String> {
    steps.cleanup().map_err(|error| error.to_string())
}
