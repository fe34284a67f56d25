//! Files of other versions. `fixtures/store-1.db` is what the first version wrote; whatever comes later must read it as
//! it stands here. To write one for a new format: `VIPD_WRITE_FIXTURE=1 cargo test -p vipd --test store format`.

use std::fs;
use std::path::{Path, PathBuf};

use super::{by_key, open};
use proptest::prelude::*;
use vipd::store::record::{
    FORMAT, Record, RecordKey, StoredDefinition, StoredEndpoints, StoredLeaving, StoredLeft, StoredNode, StoredOwner,
    StoredScheduler, Table, decode_record,
};
use vipd::store::{Batch, StoredRecord};
use vipd_proto::v1;

fn fixture(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/store-{format}.db"))
}

/// One record of every table, with every field of the envelope.
fn contents() -> Vec<(RecordKey, Record)> {
    let drain = v1::Drain { timeout: Some(pbjson_types::Duration { seconds: 30, nanos: 0 }), on_expiry: 2 };
    let frontend = v1::Frontend {
        at: Some(v1::frontend::At::Address("10.96.0.10".into())),
        port: 80,
        scope: 2,
        source_ranges: vec!["192.0.2.0/24".into()],
        ..Default::default()
    };
    let endpoint = |address: &str, state| v1::Endpoint {
        address: address.into(),
        port: 8080,
        weight: Some(3),
        state,
        target: "pod shop/web-0".into(),
        ..Default::default()
    };
    let service = v1::Service { protocol: 1, frontends: vec![frontend], group: "shop".into(), ..Default::default() };
    let owner = v1::Owner {
        network: Some(v1::Network { local_sources: vec!["10.0.0.0/8".into()], ..Default::default() }),
        ..Default::default()
    };
    let key = |table| RecordKey::service(table, "k8s", "shop/web:http");
    vec![
        (
            RecordKey::owner("k8s"),
            Record::Owner(StoredOwner {
                owner: Some(owner),
                revision: 41,
                session: 7,
                session_holder: "uid 0".into(),
                last_write: 1_700_000_000_000,
                last_sync: Some(1_700_000_000_001),
            }),
        ),
        (RecordKey::single(Table::Node), Record::Node(StoredNode { default_engine: 4 })),
        (
            key(Table::Definition),
            Record::Definition(StoredDefinition { service: Some(service), revision: 38, created: 12 }),
        ),
        (
            key(Table::Endpoints),
            Record::Endpoints(StoredEndpoints {
                endpoints: vec![endpoint("10.1.0.2", 1), endpoint("10.1.0.3", 3)],
                revision: 41,
                left: vec![StoredLeft { index: 1, since: 1_700_000_000_002 }],
                leaving: vec![StoredLeaving {
                    address: "2001:db8::4".into(),
                    port: 8080,
                    since: 1_700_000_000_003,
                    drain: Some(drain),
                }],
            }),
        ),
        (
            key(Table::Scheduler),
            Record::Scheduler(StoredScheduler {
                scheduler: Some(v1::Scheduler { algorithm: 5, ..Default::default() }),
                revision: 39,
            }),
        ),
    ]
}

fn write_fixture() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).store;
    let mut batch = Batch::new();
    for (key, record) in contents() {
        batch.put(key, &record);
    }
    batch.set_revision(41);
    store.commit(&batch).unwrap();
    store.close().unwrap();
    fs::copy(directory.path().join("store.db"), fixture(FORMAT)).unwrap();
}

#[test]
fn the_first_format_is_read_as_it_was_written() {
    if std::env::var_os("VIPD_WRITE_FIXTURE").is_some() {
        write_fixture();
    }
    let directory = tempfile::tempdir().unwrap();
    fs::copy(fixture(1), directory.path().join("store.db")).unwrap();
    fs::write(directory.path().join("lock"), "").unwrap();
    let opened = open(directory.path());
    assert_eq!((opened.findings, opened.store.revision()), (vec![], 41));
    let decode =
        |StoredRecord { key, value }: &StoredRecord| (key.clone(), decode_record(key.table, &key.key, value).unwrap());
    let mut read: Vec<_> = opened.records.iter().map(decode).collect();
    let mut wanted = contents();
    read.sort_by(|a, b| a.0.cmp(&b.0));
    wanted.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(read, wanted);
}

#[test]
fn a_record_keeps_the_bytes_of_fields_that_this_version_does_not_know() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).store;
    let mut batch = Batch::new();
    for (key, record) in contents() {
        batch.put(key, &record);
    }
    store.commit(&batch).unwrap();
    drop(store);
    let before = by_key(&open(directory.path()).records);
    // Another part of the same service is written; this one stays, byte for byte.
    let mut store = open(directory.path()).store;
    let mut batch = Batch::new();
    let (key, record) = contents().pop().unwrap();
    batch.put(key.clone(), &record);
    store.commit(&batch).unwrap();
    drop(store);
    assert_eq!(by_key(&open(directory.path()).records), before);
    // A field of a later version is skipped by this one.
    let mut bytes = record.encode();
    bytes.extend([0xfa, 0x07, 3, b'n', b'e', b'w']);
    assert_eq!(decode_record(key.table, &key.key, &bytes), Ok(record));
}

proptest! {
    #[test]
    fn decoding_never_panics_and_only_takes_its_own_keys(
        table in 0usize..6,
        key in proptest::collection::vec(any::<u8>(), 0..40),
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let table = Table::ALL[table];
        if let Ok(record) = decode_record(table, &key, &bytes) {
            prop_assert_eq!(record.table(), table);
            prop_assert_eq!(decode_record(table, &key, &record.encode()), Ok(record));
        }
    }

    #[test]
    fn decoding_a_damaged_record_never_panics(at in any::<prop::sample::Index>(), which in 0usize..5, byte in any::<u8>()) {
        let (key, record) = contents().swap_remove(which);
        let mut bytes = record.encode();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = decode_record(key.table, &key.key, &bytes);
        let _ = vipd::store::encode::restore(1, &[StoredRecord { key, value: bytes }]);
    }
}
