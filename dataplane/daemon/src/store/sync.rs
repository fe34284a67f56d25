//! The way to the disk, on a thread of its own: a commit is safe from everything but the machine's own end once it is in
//! the page cache; this thread bounds what a power cut can lose, so that no commit waits for a disk.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::file;

/// From a commit to the begin of its way to the disk; with the time that the disk takes, below the second that a power
/// cut may cost.
const INTERVAL: Duration = Duration::from_millis(500);
/// So many written records are not made to wait for the interval: about 16 MiB of journal.
const RECORDS_MOST: u64 = 4_000;
/// A journal of so many pages (64 MiB) is emptied by the committing thread; only one that never pauses gets there.
const JOURNAL_MOST: i64 = 16_384;
/// So that a small disk that hangs in errors is not asked all the time.
const RETRY: Duration = Duration::from_secs(1);

/// The thread, and what is said to it.
#[derive(Debug)]
pub(super) struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Held during a checkpoint: SQLite refuses a second one at the same time.
    checkpoint: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Records since the last checkpoint.
    written: u64,
    /// The journal is longer than it should be.
    long: bool,
    stop: bool,
    /// Why the last checkpoint failed.
    failure: Option<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Syncer {
    pub(super) fn start(path: &Path) -> rusqlite::Result<Self> {
        let connection = file::open(path)?;
        // It never waits for a commit; it comes again.
        connection.busy_timeout(Duration::ZERO)?;
        let shared = Arc::<Shared>::default();
        let thread = thread::Builder::new().name("store-sync".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run(&connection)
        });
        let thread = thread.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// So many records were committed. Rarely, under a load that never pauses, empties the journal on this thread.
    pub(super) fn wrote(&self, records: u64, connection: &Connection) {
        let long = {
            let mut state = lock(&self.shared.state);
            state.written += records;
            if state.written == records || state.written >= RECORDS_MOST {
                self.shared.wake.notify_one();
            }
            state.long
        };
        if long
            && let Ok(_alone) = self.shared.checkpoint.try_lock()
            && checkpoint(connection, "TRUNCATE").is_ok()
        {
            lock(&self.shared.state).long = false;
        }
    }

    /// Why the last way to the disk failed; absent: it did not.
    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.shared.state).failure.clone()
    }

    fn stop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has said so itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self, connection: &Connection) {
        while self.wait() {
            let before = std::mem::take(&mut lock(&self.state).written);
            let result = {
                let _alone = lock(&self.checkpoint);
                checkpoint(connection, "PASSIVE").inspect(|journal| {
                    // All of it is in the database, and nobody writes: an empty journal cannot be damaged.
                    if journal.done == journal.pages && lock(&self.state).written == 0 {
                        let _ = checkpoint(connection, "TRUNCATE");
                    }
                })
            };
            let mut state = lock(&self.state);
            match result {
                Ok(journal) => {
                    state.failure = None;
                    state.long = journal.pages > JOURNAL_MOST;
                }
                Err(error) => {
                    state.written += before;
                    if state.failure.is_none() {
                        tracing::error!(%error, "the state cannot be taken to the disk; a power cut would lose it");
                    }
                    state.failure = Some(error.to_string());
                    let _ = self.wake.wait_timeout_while(state, RETRY, |state| !state.stop);
                }
            }
        }
    }

    /// Until there is something to do; false: stop.
    fn wait(&self) -> bool {
        let idle = |state: &mut State| state.written == 0 && !state.stop;
        let mut state = self.wake.wait_while(lock(&self.state), idle).unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + INTERVAL;
        // While the journal is long, the committing thread has the interval for emptying it.
        while !state.stop && (state.long || state.written < RECORDS_MOST) {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.stop
    }
}

/// How long the journal is, and how much of it is in the database, in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checkpoint {
    pages: i64,
    done: i64,
}

impl Checkpoint {
    /// Of the journal.
    pub(super) fn pages(self) -> usize {
        usize::try_from(self.pages).unwrap_or(0)
    }
}

/// Takes the journal to the disk, then its pages into the database, then that to the disk.
pub(super) fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<Checkpoint> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        Ok(Checkpoint { pages: row.get(1)?, done: row.get(2)? })
    })
}
