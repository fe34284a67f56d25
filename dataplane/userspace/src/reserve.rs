//! One descriptor kept open for the moment when the process has none left: giving it up is what lets the accept loop take
//! connections and turn them away, instead of spinning on a queue that it cannot empty.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

/// The spare descriptor.
#[derive(Debug)]
pub(crate) struct Reserve(Mutex<Option<File>>);

impl Reserve {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(File::open("/dev/null").ok()))
    }

    /// Takes it; absent: it has been taken.
    pub(crate) fn take(&self) -> Option<File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Opens it again, if that is possible now.
    pub(crate) fn refill(&self) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_none() {
            *spare = File::open("/dev/null").ok();
        }
    }
}
