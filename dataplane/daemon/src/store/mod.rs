//! The store: what was accepted, on disk before anybody is told so. `docs/decisions/0001-store.md` says why it is
//! SQLite and what is promised; in short: a commit survives `kill -9` at any instruction, a power cut may lose the last
//! second, and a damaged file loses what is damaged, by name.
//!
//! It keeps records (`record.rs`) and knows nothing of what they mean; `encode.rs` turns a Delta into a batch of them,
//! and them into values again. Blocking: whoever is async gives it a thread.

mod batch;
pub mod encode;
mod error;
mod file;
mod journal;
mod lock;
mod persist;
mod read;
pub mod record;
mod salvage;
mod sync;
pub mod totals;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode};

pub use batch::Batch;
pub use error::{Finding, StoreError};
use journal::Journal;
use lock::{LastEnd, Lock, LockError};
use read::{Contents, Row, Unreadable};
use record::{RecordKey, StoredMeta, Table};
use salvage::Salvaged;
use sync::Syncer;

/// The store's file in the state directory.
const FILE: &str = "store.db";

/// Whether there is a store in a state directory, in whatever state.
#[must_use]
pub fn exists(directory: &Path) -> bool {
    directory.join(FILE).exists()
}
const POWER_CUT: &str = "the machine was restarted without a clean stop; the last second may be lost";

/// What [`Store::open`] gives.
#[derive(Debug)]
pub struct Opened {
    /// For what is accepted from now on.
    pub store: Store,
    /// What it held, in key order.
    pub records: Vec<StoredRecord>,
    /// What the operator should know, in words.
    pub findings: Vec<Finding>,
    /// There was no store: it was made just now.
    pub fresh: bool,
}

/// One record, not yet decoded: see [`record::decode_record`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredRecord {
    /// Which.
    pub key: RecordKey,
    /// Its bytes, which are those that were written.
    pub value: Vec<u8>,
}

/// The open store. Dropping it is as safe as a kill; [`Store::close`] also notes that all is on the disk.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    meta: StoredMeta,
    access: Access,
}

#[derive(Debug)]
enum Access {
    /// In the order in which they are let go: the thread, the file, the lock.
    Writable {
        syncer: Syncer,
        connection: Connection,
        lock: Lock,
    },
    ReadOnly {
        why: String,
        _lock: Option<Lock>,
    },
}

impl Store {
    /// Opens the store of a state directory, or makes one. What can be read is in the answer even if the file is damaged
    /// (it is kept aside, and a new one takes its place) or cannot be written (every commit is refused).
    ///
    /// # Errors
    /// Another process holds it; the directory cannot be used at all; the system fails.
    pub fn open(directory: &Path) -> Result<Opened, StoreError> {
        let unusable = |source| StoreError::Directory { path: directory.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o750).create(directory).map_err(unusable)?;
        let path = directory.join(FILE);
        let lock = match Lock::take(directory) {
            Ok(lock) => lock,
            Err(LockError::Held(pid)) => return Err(StoreError::Held { path: directory.to_owned(), pid }),
            Err(LockError::Io(error)) if path.exists() && is_unwritable(&error) => {
                return Self::read_only(path, None, error.to_string());
            }
            Err(LockError::Io(error)) => return Err(unusable(error)),
        };
        file::finish_replacement(&path).map_err(|e| io_failed("cannot finish the replacement of", &path, e))?;

        let journal = length(&file::beside(&path, "-wal"));
        let Some(size) = length(&path).or(journal.filter(|bytes| *bytes > 0).map(|_| 0)) else {
            return Self::create(path, lock);
        };
        let inspected =
            if size == 0 { Err(Unreadable::Damaged("it is empty".into())) } else { inspect(&path, lock.last_end) };
        match inspected {
            Ok((connection, contents)) => Self::found(path, lock, connection, contents),
            Err(Unreadable::Damaged(why)) => Self::repair(path, lock, why),
            Err(Unreadable::Sqlite(error)) => Self::read_only(path, Some(lock), error.to_string()),
        }
    }

