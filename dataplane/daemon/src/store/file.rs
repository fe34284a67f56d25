//! The file: its schema, how it is made, opened, written, and replaced so that a kill at any instruction leaves either
//! the old one or the new one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, MAIN_DB, OpenFlags, TransactionBehavior, params};

use super::batch::Batch;
use super::journal::PAGE;
use super::read::Row;
use super::record::{FORMAT, Record, RecordKey, StoredMeta, Table, checksum};

/// In SQLite's header: whose file it is. "vipd" in ASCII.
pub(super) const APPLICATION_ID: i32 = 0x7669_7064;

/// One table for every record: the three parts of a service, written together when it is made, lie on one page. The
/// index is the second copy of every key, which names what is lost when a page of the table is.
const SCHEMA: &str = "
    CREATE TABLE record (
        id INTEGER PRIMARY KEY,
        tab INTEGER NOT NULL,
        key BLOB NOT NULL,
        format INTEGER NOT NULL,
        value BLOB NOT NULL,
        sum INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX record_key ON record (tab, key);";

const INSERT: &str = "INSERT INTO record (tab, key, format, value, sum) VALUES (?1, ?2, ?3, ?4, ?5)";
const UPDATE: &str = "UPDATE record SET format = ?3, value = ?4, sum = ?5 WHERE tab = ?1 AND key = ?2";
const DELETE: &str = "DELETE FROM record WHERE tab = ?1 AND key = ?2";

/// A path with something behind its whole name: `store.db` and `-wal`.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Makes a file with these records under another name, complete and on the disk.
pub(super) fn make(path: &Path, meta: &StoredMeta, rows: &[Row]) -> rusqlite::Result<PathBuf> {
    let new = beside(path, ".new");
    for suffix in ["", "-journal", "-wal", "-shm"] {
        // One that an interrupted attempt has left.
        let _ = fs::remove_file(beside(&new, suffix));
    }
    let mut connection = Connection::open(&new)?;
    lay_out(&connection)?;
    let transaction = connection.transaction()?;
    {
        let mut insert = transaction.prepare(INSERT)?;
        for row in rows {
            let sum = checksum(row.table, &row.key, row.format, &row.value);
            insert.execute(params![row.table, row.key, row.format, row.value, sum])?;
        }
        let value = Record::Meta(meta.clone()).encode();
        let table = i64::from(Table::Meta.number());
        insert.execute(params![table, b"", FORMAT, value, checksum(table, b"", FORMAT, &value)])?;
    }
    transaction.commit()?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(new)
}

fn lay_out(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "PRAGMA page_size = {PAGE}; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; {SCHEMA}"
    ))
}

/// The first page of every store: header and schema, which name the pages where table and index begin.
pub(super) fn first_page() -> rusqlite::Result<Vec<u8>> {
    let mut connection = Connection::open_in_memory()?;
    lay_out(&connection)?;
    Ok(connection.serialize(MAIN_DB)?.iter().take(PAGE).copied().collect())
}

/// Puts a file that [`make`] has made in the place of the store. The old one, if there is one, is kept aside.
pub(super) fn put_in_place(path: &Path, new: &Path) -> io::Result<Option<PathBuf>> {
    let ready = beside(path, ".ready");
    fs::rename(new, &ready)?;
    sync_directory(path)?;
    finish_replacement(path)
}

/// Ends a replacement that was begun: from the moment that the new file is called `.ready`, it is the store.
pub(super) fn finish_replacement(path: &Path) -> io::Result<Option<PathBuf>> {
    let ready = beside(path, ".ready");
    if !ready.exists() {
        return Ok(None);
    }
    let kept = set_aside(path)?;
    fs::rename(&ready, path)?;
    sync_directory(path)?;
    Ok(kept)
}

/// Renames a damaged store and its journal to `<name>.corrupt-<unix time>`.
fn set_aside(path: &Path) -> io::Result<Option<PathBuf>> {
    let wal = beside(path, "-wal");
    let _ = fs::remove_file(beside(path, "-shm"));
    if !path.exists() && !wal.exists() {
        return Ok(None);
    }
    let mut time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let kept = loop {
        let kept = beside(path, &format!(".corrupt-{time}"));
        if !kept.exists() {
            break kept;
        }
        time += 1;
    };
    for (from, to) in [(path.to_owned(), kept.clone()), (wal, beside(&kept, "-wal"))] {
        match fs::rename(from, to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(Some(kept))
}

/// A rename is on the disk when its directory is.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Opens for writing. A commit is in the page cache when it returns, so that only the machine can lose it; `sync.rs`
/// takes it to the disk.
pub(super) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    // A file found damaged is to be kept as it was found, with its journal.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.execute_batch(
        "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; PRAGMA cell_size_check = ON;
         PRAGMA trusted_schema = OFF; PRAGMA cache_size = -4096;",
    )?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode == "wal" {
        return Ok(connection);
    }
    // SQLite answers so, without an error, where it may not write.
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY);
    Err(rusqlite::Error::SqliteFailure(code, Some(format!("the journal mode stays {mode:?}"))))
}

/// Writes a batch and the store's own record in one transaction.
pub(super) fn write(connection: &mut Connection, meta: &StoredMeta, batch: &Batch) -> rusqlite::Result<StoredMeta> {
    let mut meta = meta.clone();
    meta.revision = meta.revision.max(batch.revision());
    meta.commits += 1;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for (key, value) in batch.records() {
        match value {
            Some(value) => meta.records += u64::from(put(&transaction, key, value)?),
            None => meta.records = meta.records.saturating_sub(delete(&transaction, key)?),
        }
    }
    put(&transaction, &RecordKey::single(Table::Meta), &Record::Meta(meta.clone()).encode())?;
    transaction.commit()?;
    Ok(meta)
}

/// Whether the record is new.
fn put(connection: &Connection, key: &RecordKey, value: &[u8]) -> rusqlite::Result<bool> {
    let table = i64::from(key.table.number());
    let row = params![table, key.key, FORMAT, value, checksum(table, &key.key, FORMAT, value)];
    if connection.prepare_cached(UPDATE)?.execute(row)? > 0 {
        return Ok(false);
    }
    connection.prepare_cached(INSERT)?.execute(row)?;
    Ok(true)
}

/// How many records are gone.
fn delete(connection: &Connection, key: &RecordKey) -> rusqlite::Result<u64> {
    let gone = connection.prepare_cached(DELETE)?.execute(params![key.table.number(), key.key])?;
    Ok(gone as u64)
}
