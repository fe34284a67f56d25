//! A batch: the records that one commit writes. Whoever coalesces several changes adds them in order; of two writes to
//! one record the later one stands.

use std::collections::BTreeMap;

use super::record::{Record, RecordKey};

/// What one commit writes, all or nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The node's revision after it; 0: as it was.
    revision: u64,
    /// Absent: the record is removed.
    records: BTreeMap<RecordKey, Option<Vec<u8>>>,
}

impl Batch {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes a record, whether it is there or not. The key must be of the record's table.
    pub fn put(&mut self, key: RecordKey, record: &Record) {
        debug_assert_eq!(key.table, record.table());
        self.records.insert(key, Some(record.encode()));
    }

    /// Removes a record; one that is not there is no error.
    pub fn delete(&mut self, key: RecordKey) {
        self.records.insert(key, None);
    }

    /// Raises the node's revision; a lower one than before changes nothing.
    pub fn set_revision(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    /// The node's revision after it; 0: as it was.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether it writes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.revision == 0
    }

    /// The records in key order; absent: removed.
    pub fn records(&self) -> impl Iterator<Item = (&RecordKey, Option<&[u8]>)> {
        self.records.iter().map(|(key, value)| (key, value.as_deref()))
    }
}