    /// Writes a batch in one transaction: all of it is in the store when this returns, or nothing. Costs what the batch
    /// is, not what the store is.
    ///
    /// # Errors
    /// The store is only readable, the disk is full, or it fails. The store stays usable: a later commit may succeed.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let (connection, syncer, lock) = match &mut self.access {
            _ if batch.is_empty() => return Ok(()),
            Access::Writable { connection, syncer, lock } => (connection, syncer, lock),
            Access::ReadOnly { why, .. } => {
                return Err(StoreError::ReadOnly { path: self.path.clone(), why: why.clone() });
            }
        };
        self.meta = file::write(connection, &self.meta, batch).map_err(|e| failed("cannot write to", &self.path, e))?;
        lock.note_commits(self.meta.commits);
        syncer.wrote(batch.records().count() as u64 + 1, connection);
        Ok(())
    }

    /// Identity of the store: 32 hexadecimal digits.
    #[must_use]
    pub fn epoch(&self) -> &str {
        &self.meta.epoch
    }

    /// The newest accepted change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.meta.revision
    }

    /// Why no commit is accepted; absent: they are.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<&str> {
        match &self.access {
            Access::ReadOnly { why, .. } => Some(why),
            Access::Writable { .. } => None,
        }
    }

    /// Why what was committed could not be taken to the disk when that was last tried; absent: it could. Commits go on,
    /// and survive a kill, but a power cut would lose more than the last second.
    #[must_use]
    pub fn sync_failure(&self) -> Option<String> {
        match &self.access {
            Access::Writable { syncer, .. } => syncer.failure(),
            Access::ReadOnly { .. } => None,
        }
    }

    /// Keeps counts beside the store. No declared state: nothing waits for the disk.
    ///
    /// # Errors
    /// They could not be written; those of before stay.
    pub fn keep(&self, kept: &totals::Kept) -> std::io::Result<()> {
        match (&self.access, self.path.parent()) {
            (Access::Writable { .. }, Some(directory)) => totals::save(directory, kept),
            _ => Ok(()),
        }
    }

    /// Takes everything to the disk, and notes that it is there: the next start keeps the epoch even after a reboot.
    ///
    /// # Errors
    /// The disk fails. Then the next start treats it as a kill.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.end()
    }

    /// As [`Self::close`], where the store is somebody else's to drop. Later commits are refused.
    fn end(&mut self) -> Result<(), StoreError> {
        let ended = Access::ReadOnly { why: "it is closed".into(), _lock: None };
        let Access::Writable { syncer, connection, lock } = std::mem::replace(&mut self.access, ended) else {
            return Ok(());
        };
        drop(syncer);
        sync::checkpoint(&connection, "TRUNCATE").map_err(|e| failed("cannot close", &self.path, e))?;
        connection.close().map_err(|(_, e)| failed("cannot close", &self.path, e))?;
        lock.release().map_err(|e| io_failed("cannot close", &self.path, e))
    }

    fn create(path: PathBuf, lock: Lock) -> Result<Opened, StoreError> {
        let meta = StoredMeta { epoch: new_epoch(&path)?, revision: 0, records: 0, commits: 0 };
        let new = file::make(&path, &meta, &[]).map_err(|e| failed("cannot make", &path, e))?;
        file::put_in_place(&path, &new).map_err(|e| io_failed("cannot make", &path, e))?;
        let store = Self::writable(path, lock, meta)?;
        Ok(Opened { store, records: Vec::new(), findings: Vec::new(), fresh: true })
    }

    fn writable(path: PathBuf, lock: Lock, meta: StoredMeta) -> Result<Self, StoreError> {
        let connection = file::open(&path).map_err(|e| failed("cannot open", &path, e))?;
        let syncer = Syncer::start(&path).map_err(|e| failed("cannot open", &path, e))?;
        Ok(Self { path, meta, access: Access::Writable { syncer, connection, lock } })
    }

    fn found(path: PathBuf, lock: Lock, connection: Connection, contents: Contents) -> Result<Opened, StoreError> {
        let (last_end, last_commits) = (lock.last_end, lock.last_commits);
        let syncer = match Syncer::start(&path) {
            Ok(syncer) => syncer,
            Err(error) => return Self::read_only(path, Some(lock), error.to_string()),
        };
        let mut store = Self { path, meta: contents.meta, access: Access::Writable { syncer, connection, lock } };
        let mut findings: Vec<_> = outdated(&store.meta, last_commits).into_iter().collect();
        if last_end == LastEnd::Unknown {
            // Revisions of the lost second may be given again to other changes. Where there is no space for the new epoch
            // now, the first change that is accepted stores it.
            store.meta.epoch = new_epoch(&store.path)?;
            let mut batch = Batch::new();
            batch.set_revision(store.meta.revision.max(1));
            if let Err(error) = store.commit(&batch) {
                tracing::warn!(%error, "the new epoch is not stored yet");
            }
            findings.push(Finding::NewEpoch(POWER_CUT));
        }
        Ok(Opened { store, records: records(contents.rows), findings, fresh: false })
    }

    /// Reads what can be read of a damaged store into a new one.
    fn repair(path: PathBuf, lock: Lock, why: String) -> Result<Opened, StoreError> {
        let Salvaged { meta, revision, rows, mut findings } = salvaged(&path)?;
        findings.extend(meta.as_ref().and_then(|meta| outdated(meta, lock.last_commits)));
        let lost = meta.is_none();
        let epoch = match meta.as_ref().map(|meta| meta.epoch.clone()) {
            Some(epoch) if lock.last_end != LastEnd::Unknown => epoch,
            _ => {
                findings.push(Finding::NewEpoch(if lost { "its own record was lost" } else { POWER_CUT }));
                new_epoch(&path)?
            }
        };
        let revision = meta.as_ref().map_or(revision, |meta| meta.revision.max(revision));
        let commits = meta.map_or(0, |meta| meta.commits).max(lock.last_commits);
        let meta = StoredMeta { epoch, revision, records: rows.len() as u64, commits };
        let replaced = file::make(&path, &meta, &rows).map_err(|e| failed("cannot make", &path, e));
        let replaced =
            replaced.and_then(|new| file::put_in_place(&path, &new).map_err(|e| io_failed("cannot replace", &path, e)));
        let store = match replaced {
            Ok(kept) => {
                let kept = kept.unwrap_or_else(|| path.clone());
                findings.insert(0, Finding::Damaged { why, kept });
                Self::writable(path, lock, meta)?
            }
            Err(error) => {
                let why_not = error.to_string();
                findings.insert(0, Finding::DamagedInPlace(why));
                findings.insert(1, Finding::ReadOnly(why_not.clone()));
                Self { path, meta, access: Access::ReadOnly { why: why_not, _lock: Some(lock) } }
            }
        };
        Ok(Opened { store, records: records(rows), findings, fresh: false })
    }

    /// Reads a store that cannot be written, without touching anything.
    fn read_only(path: PathBuf, lock: Option<Lock>, why: String) -> Result<Opened, StoreError> {
        let Salvaged { meta, revision, rows, mut findings } = salvaged(&path)?;
        let meta = match meta {
            Some(meta) => meta,
            None => StoredMeta { epoch: new_epoch(&path)?, revision, records: rows.len() as u64, commits: 0 },
        };
        findings.insert(0, Finding::ReadOnly(why.clone()));
        let store = Self { path, meta, access: Access::ReadOnly { why, _lock: lock } };
        Ok(Opened { store, records: records(rows), findings, fresh: false })
    }
}

