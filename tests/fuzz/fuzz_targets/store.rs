//! Whatever a disk gives back: a value or a finding, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vipd::store::StoredRecord;
use vipd::store::encode::restore;
use vipd::store::record::{RecordKey, Table};

fuzz_target!(|input: (u8, Vec<u8>, Vec<u8>)| {
    let (table, key, value) = input;
    let table = Table::ALL[usize::from(table) % Table::ALL.len()];
    let restored = restore(1, &[StoredRecord { key: RecordKey { table, key }, value }]);
    for finding in restored.findings {
        let _ = finding.to_string();
    }
});
