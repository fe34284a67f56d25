//! What the reconciler asks of the store.

use std::sync::Arc;

use vipd_model::Delta;

use crate::store::totals::Kept;

/// Why a change was not stored. Nothing of it was, and nothing was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PersistError {
    /// In words: which file, what the system said, what to do.
    pub message: String,
    /// The store takes no writes at all until the daemon is restarted (read-only, or gone).
    pub read_only: bool,
}

/// Keeps Deltas. Called on a thread of its own; blocks.
pub trait Persist: Send {
    /// Makes these Deltas survive a `kill -9` from now on: all of them, or none and an error.
    ///
    /// # Errors
    /// If they are not stored.
    fn commit(&mut self, deltas: &[Arc<Delta>]) -> Result<(), PersistError>;

    /// Keeps what was counted, as well as it goes.
    fn keep(&mut self, kept: Kept) {
        let _ = kept;
    }

    /// What is wrong though commits succeed: they cannot be taken to the disk, and a power cut would lose them.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Called once, when nothing more will be committed: a clean stop.
    fn end(&mut self) {}
}

/// Keeps nothing: tests, and a daemon that is told to run without a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forgetful;

impl Persist for Forgetful {
    fn commit(&mut self, _: &[Arc<Delta>]) -> Result<(), PersistError> {
        Ok(())
    }
}
