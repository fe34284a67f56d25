//! Records: what one row of the store holds, and its encoding. The messages are the API's own (`vipd.v1`) inside a small
//! envelope of ours, so a record is versioned the way the API is: fields are only added.
//!
//! Pure. What happens to a record that cannot be read is decided by the callers; see `read.rs` and `salvage.rs`.

use std::fmt;

use prost::Message;
use vipd_proto::v1;

/// The format of rows and records that this version writes, and the newest that it reads.
///
/// A new optional field needs no new format: an older version skips it. A change that an older version would
/// misunderstand gets a new number, and is written only from the minor version *after* the one that learned to read it,
/// so that the previous minor version always can.
pub const FORMAT: u32 = 1;

/// Between owner and name in the key of a service's record. Names are printable text, so it is in neither.
const SEPARATOR: u8 = 0;

/// What kind of record a row is. The numbers are on disk: never reuse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// The store itself: [`StoredMeta`]. One row, with an empty key.
    Meta = 1,
    /// An owner: [`StoredOwner`].
    Owner = 2,
    /// The node's own settings: [`StoredNode`]. One row, with an empty key.
    Node = 3,
    /// A service's definition: [`StoredDefinition`].
    Definition = 4,
    /// A service's endpoints: [`StoredEndpoints`].
    Endpoints = 5,
    /// A service's scheduler: [`StoredScheduler`].
    Scheduler = 6,
}

impl Table {
    /// Every one, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Meta, Self::Owner, Self::Node, Self::Definition, Self::Endpoints, Self::Scheduler];

    /// The number on disk.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The table of a number on disk; absent: one that a newer version has added.
    #[must_use]
    pub fn from_number(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|table| i64::from(table.number()) == number)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Meta => "the store's own record",
            Self::Owner => "settings",
            Self::Node => "the node's settings",
            Self::Definition => "definition",
            Self::Endpoints => "endpoints",
            Self::Scheduler => "scheduler",
        })
    }
}

/// What identifies a record: its table, and the bytes of its name there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// Which kind.
    pub table: Table,
    /// Empty for the tables of one row, the owner's name, or owner, zero byte, name.
    pub key: Vec<u8>,
}

impl RecordKey {
    /// The only row of [`Table::Meta`] or [`Table::Node`].
    #[must_use]
    pub fn single(table: Table) -> Self {
        Self { table, key: Vec::new() }
    }

    /// An owner's row.
    #[must_use]
    pub fn owner(owner: &str) -> Self {
        Self { table: Table::Owner, key: owner.as_bytes().to_vec() }
    }

    /// One part of a service.
    #[must_use]
    pub fn service(table: Table, owner: &str, name: &str) -> Self {
        let mut key = Vec::with_capacity(owner.len() + 1 + name.len());
        key.extend_from_slice(owner.as_bytes());
        key.push(SEPARATOR);
        key.extend_from_slice(name.as_bytes());
        Self { table, key }
    }

    /// What the key names, if it is one that this version could have written.
    #[must_use]
    pub fn subject(&self) -> Option<Subject> {
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().filter(|t| !t.is_empty()).map(str::to_owned);
        match self.table {
            Table::Meta | Table::Node => self.key.is_empty().then_some(Subject::Store),
            Table::Owner => text(&self.key).filter(|t| !t.contains('\0')).map(Subject::Owner),
            Table::Definition | Table::Endpoints | Table::Scheduler => {
                let at = self.key.iter().position(|b| *b == SEPARATOR)?;
                let (owner, name) = (text(&self.key[..at])?, text(&self.key[at + 1..])?);
                (!name.contains('\0')).then_some(Subject::Service { owner, name })
            }
        }
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject() {
            Some(Subject::Store) => write!(f, "{}", self.table),
            Some(Subject::Owner(owner)) => write!(f, "{} of owner {owner:?}", self.table),
            Some(Subject::Service { owner, name }) => write!(f, "{} of service {owner:?} {name:?}", self.table),
            None => write!(f, "{} of a record with the key {:?}", self.table, String::from_utf8_lossy(&self.key)),
        }
    }
}

/// Whose record it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The store's or the node's.
    Store,
    /// An owner's.
    Owner(String),
    /// A service's.
    Service {
        /// Who declared it.
        owner: String,
        /// Its name there.
        name: String,
    },
}

/// The store's own record, written with every batch.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StoredMeta {
    /// Identity of the store: 32 hexadecimal digits.
    #[prost(string, tag = "1")]
    pub epoch: String,
    /// The newest accepted change.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    /// How many other records there are: what a damaged file cannot hide.
    #[prost(uint64, tag = "3")]
    pub records: u64,
    /// How many batches were ever committed: what a journal that has lost its end cannot hide, for the holder of the
    /// lock notes it too.
    #[prost(uint64, tag = "4")]
    pub commits: u64,
}

