//! Reading a store that is sound, and saying why one is not.

use rusqlite::{Connection, ErrorCode, types::ValueRef};

use super::file::APPLICATION_ID;
use super::record::{FORMAT, StoredMeta, Table, checksum};

/// One row, as it stands in the file; its checksum was right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) table: i64,
    pub(super) key: Vec<u8>,
    pub(super) format: u32,
    pub(super) value: Vec<u8>,
}

/// What a sound store holds.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) meta: StoredMeta,
    /// Without the store's own.
    pub(super) rows: Vec<Row>,
}

/// Why a store was not read.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// It is not as it should be: salvage it.
    Damaged(String),
    /// It cannot be got at: no permission, no memory, no space.
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Unreadable {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(
                ErrorCode::CannotOpen
                | ErrorCode::PermissionDenied
                | ErrorCode::ReadOnly
                | ErrorCode::DiskFull
                | ErrorCode::OutOfMemory
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked,
            ) => Self::Sqlite(error),
            // Shared memory for the journal's index that cannot be made, as on a full disk, is not the file's fault.
            Some(ErrorCode::SystemIoFailure) if is_shared_memory(&error) => Self::Sqlite(error),
            _ => Self::Damaged(error.to_string()),
        }
    }
}

fn is_shared_memory(error: &rusqlite::Error) -> bool {
    use rusqlite::ffi::{SQLITE_IOERR_SHMLOCK, SQLITE_IOERR_SHMMAP, SQLITE_IOERR_SHMOPEN, SQLITE_IOERR_SHMSIZE};
    let code = error.sqlite_error().map(|e| e.extended_code);
    [SQLITE_IOERR_SHMOPEN, SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_SHMLOCK, SQLITE_IOERR_SHMMAP].map(Some).contains(&code)
}

/// Reads everything, and verifies it: structure, checksums, formats, and that nothing is missing.
pub(super) fn read(connection: &Connection) -> Result<Contents, Unreadable> {
    let damaged = |why: String| Err(Unreadable::Damaged(why));
    let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0));
    if pragma("application_id")? != i64::from(APPLICATION_ID) {
        return damaged("it is not a store of vipd".into());
    }
    let format = pragma("user_version")?;
    if format > i64::from(FORMAT) {
        return damaged(format!("it has format {format}, of a newer version; this one reads up to {FORMAT}"));
    }
    let check: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if check != "ok" {
        return damaged(check);
    }

    let mut meta = None;
    let mut rows = Vec::new();
    let mut statement =
        connection.prepare("SELECT tab, key, format, value, sum FROM record NOT INDEXED ORDER BY id")?;
    let mut cursor = statement.query([])?;
    while let Some(row) = cursor.next()? {
        let Ok(row) = parse(row, 0) else { return damaged("a record does not verify".into()) };
        if row.format > FORMAT {
            return damaged(format!("a record has format {}; this version reads up to {FORMAT}", row.format));
        }
        if row.table == i64::from(Table::Meta.number()) {
            meta = prost::Message::decode(&*row.value).ok();
        } else {
            rows.push(row);
        }
    }
    let Some(meta): Option<StoredMeta> = meta else { return damaged("its own record is missing".into()) };
    if meta.records != rows.len() as u64 {
        return damaged(format!("it holds {} records and should hold {}", rows.len(), meta.records));
    }
    Ok(Contents { meta, rows })
}

/// The row at these columns: table, key, format, value, checksum. The error has the key, as far as it can be believed.
pub(super) fn parse(row: &rusqlite::Row<'_>, first: usize) -> Result<Row, Option<(i64, Vec<u8>)>> {
    let number = |column: usize| match row.get_ref(first + column) {
        Ok(ValueRef::Integer(number)) => Some(number),
        _ => None,
    };
    let bytes = |column: usize| match row.get_ref(first + column) {
        Ok(ValueRef::Blob(bytes)) => Some(bytes),
        _ => None,
    };
    let (table, key) = number(0).zip(bytes(1)).ok_or(None)?;
    let read = || {
        let (format, value) = (u32::try_from(number(2)?).ok()?, bytes(3)?);
        let whole = i64::from(checksum(table, key, format, value)) == number(4)?;
        whole.then(|| Row { table, key: key.to_vec(), format, value: value.to_vec() })
    };
    read().ok_or_else(|| Some((table, key.to_vec())))
}
