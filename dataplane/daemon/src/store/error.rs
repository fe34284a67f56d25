//! What can go wrong with the store, and what was found when it was opened: sentences for the operator, and types for
//! whoever must decide.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::record::RecordKey;

/// Why the store could not be opened, or a batch not be written. Nothing of a batch that failed is in the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it.
    #[error(
        "the state directory {path} is in use by {holder}; stop that one, or give this one another --state-dir",
        path = path.display(), holder = Holder(*pid)
    )]
    Held {
        /// The state directory.
        path: PathBuf,
        /// Who has it, as far as it said so.
        pid: Option<u32>,
    },
    /// The directory cannot be made, or cannot be written and holds nothing to read.
    #[error("cannot use the state directory {path}: {source}; it must be a directory that vipd may write", path = path.display())]
    Directory {
        /// The state directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Opened for reading only: see [`Finding::ReadOnly`].
    #[error("the state in {path} can be read but not written ({why}); no change is accepted: make it writable and restart vipd", path = path.display())]
    ReadOnly {
        /// The store's file.
        path: PathBuf,
        /// What the system said when it was opened.
        why: String,
    },
    /// No space left. The store goes on to work; a later commit succeeds once there is space.
    #[error("the disk that holds {path} is full; nothing of this change was stored: free some space and repeat it", path = path.display())]
    Full {
        /// The store's file.
        path: PathBuf,
    },
    /// Anything else that SQLite reports.
    #[error("{doing} {path}: {source}", path = path.display())]
    Sqlite {
        /// What was tried, as "cannot write to".
        doing: &'static str,
        /// The store's file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// Anything else that the system reports.
    #[error("{doing} {path}: {source}", path = path.display())]
    Io {
        /// What was tried, as "cannot rename".
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

struct Holder(Option<u32>);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

/// Something that an operator should know about the store that was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// The file was not as it should be; what could be read is in a new one.
    #[error("the stored state was damaged ({why}); what could be read is served, the damaged file is kept as {kept}", kept = kept.display())]
    Damaged {
        /// What is wrong with it.
        why: String,
        /// Where it is now.
        kept: PathBuf,
    },
    /// The file was not as it should be, and nothing can be written here: it was left where it is.
    #[error("the stored state is damaged ({0}); what could be read is served")]
    DamagedInPlace(String),
    /// A record is gone.
    #[error("lost: the {0}")]
    Lost(RecordKey),
    /// Records are gone of which not even the names could be read.
    #[error("lost: {0} records whose names could not be read")]
    LostUnnamed(u64),
    /// Records may be gone of which neither names nor number could be read.
    #[error("lost: perhaps more records, whose names and number could not be read")]
    LostUnknown,
    /// What was committed last before the stop is not there, or may not be: what it changed is as it was before.
    #[error("changes of the last second before the stop are lost ({0}); declare them again")]
    Outdated(String),
    /// A record of which the checksum is right cannot be understood.
    #[error("the {key} cannot be used: {why}")]
    Unusable {
        /// Which.
        key: RecordKey,
        /// Why.
        why: String,
    },
    /// The store's identity is new, so that nobody resumes from a revision that may mean something else now.
    #[error("the store has a new epoch: {0}")]
    NewEpoch(&'static str),
    /// The state can be read but not written.
    #[error("the state can be read but not written ({0}); no change is accepted: make it writable and restart vipd")]
    ReadOnly(String),
}

impl Finding {
    /// Whether something that was declared may be missing from what was read. Whoever removes kernel objects that
    /// nothing declares must not do so then.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Lost(_) | Self::LostUnnamed(_) | Self::LostUnknown | Self::Outdated(_) | Self::Unusable { .. } => {
                true
            }
            Self::Damaged { .. } | Self::DamagedInPlace(_) | Self::NewEpoch(_) | Self::ReadOnly(_) => false,
        }
    }
}
