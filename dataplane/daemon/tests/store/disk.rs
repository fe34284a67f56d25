//! A full disk and a read-only directory, on a real file system that is mounted for the test: in a mount namespace of its
//! own, so that the machine does not see it.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};

use super::{batch, by_key, expected, open};
use vipd::store::{Finding, Store, StoreError};

const DIRECTORY: &str = "VIPD_TEST_STORE_DISK";

/// Runs one of the children below where it may mount; says loudly when this machine does not allow that.
fn run(child: &str) {
    let directory = tempfile::tempdir().unwrap();
    let namespaces: &[&[&str]] = &[&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let usable = namespaces.iter().find(|flags| {
        let status =
            Command::new("unshare").args(**flags).args(["mount", "-t", "tmpfs", "none"]).arg(directory.path()).status();
        status.is_ok_and(|status| status.success())
    });
    let Some(flags) = usable else {
        let required = std::env::var("VIPD_TESTS_REQUIRE").is_ok_and(|value| value == "all");
        assert!(!required, "this machine allows no mount namespace, not even with a user namespace");
        println!("SKIPPED: {child}: this machine allows no mount namespace, not even with a user namespace");
        return;
    };
    let output = Command::new("unshare")
        .args(*flags)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("disk::{child}"), "--ignored", "--nocapture"])
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// A file system of 4 MiB in memory, seen by this process only.
fn small_disk() -> std::path::PathBuf {
    let directory = std::env::var_os(DIRECTORY).expect("only the parent runs this").into();
    let none: Option<&str> = None;
    mount(none, Path::new("/"), none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    mount(Some("none"), &directory, Some("tmpfs"), MsFlags::empty(), Some("size=4m")).unwrap();
    directory
}

fn remount(directory: &Path, flags: MsFlags) {
    let none: Option<&str> = None;
    mount(none, directory, none, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags, none).unwrap();
}

#[test]
fn on_a_full_disk_nothing_is_acknowledged_and_the_store_recovers() {
    run("full_child");
}

#[test]
#[ignore = "the child of the test above, which runs it by name"]
fn full_child() {
    let disk = small_disk();
    let ballast = disk.join("ballast");
    fs::write(&ballast, vec![1; 2 << 20]).unwrap();
    let directory = disk.join("state");
    let mut store = open(&directory).store;
    let mut accepted = Vec::new();
    let error = (1..10_000).find_map(|number| {
        let next = batch(number * 10..number * 10 + 10, number);
        let result = store.commit(&next);
        if result.is_ok() {
            accepted.push(next);
        }
        result.err()
    });
    let error = error.expect("2 MiB are full at some time");
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert!(error.to_string().contains("is full"), "{error}");
    assert!(!accepted.is_empty());
    let revision = store.revision();
    assert_eq!(revision, accepted.len() as u64, "the refused one left no trace");

    // While it stays full: refused again and again, and readable after a kill.
    for _ in 0..3 {
        assert!(matches!(store.commit(&batch(90_000..90_100, 99_999)), Err(StoreError::Full { .. })));
    }
    drop(store);
    let opened = open(&directory);
    assert_eq!(by_key(&opened.records), expected(&accepted), "{:?}", opened.findings);
    drop(opened);

    // With space again it goes on, in the same process and in the next.
    fs::remove_file(&ballast).unwrap();
    let mut store = open(&directory).store;
    fs::write(&ballast, vec![1; free(&disk)]).unwrap();
    while store.commit(&batch(50_000..50_020, 60_000)).is_ok() {}
    fs::remove_file(&ballast).unwrap();
    let after = batch(70_000..70_005, 70_000);
    store.commit(&after).unwrap();
    accepted.push(after);
    drop(store);
    let opened = open(&directory);
    let have = by_key(&opened.records);
    assert!(expected(&accepted).iter().all(|(key, value)| have.get(key) == Some(value)), "{:?}", opened.findings);
    assert_eq!((opened.findings, opened.store.revision()), (vec![], 70_000));
}

fn free(path: &Path) -> usize {
    let stat = nix::sys::statvfs::statvfs(path).unwrap();
    (stat.blocks_available() * stat.fragment_size()) as usize
}

#[test]
fn a_read_only_directory_is_served_and_accepts_nothing() {
    run("read_only_child");
}

#[test]
#[ignore = "the child of the test above, which runs it by name"]
fn read_only_child() {
    let disk = small_disk();
    let directory = disk.join("state");
    let mut store = open(&directory).store;
    let batches = [batch(0..50, 1), batch(20..30, 2)];
    store.commit(&batches[0]).unwrap();
    // The newest is in the journal only.
    store.commit(&batches[1]).unwrap();
    drop(store);
    remount(&disk, MsFlags::MS_RDONLY);

    let opened = open(&directory);
    assert_eq!(by_key(&opened.records), expected(&batches));
    let [Finding::ReadOnly(why)] = &opened.findings[..] else { panic!("{:?}", opened.findings) };
    assert!(why.contains("Read-only file system"), "{why}");
    let mut store = opened.store;
    assert_eq!(store.revision(), 2);
    let error = store.commit(&batch(0..1, 3)).unwrap_err();
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
    assert!(error.to_string().contains("no change is accepted"), "{error}");
    drop(store);
    // With nothing there to read it is an error.
    let error = Store::open(&disk.join("other")).unwrap_err();
    assert!(matches!(error, StoreError::Directory { .. }), "{error:?}");

    remount(&disk, MsFlags::empty());
    let mut store = open(&directory).store;
    store.commit(&batch(0..1, 3)).unwrap();
}
