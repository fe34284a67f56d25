//! What the proxy may hold open: a budget of file descriptors that is taken before it is spent, and the memory of when
//! something was turned away for want of it. Nothing here makes a system call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Something is called shedding until it has shed nothing for so long.
const QUIET_MS: u64 = 5_000;

/// A limit that proved too high is tried again after so long.
const RETRY_MS: u64 = 5_000;

/// A bounded number of descriptors. Taking one is what makes opening it safe: the control side's own descriptors are
/// outside of it, so a full budget never costs the daemon its store or its socket.
#[derive(Debug)]
pub(crate) struct Budget {
    /// As it was configured.
    most: usize,
    /// As it is now: lower if the process turned out to have fewer.
    limit: AtomicUsize,
    /// When it was lowered, in the proxy's own milliseconds.
    lowered: AtomicU64,
    used: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let (limit, lowered, used) = (AtomicUsize::new(most), AtomicU64::new(0), AtomicUsize::new(0));
        Arc::new(Self { most, limit, lowered, used })
    }

    /// Takes `count` descriptors, or none.
    pub(crate) fn take(self: &Arc<Self>, count: usize) -> Option<Permit> {
        let limit = self.limit.load(Ordering::Relaxed);
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            if used + count > limit {
                return None;
            }
            match self.used.compare_exchange_weak(used, used + count, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(Permit { budget: Arc::clone(self), count }),
                Err(now) => used = now,
            }
        }
    }

    /// The process has no descriptor left although the budget has: no more than now, for a while.
    pub(crate) fn lower(&self, now: u64) {
        self.limit.store(self.used().min(self.most), Ordering::Relaxed);
        self.lowered.store(now, Ordering::Relaxed);
    }

    /// Whether a lowered limit has just been lifted again, because it was lowered long enough ago.
    pub(crate) fn lift(&self, now: u64) -> bool {
        let due = now.saturating_sub(self.lowered.load(Ordering::Relaxed)) > RETRY_MS;
        due && self.limit.swap(self.most, Ordering::Relaxed) != self.most
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }
}

/// Descriptors taken from a budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Arc<Budget>,
    count: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// Since when new flows are turned away. Times are the proxy's own milliseconds; 0 stands for never.
#[derive(Debug, Default)]
pub(crate) struct Shedding {
    since: AtomicU64,
    last: AtomicU64,
}

impl Shedding {
    /// A flow was turned away now. True if that begins a spell of it.
    pub(crate) fn note(&self, now: u64) -> bool {
        let last = self.last.swap(now.max(1), Ordering::Relaxed);
        let begins = last == 0 || now.saturating_sub(last) > QUIET_MS;
        if begins {
            self.since.store(now.max(1), Ordering::Relaxed);
        }
        begins
    }

    /// Since when; absent: nothing was turned away of late.
    pub(crate) fn since(&self, now: u64) -> Option<u64> {
        let last = self.last.load(Ordering::Relaxed);
        (last != 0 && now.saturating_sub(last) <= QUIET_MS).then(|| self.since.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_overdrawn_and_is_given_back() {
        let budget = Budget::new(5);
        let first = budget.take(2).unwrap();
        let second = budget.take(3).unwrap();
        assert!(budget.take(1).is_none());
        drop(first);
        assert!(budget.take(3).is_none(), "all or nothing");
        assert!(budget.take(2).is_some());
        drop(second);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_limit_that_proved_too_high_is_lowered_for_a_while() {
        let budget = Budget::new(10);
        let held = budget.take(6).unwrap();
        budget.lower(1_000);
        assert!(budget.take(1).is_none());
        assert!(!budget.lift(6_000));
        assert!(budget.lift(6_001) && !budget.lift(6_001));
        assert!(budget.take(4).is_some());
        drop(held);
    }

    #[test]
    fn shedding_begins_once_and_is_over_when_it_is_quiet() {
        let shedding = Shedding::default();
        assert_eq!(shedding.since(100), None);
        assert!(shedding.note(1_000));
        assert!(!shedding.note(4_000));
        assert_eq!(shedding.since(8_000), Some(1_000));
        assert_eq!(shedding.since(9_001), None);
        assert!(shedding.note(20_000), "a new spell");
        assert_eq!(shedding.since(20_001), Some(20_000));
    }
}
