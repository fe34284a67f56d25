//! Who else changes the rule set, where our tables are open to others.

use vipd_netlink::nft::Monitor;

/// Listens while there is reason to.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    monitor: Option<Monitor>,
}

impl Strangers {
    /// Listens, unless the tables are ours alone.
    pub(crate) fn listen(&mut self, owned: bool) {
        self.monitor = match self.monitor.take() {
            _ if owned => None,
            // Without a name drift is repaired all the same.
            None => Monitor::open().ok(),
            monitor => monitor,
        };
    }

    /// Runs commits of our own.
    pub(crate) fn aside<T>(&mut self, commit: impl FnOnce() -> T) -> T {
        match &mut self.monitor {
            Some(monitor) => monitor.paused(commit),
            None => commit(),
        }
    }

    /// `nft (pid 4211)`, of whoever came last; said once.
    pub(crate) fn last(&mut self) -> Option<String> {
        let other = self.monitor.as_mut()?.last_other()?;
        Some(format!("{} (pid {})", other.name, other.pid))
    }
}
