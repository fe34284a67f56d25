//! The store under every fault that it promises an answer to: kills, damaged files, full and read-only disks, power cuts,
//! and files of other versions. What is asked each time: is every acknowledged record there, byte for byte, or named?
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

mod damage;
mod disk;
mod format;
mod kill;
mod open;
mod power;

use std::collections::BTreeMap;
use std::path::Path;

use vipd::store::record::{Record, RecordKey, StoredScheduler, Table};
use vipd::store::{Batch, Finding, Opened, Store, StoredRecord};
use vipd_proto::v1;

/// A record that says which one it is: `number` is its revision too.
fn record(number: u64) -> Record {
    let scheduler = v1::Scheduler { algorithm: (number % 16) as i32, ..Default::default() };
    Record::Scheduler(StoredScheduler { scheduler: Some(scheduler), revision: number })
}

/// A record of a size that endpoints have.
fn endpoints(number: u64) -> Record {
    let endpoint = |i: u64| v1::Endpoint {
        address: format!("10.{}.{}.{i}", number % 256, number / 256 % 256),
        port: 8080,
        target: format!("pod shop/web-{number}-{i}"),
        ..Default::default()
    };
    Record::Endpoints(vipd::store::record::StoredEndpoints {
        endpoints: (1..=10).map(endpoint).collect(),
        revision: number,
        ..Default::default()
    })
}

fn key(table: Table, number: u64) -> RecordKey {
    RecordKey::service(table, "k8s", &format!("shop/web-{number}:http"))
}

/// A batch that writes these services, in their own state `revision`.
fn batch(numbers: impl IntoIterator<Item = u64>, revision: u64) -> Batch {
    let mut batch = Batch::new();
    for number in numbers {
        batch.put(key(Table::Endpoints, number), &endpoints(number + revision));
        batch.put(key(Table::Scheduler, number), &record(number + revision));
    }
    batch.set_revision(revision);
    batch
}

fn open(directory: &Path) -> Opened {
    Store::open(directory).expect("the store opens")
}

fn by_key(records: &[StoredRecord]) -> BTreeMap<RecordKey, Vec<u8>> {
    records.iter().map(|record| (record.key.clone(), record.value.clone())).collect()
}

/// What a store must hold after these batches.
fn expected(batches: &[Batch]) -> BTreeMap<RecordKey, Vec<u8>> {
    let mut expected = BTreeMap::new();
    for batch in batches {
        for (key, value) in batch.records() {
            match value {
                Some(value) => expected.insert(key.clone(), value.to_vec()),
                None => expected.remove(key),
            };
        }
    }
    expected
}

/// Every expected record is there as it was written, or is named, or is counted among those without a name; what is as
/// an older batch had it, or was added by the last ones and is not there at all, is said too. Returns how many are not
/// as they should be.
fn assert_accounted(what: &str, batches: &[Batch], opened: &Opened) -> usize {
    let expected = expected(batches);
    let findings = &opened.findings;
    let outdated = findings.iter().any(|finding| matches!(finding, Finding::Outdated(_)));
    let unknown = findings.contains(&Finding::LostUnknown);
    let have = by_key(&opened.records);
    let mut wrong = 0;
    for (key, value) in &have {
        if Some(value) != expected.get(key) {
            let written = batches.iter().flat_map(Batch::records).any(|(k, v)| k == key && v == Some(value));
            assert!(written, "{what}: the {key} was never written so: {findings:?}");
            assert!(outdated, "{what}: the {key} is old, and that is not said: {findings:?}");
            wrong += 1;
        }
    }
    let missing: Vec<_> = expected.keys().filter(|key| !have.contains_key(key)).collect();
    let unnamed = missing.iter().filter(|key| !findings.contains(&Finding::Lost((**key).clone()))).count() as u64;
    let counted: u64 = findings.iter().map(|f| if let Finding::LostUnnamed(n) = f { *n } else { 0 }).sum();
    assert!(
        unnamed == counted || unknown || outdated,
        "{what}: of {} lost records {unnamed} are not named and {counted} are counted: {findings:?}",
        missing.len(),
    );
    wrong + missing.len()
}
