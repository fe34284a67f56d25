//! The store as the reconciler asks for it: Deltas in, on disk or refused.

use std::sync::Arc;

use vipd_model::Delta;

use super::totals::Kept;
use super::{Batch, Store, StoreError};
use crate::reconcile::{Persist, PersistError};

impl Persist for Store {
    /// All of them as one transaction, so that a storm of calls costs few.
    fn commit(&mut self, deltas: &[Arc<Delta>]) -> Result<(), PersistError> {
        let mut batch = Batch::new();
        for delta in deltas {
            batch.add(delta);
        }
        Self::commit(self, &batch).map_err(|error| PersistError {
            message: error.to_string(),
            read_only: matches!(error, StoreError::ReadOnly { .. }),
        })
    }

    fn keep(&mut self, kept: Kept) {
        if let Err(error) = Self::keep(self, &kept) {
            tracing::warn!(%error, "what was counted could not be written; a restart counts on from older figures");
        }
    }

    fn trouble(&self) -> Option<String> {
        self.sync_failure()
    }

    fn end(&mut self) {
        if let Err(error) = Self::end(self) {
            tracing::warn!(%error, "the store is not closed cleanly; nothing is lost, but its epoch may change");
        }
    }
}
