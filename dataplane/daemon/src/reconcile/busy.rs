//! What is under way and since when, so that a worker that hangs is noticed whatever it hangs on.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// By what is done: `programming`, `storing`.
#[derive(Debug, Default)]
pub(super) struct Busy(BTreeMap<&'static str, Instant>);

impl Busy {
    pub(super) fn begin(&mut self, what: &'static str) {
        self.0.insert(what, Instant::now());
    }

    pub(super) fn end(&mut self, what: &'static str) {
        self.0.remove(what);
    }

    /// What has lasted longest, if it has lasted so long.
    pub(super) fn stalled(&self, after: Duration) -> Option<(&'static str, Duration)> {
        let (what, since) = self.0.iter().min_by_key(|(_, since)| **since)?;
        let lasted = since.elapsed();
        (lasted >= after).then_some((what, lasted))
    }
}
