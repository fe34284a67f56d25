//! The plain life of a store: what was committed is there, once, under the same epoch.

use std::fs;
use std::process;

use super::{batch, by_key, expected, key, open, record};
use vipd::store::record::{RecordKey, Table};
use vipd::store::{Batch, Finding, Store, StoreError};

#[test]
fn what_was_committed_is_there_after_every_kind_of_end() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path());
    assert!(opened.fresh && opened.records.is_empty() && opened.findings.is_empty());
    let mut store = opened.store;
    let epoch = store.epoch().to_owned();
    assert_eq!(epoch.len(), 32);
    let mut batches = vec![batch(0..50, 1)];
    store.commit(&batches[0]).unwrap();

    // Ended without a word, as by a kill.
    drop(store);
    let opened = open(directory.path());
    assert_eq!((by_key(&opened.records), opened.findings), (expected(&batches), vec![]));
    let mut store = opened.store;
    assert_eq!((store.epoch(), store.revision()), (&*epoch, 1));

    let mut second = batch(40..60, 2);
    second.delete(key(Table::Endpoints, 3));
    second.delete(key(Table::Endpoints, 999));
    store.commit(&second).unwrap();
    batches.push(second);
    store.close().unwrap();

    let opened = open(directory.path());
    assert_eq!((by_key(&opened.records), opened.findings), (expected(&batches), vec![]));
    assert_eq!((opened.store.epoch(), opened.store.revision(), opened.fresh), (&*epoch, 2, false));
}

#[test]
fn of_two_writes_to_one_record_the_later_stands() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).store;
    let mut batch = Batch::new();
    batch.put(key(Table::Scheduler, 1), &record(1));
    batch.put(key(Table::Scheduler, 1), &record(2));
    batch.put(key(Table::Scheduler, 2), &record(3));
    batch.delete(key(Table::Scheduler, 2));
    store.commit(&batch).unwrap();
    drop(store);
    let records = by_key(&open(directory.path()).records);
    assert_eq!(records.into_iter().collect::<Vec<_>>(), [(key(Table::Scheduler, 1), record(2).encode())]);
}

#[test]
fn a_revision_alone_is_kept_and_never_goes_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).store;
    for (given, is) in [(7, 7), (3, 7), (8, 8)] {
        let mut batch = Batch::new();
        batch.set_revision(given);
        store.commit(&batch).unwrap();
        assert_eq!(store.revision(), is);
    }
    drop(store);
    assert_eq!(open(directory.path()).store.revision(), 8);
}

#[test]
fn a_second_one_is_told_who_has_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path()).store;
    let error = Store::open(directory.path()).unwrap_err();
    assert!(matches!(error, StoreError::Held { pid: Some(pid), .. } if pid == process::id()), "{error:?}");
    assert!(error.to_string().contains(&format!("in use by process {}", process::id())), "{error}");
    first.close().unwrap();
    assert!(!open(directory.path()).fresh);
}

#[test]
fn after_a_power_cut_the_epoch_is_new_and_after_a_clean_stop_it_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).store;
    let epoch = store.epoch().to_owned();
    let batches = [batch(0..5, 4)];
    store.commit(&batches[0]).unwrap();
    drop(store);
    // As the note of the holder reads when the machine has been started again since.
    fs::write(directory.path().join("lock"), "1 00000000-0000-0000-0000-000000000000\n").unwrap();

    let opened = open(directory.path());
    assert!(matches!(opened.findings[..], [Finding::NewEpoch(_)]), "{:?}", opened.findings);
    assert_eq!((by_key(&opened.records), opened.store.revision()), (expected(&batches), 4));
    let second = opened.store.epoch().to_owned();
    assert_ne!(second, epoch);
    opened.store.close().unwrap();

    let opened = open(directory.path());
    assert_eq!((opened.findings, opened.store.epoch()), (vec![], &*second));
}

/// The reconciler ends what it does not own.
#[test]
fn an_ended_store_is_closed_and_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).store;
    let persist: &mut dyn vipd::reconcile::Persist = &mut store;
    persist.end();
    assert_eq!(fs::read_to_string(directory.path().join("lock")).unwrap(), "", "a clean end is noted");
    assert!(matches!(store.commit(&batch(0..1, 1)), Err(StoreError::ReadOnly { .. })));
    assert!(!open(directory.path()).fresh, "and the lock is free");
}

#[test]
fn a_directory_that_cannot_be_is_an_error_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Store::open(&file.join("state")).unwrap_err();
    assert!(matches!(error, StoreError::Directory { .. }), "{error:?}");
    assert!(error.to_string().contains("file/state"), "{error}");
}

#[test]
fn an_interrupted_replacement_is_finished_or_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut store = open(directory.path()).store;
    store.commit(&batch(0..5, 1)).unwrap();
    store.close().unwrap();
    // Half made when the process was killed: the old one is still the store.
    fs::write(path("store.db.new"), "half").unwrap();
    let opened = open(directory.path());
    assert_eq!((opened.records.len(), opened.findings), (10, vec![]));
    opened.store.close().unwrap();
    // Complete when the process was killed: it is the store.
    fs::rename(path("store.db"), path("store.db.ready")).unwrap();
    fs::write(path("store.db"), "the damaged one").unwrap();
    fs::write(path("store.db-wal"), "and its journal").unwrap();
    let opened = open(directory.path());
    assert_eq!((opened.records.len(), opened.findings), (10, vec![]));
    assert!(!path("store.db.ready").exists());
    let kept: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(kept.iter().filter(|n| n.to_string_lossy().contains(".corrupt-")).count(), 2, "{kept:?}");
}

#[test]
fn a_key_names_its_subject() {
    let service = RecordKey::service(Table::Endpoints, "k8s", "shop/web:http");
    assert_eq!(service.to_string(), "endpoints of service \"k8s\" \"shop/web:http\"");
    assert_eq!(RecordKey::owner("ops").to_string(), "settings of owner \"ops\"");
    assert_eq!((RecordKey { table: Table::Endpoints, key: b"no-separator".to_vec() }).subject(), None);
}
