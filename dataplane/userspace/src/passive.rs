//! Passive health: what the proxy learns of an endpoint from the flows it sends there.
//!
//! An endpoint that did not answer is avoided for a while, 1 s at first, doubled by each further failure up to 30 s. When
//! that is over, one flow at a time tries it; one success clears it. Whoever picks falls back on avoided endpoints if
//! there are no others. Sans I/O: times are the proxy's own milliseconds.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Avoided so long after a first failure.
const FIRST_MS: u64 = 1_000;
/// And never longer than this.
const MOST_MS: u64 = 30_000;
/// How long one flow has the trial of a suspect endpoint to itself: as long as an attempt to connect may take.
const TRIAL_MS: u64 = 2_000;

/// What is known of one endpoint. Lock-free, because every flow asks.
#[derive(Debug, Default)]
pub(crate) struct PassiveHealth {
    /// Failures in a row; 0: healthy.
    failures: AtomicU32,
    /// Not to be chosen before.
    until: AtomicU64,
}

impl PassiveHealth {
    /// Whether a flow may be sent there now: it is healthy, or its time is over and it may be tried.
    pub(crate) fn is_open(&self, now: u64) -> bool {
        self.failures.load(Ordering::Relaxed) == 0 || now >= self.until.load(Ordering::Relaxed)
    }

    /// Says that a flow is going there. For a suspect endpoint only one caller per trial hears yes, so that a thousand
    /// clients do not find out together.
    pub(crate) fn claim(&self, now: u64) -> bool {
        if self.failures.load(Ordering::Relaxed) == 0 {
            return true;
        }
        let until = self.until.load(Ordering::Relaxed);
        now >= until && self.until.compare_exchange(until, now + TRIAL_MS, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// It answered. True if it was suspect.
    pub(crate) fn succeeded(&self) -> bool {
        self.failures.load(Ordering::Relaxed) != 0 && self.failures.swap(0, Ordering::Relaxed) != 0
    }

    /// It did not answer. True if it was thought healthy.
    pub(crate) fn failed(&self, now: u64) -> bool {
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        let wait = FIRST_MS.checked_shl(before.min(16)).unwrap_or(MOST_MS).min(MOST_MS);
        self.until.store(now + wait, Ordering::Relaxed);
        before == 0
    }

    /// Failures in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// How much longer it is avoided, in milliseconds; absent: it is not.
    pub(crate) fn avoided_for(&self, now: u64) -> Option<u64> {
        let until = self.until.load(Ordering::Relaxed);
        (self.failures() != 0 && until > now).then(|| until - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn avoided_longer_each_time_up_to_a_bound() {
        let health = PassiveHealth::default();
        let mut now = 0;
        for wait in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            health.failed(now);
            assert!(!health.is_open(now + wait - 1) && !health.claim(now + wait - 1));
            assert_eq!(health.avoided_for(now), Some(wait));
            assert!(health.is_open(now + wait), "after {wait} ms one may try");
            now += wait;
        }
    }

    #[test]
    fn one_flow_tries_and_its_success_clears() {
        let health = PassiveHealth::default();
        assert!(health.claim(0) && health.claim(0));
        assert!(health.failed(0));
        assert!(health.claim(1_000));
        assert!(!health.claim(1_000) && !health.is_open(1_000), "the trial is taken");
        assert!(health.succeeded());
        assert!(health.claim(1_001) && health.claim(1_001));
        assert!(!health.succeeded());
    }

    #[test]
    fn many_failures_never_overflow() {
        let health = PassiveHealth::default();
        for now in 0..1_000 {
            health.failed(now);
        }
        assert_eq!(health.avoided_for(999), Some(MOST_MS));
    }
}
