//! Salvage: what can still be read of a damaged store, record by record, and the names of what cannot.
//!
//! It works on an image in memory, so that the damaged file stays as it was found. The keys are there twice, in the
//! table and in the index: a record that only the index knows is lost, and named.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, MAIN_DB, params};

use super::error::Finding;
use super::journal::{Journal, PAGE};
use super::read::{Row, parse};
use super::record::{FORMAT, Record, RecordKey, StoredMeta, Table, decode_record};

/// Most row numbers that are tried one by one between two pages that can be read: far more than a node has records.
const PROBES_MOST: i64 = 1_000_000;

type RawKey = (i64, Vec<u8>);

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Salvaged {
    /// Absent: lost.
    pub(super) meta: Option<StoredMeta>,
    /// The newest revision that a record names.
    pub(super) revision: u64,
    pub(super) rows: Vec<Row>,
    /// What is lost.
    pub(super) findings: Vec<Finding>,
}

/// Reads the database as its file and its journal give it, with `first_page` in the place of its own if nothing can be
/// read with that.
pub(super) fn salvage(mut database: Vec<u8>, journal: &Journal<'_>, first_page: &[u8]) -> Salvaged {
    journal.apply(&mut database);
    let pages = database.len().div_ceil(PAGE).max(1);
    database.resize(pages * PAGE, 0);

    let mut found = Found::default();
    if let Ok(connection) = in_memory(&database) {
        found.read(&connection);
    }
    if found.rows.is_empty() {
        // The first page holds the header and the schema, which are the same in every store.
        let own = first_page.len().min(PAGE);
        database[..own].copy_from_slice(&first_page[..own]);
        let size = u32::try_from(pages).unwrap_or(u32::MAX);
        // Offsets of the database header: size in pages; first page and length of the list of free pages.
        for (at, value) in [(28, size), (32, 0), (36, 0)] {
            database[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        if let Ok(connection) = in_memory(&database) {
            found.read(&connection);
        }
    }
    let mut salvaged = found.judge();
    if let Some(damage) = journal.damage() {
        salvaged.findings.push(Finding::Outdated(damage.to_owned()));
    }
    salvaged
}

fn in_memory(database: &[u8]) -> rusqlite::Result<Connection> {
    let mut image = database.to_vec();
    // Read and write version: 2 would ask for a journal, which memory cannot have and which is applied already.
    image[18..20].copy_from_slice(&[1, 1]);
    let mut connection = Connection::open_in_memory()?;
    connection.deserialize_read_exact(MAIN_DB, &*image, image.len(), true)?;
    connection.execute_batch("PRAGMA cell_size_check = ON; PRAGMA trusted_schema = OFF")?;
    Ok(connection)
}

#[derive(Debug, Default)]
struct Found {
    rows: BTreeMap<RawKey, Row>,
    /// Every key that the index or a row that does not verify gives.
    names: BTreeSet<RawKey>,
}

impl Found {
    fn read(&mut self, connection: &Connection) {
        // Each ends at the first page that cannot be read; from the other side there is as much again.
        let (mut low, mut high) = (0, i64::MAX);
        let forward = "SELECT id, tab, key, format, value, sum FROM record NOT INDEXED ORDER BY id";
        let whole = self.rows(connection, &format!("{forward} ASC"), |id| low = id);
        if whole.is_err() {
            let _ = self.rows(connection, &format!("{forward} DESC"), |id| high = id);
        }
        let ids = self.index(connection);
        if whole.is_err() {
            let end = if high == i64::MAX { ids.last().map_or(low, |id| id.saturating_add(1)) } else { high };
            self.between(connection, low.saturating_add(1), end);
        }
    }

    fn rows(&mut self, connection: &Connection, query: &str, mut seen: impl FnMut(i64)) -> rusqlite::Result<()> {
        let mut statement = connection.prepare(query)?;
        let mut cursor = statement.query([])?;
        while let Some(row) = cursor.next()? {
            if let Ok(id) = row.get(0) {
                seen(id);
            }
            self.take(parse(row, 1));
        }
        Ok(())
    }

    /// Row by row, where a page is lost: those of the pages around it are still found.
    fn between(&mut self, connection: &Connection, from: i64, to: i64) {
        let query = "SELECT tab, key, format, value, sum FROM record NOT INDEXED WHERE id = ?1";
        let Ok(mut statement) = connection.prepare(query) else { return };
        for id in from..to.min(from.saturating_add(PROBES_MOST)) {
            if let Ok(row) = statement.query_row(params![id], |row| Ok(parse(row, 0))) {
                self.take(row);
            }
        }
    }

    fn take(&mut self, row: Result<Row, Option<RawKey>>) {
        match row {
            Ok(row) => {
                self.rows.entry((row.table, row.key.clone())).or_insert(row);
            }
            Err(key) => self.names.extend(key),
        }
    }

    /// The keys that the index gives, and the numbers of their rows in ascending order.
    fn index(&mut self, connection: &Connection) -> BTreeSet<i64> {
        let mut ids = BTreeSet::new();
        for order in ["tab, key", "tab DESC, key DESC"] {
            let query = format!("SELECT tab, key, id FROM record INDEXED BY record_key ORDER BY {order}");
            let Ok(mut statement) = connection.prepare(&query) else { continue };
            let Ok(mut cursor) = statement.query([]) else { continue };
            let ended = loop {
                match cursor.next() {
                    Ok(Some(row)) => {
                        if let (Ok(table), Ok(key), Ok(id)) = (row.get(0), row.get(1), row.get(2)) {
                            self.names.insert((table, key));
                            ids.insert(id);
                        }
                    }
                    Ok(None) => break true,
                    Err(_) => break false,
                }
            };
            if ended {
                break;
            }
        }
        ids
    }

    /// Tells what is kept from what is lost.
    fn judge(mut self) -> Salvaged {
        let mut salvaged = Salvaged::default();
        let meta = self.rows.remove(&(i64::from(Table::Meta.number()), Vec::new()));
        salvaged.meta = meta.and_then(|row| prost::Message::decode(&*row.value).ok());
        for (key, row) in &self.rows {
            self.names.remove(key);
            match (row.format > FORMAT, record_key(key)) {
                (true, Some(key)) => salvaged.findings.push(Finding::Unusable {
                    key,
                    why: format!("it has format {}; this version reads up to {FORMAT}", row.format),
                }),
                (true, None) => salvaged.findings.push(Finding::LostUnnamed(1)),
                (false, key) => {
                    salvaged.revision = salvaged.revision.max(key.map_or(0, |key| revision(&key, &row.value)));
                    salvaged.rows.push(row.clone());
                }
            }
        }
        let lost = self.names.iter().filter_map(record_key).filter(|key| key.table != Table::Meta);
        salvaged.findings.extend(lost.filter(|key| key.subject().is_some()).map(Finding::Lost));

        let accounted = (salvaged.rows.len() + salvaged.findings.len()) as u64;
        match salvaged.meta.as_ref().map(|meta| meta.records.saturating_sub(accounted)) {
            None => salvaged.findings.push(Finding::LostUnknown),
            Some(0) => {}
            Some(unnamed) => salvaged.findings.push(Finding::LostUnnamed(unnamed)),
        }
        salvaged
    }
}

fn record_key((table, key): &RawKey) -> Option<RecordKey> {
    Some(RecordKey { table: Table::from_number(*table)?, key: key.clone() })
}

/// The revision that a record names; 0: none.
fn revision(key: &RecordKey, value: &[u8]) -> u64 {
    match decode_record(key.table, &key.key, value) {
        Ok(Record::Meta(record)) => record.revision,
        Ok(Record::Owner(record)) => record.revision,
        Ok(Record::Definition(record)) => record.revision,
        Ok(Record::Endpoints(record)) => record.revision,
        Ok(Record::Scheduler(record)) => record.revision,
        Ok(Record::Node(_)) | Err(_) => 0,
    }
}