/// Whether the last holder had committed more than is there.
fn outdated(meta: &StoredMeta, last_commits: u64) -> Option<Finding> {
    let missing = last_commits.checked_sub(meta.commits).filter(|missing| *missing > 0)?;
    Some(Finding::Outdated(format!("the last {missing} of {last_commits} commits are not in the file")))
}

/// Opens a file that is there, and verifies it.
fn inspect(path: &Path, last_end: LastEnd) -> Result<(Connection, Contents), Unreadable> {
    let connection = file::open(path)?;
    // After a power cut the end of the journal is torn as it happens to be; what SQLite reads is what was on the disk.
    if last_end != LastEnd::Unknown {
        let bytes = fs::read(file::beside(path, "-wal")).unwrap_or_default();
        let seen = sync::checkpoint(&connection, "NOOP")?.pages();
        if journal::is_suspicious(&bytes, seen)
            && let Some(damage) = Journal::read(&bytes).damage()
        {
            return Err(Unreadable::Damaged(damage.to_owned()));
        }
    }
    let contents = read::read(&connection)?;
    Ok((connection, contents))
}

fn salvaged(path: &Path) -> Result<Salvaged, StoreError> {
    let read = |path: &Path| match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(|source| StoreError::Io { doing: "cannot read", path: path.to_owned(), source }),
    };
    let database = read(path)?;
    let journal = read(&file::beside(path, "-wal"))?;
    let first_page = file::first_page().map_err(|e| failed("cannot read", path, e))?;
    Ok(salvage::salvage(database, &Journal::read(&journal), &first_page))
}

/// Rows of tables that this version knows; the others stay in the file for the version that does.
fn records(rows: Vec<Row>) -> Vec<StoredRecord> {
    let record = |row: Row| {
        let table = Table::from_number(row.table)?;
        Some(StoredRecord { key: RecordKey { table, key: row.key }, value: row.value })
    };
    let mut records: Vec<_> = rows.into_iter().filter_map(record).collect();
    records.sort_unstable();
    records
}

fn length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.len())
}

fn new_epoch(path: &Path) -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes))
        .map_err(|e| io_failed("cannot draw an epoch for", path, e))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn is_unwritable(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}

fn io_failed(doing: &'static str, path: &Path, source: io::Error) -> StoreError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { path: path.to_owned() },
        _ => StoreError::Io { doing, path: path.to_owned(), source },
    }
}

fn failed(doing: &'static str, path: &Path, source: rusqlite::Error) -> StoreError {
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full { path: path.to_owned() },
        _ => StoreError::Sqlite { doing, path: path.to_owned(), source },
    }
}