/// What is remembered of an owner.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoredOwner {
    /// What it set; the name is in the key.
    #[prost(message, optional, tag = "1")]
    pub owner: Option<v1::Owner>,
    /// The newest accepted change of its state.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    /// The session that may write; 0: none.
    #[prost(uint64, tag = "3")]
    pub session: u64,
    /// Who holds it.
    #[prost(string, tag = "4")]
    pub session_holder: String,
    /// The last accepted write or renewal, in milliseconds since the Unix epoch.
    #[prost(uint64, tag = "5")]
    pub last_write: u64,
    /// The last commit of a Sync, likewise.
    #[prost(uint64, optional, tag = "6")]
    pub last_sync: Option<u64>,
}

/// The node's own settings.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StoredNode {
    /// What SetDefaultEngine chose; 0: as configured.
    #[prost(enumeration = "v1::Engine", tag = "1")]
    pub default_engine: i32,
}

/// A service's definition.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoredDefinition {
    /// Without owner and name, which are in the key, and without the scheduler, which is a part of its own.
    #[prost(message, optional, tag = "1")]
    pub service: Option<v1::Service>,
    /// When it was last changed.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    /// When the service came to be.
    #[prost(uint64, tag = "3")]
    pub created: u64,
}

/// A service's endpoints.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoredEndpoints {
    /// In (address, port) order.
    #[prost(message, repeated, tag = "1")]
    pub endpoints: Vec<v1::Endpoint>,
    /// When the list was last changed.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    /// When those that take no new flows were first seen so.
    #[prost(message, repeated, tag = "3")]
    pub left: Vec<StoredLeft>,
    /// Removed ones whose flows still have a deadline.
    #[prost(message, repeated, tag = "4")]
    pub leaving: Vec<StoredLeaving>,
}

/// Since when an endpoint of the list takes no new flows.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StoredLeft {
    /// Its place in the list, from 0.
    #[prost(uint32, tag = "1")]
    pub index: u32,
    /// In milliseconds since the Unix epoch.
    #[prost(uint64, tag = "2")]
    pub since: u64,
}

/// An endpoint that was removed and still drains.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoredLeaving {
    /// Its address.
    #[prost(string, tag = "1")]
    pub address: String,
    /// Its port.
    #[prost(uint32, tag = "2")]
    pub port: u32,
    /// When it left, in milliseconds since the Unix epoch.
    #[prost(uint64, tag = "3")]
    pub since: u64,
    /// Until when.
    #[prost(message, optional, tag = "4")]
    pub drain: Option<v1::Drain>,
}

/// A service's scheduler.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoredScheduler {
    /// What it is.
    #[prost(message, optional, tag = "1")]
    pub scheduler: Option<v1::Scheduler>,
    /// When it was last changed.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
}

/// A decoded record.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The store's own.
    Meta(StoredMeta),
    /// An owner.
    Owner(StoredOwner),
    /// The node's settings.
    Node(StoredNode),
    /// A service's definition.
    Definition(StoredDefinition),
    /// A service's endpoints.
    Endpoints(StoredEndpoints),
    /// A service's scheduler.
    Scheduler(StoredScheduler),
}

impl Record {
    /// The table it belongs in.
    #[must_use]
    pub fn table(&self) -> Table {
        match self {
            Self::Meta(_) => Table::Meta,
            Self::Owner(_) => Table::Owner,
            Self::Node(_) => Table::Node,
            Self::Definition(_) => Table::Definition,
            Self::Endpoints(_) => Table::Endpoints,
            Self::Scheduler(_) => Table::Scheduler,
        }
    }

    /// The bytes of a row.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Meta(record) => record.encode_to_vec(),
            Self::Owner(record) => record.encode_to_vec(),
            Self::Node(record) => record.encode_to_vec(),
            Self::Definition(record) => record.encode_to_vec(),
            Self::Endpoints(record) => record.encode_to_vec(),
            Self::Scheduler(record) => record.encode_to_vec(),
        }
    }
}

/// Why the bytes of a row are no record, although their checksum may be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Neither this version nor an older one writes such a key.
    #[error("the key is not one of this table")]
    Key,
    /// Not the message that belongs in this table.
    #[error("the bytes are not this table's message: {0}")]
    Message(#[from] prost::DecodeError),
}

/// Decodes one row. Never panics, whatever the bytes: this is the entry of the fuzz target.
///
/// # Errors
/// The key or the bytes are not this table's.
pub fn decode_record(table: Table, key: &[u8], bytes: &[u8]) -> Result<Record, DecodeError> {
    if (RecordKey { table, key: key.to_vec() }).subject().is_none() {
        return Err(DecodeError::Key);
    }
    Ok(match table {
        Table::Meta => Record::Meta(StoredMeta::decode(bytes)?),
        Table::Owner => Record::Owner(StoredOwner::decode(bytes)?),
        Table::Node => Record::Node(StoredNode::decode(bytes)?),
        Table::Definition => Record::Definition(StoredDefinition::decode(bytes)?),
        Table::Endpoints => Record::Endpoints(StoredEndpoints::decode(bytes)?),
        Table::Scheduler => Record::Scheduler(StoredScheduler::decode(bytes)?),
    })
}

/// The checksum of a row: CRC-32 over everything in it, so that neither the value nor the key can change unnoticed.
#[must_use]
pub fn checksum(table: i64, key: &[u8], format: u32, value: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&table.to_le_bytes());
    hasher.update(&format.to_le_bytes());
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    hasher.finalize()
}
