//! `kill -9` at any instruction: a writer is killed again and again; what it acknowledged is there, and no batch is half
//! there.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::{endpoints, key, open, record};
use vipd::store::record::{Record, Table, decode_record};
use vipd::store::{Batch, Store};

const DIRECTORY: &str = "VIPD_TEST_STORE_WRITER";
/// Records of one batch, spread over pages that are far from each other.
const SPREAD: u64 = 40;
/// For a child to be started and to commit once, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

fn cycles() -> u32 {
    std::env::var("VIPD_KILL_CYCLES").map_or(40, |text| text.parse().expect("VIPD_KILL_CYCLES is a number"))
}

/// Every record of a batch says the batch's number.
fn numbered(number: u64) -> Batch {
    let mut batch = Batch::new();
    for place in 0..3 {
        batch.put(key(Table::Scheduler, place * SPREAD), &record(number));
        batch.put(key(Table::Endpoints, place * SPREAD), &endpoints(number));
    }
    // Rows that come and go, so that pages are split, freed and used again.
    let transient = key(Table::Endpoints, 1000 + number % 7);
    if number.is_multiple_of(2) {
        batch.put(transient, &endpoints(number))
    } else {
        batch.delete(transient)
    }
    batch.set_revision(number);
    batch
}

#[test]
#[ignore = "the child of the tests below, which run it by name"]
fn writer() {
    let directory = std::env::var_os(DIRECTORY).expect("only the parent runs this");
    let directory = Path::new(&directory);
    let mut acknowledged = OpenOptions::new().append(true).create(true).open(directory.join("acknowledged")).unwrap();
    let mut store = open(directory).store;
    for number in store.revision() + 1.. {
        store.commit(&numbered(number)).unwrap();
        acknowledged.write_all(&number.to_le_bytes()).unwrap();
    }
}

#[test]
fn what_was_acknowledged_survives_every_kill_and_nothing_is_half_there() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).store;
    store.commit(&super::batch(0..SPREAD * 3, 0)).unwrap();
    store.close().unwrap();
    let epoch = open(directory.path()).store.epoch().to_owned();
    let mut seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");

    let mut total = 0;
    for cycle in 0..cycles() {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::writer", "--ignored", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while last_acknowledged(directory.path()) <= total && started.elapsed() < PATIENCE {
            assert!(child.try_wait().unwrap().is_none(), "cycle {cycle}: the writer ended: {}", said(&mut child));
            thread::sleep(Duration::from_micros(seed >> 33 & 0xfff));
        }
        // Some kills fall into the checkpoint, which comes half a second after the first commit.
        thread::sleep(Duration::from_micros(if cycle % 8 == 0 { 480_000 } else { 0 } + (seed >> 40) % 20_000));
        child.kill().unwrap();
        child.wait().unwrap();

        let acknowledged = last_acknowledged(directory.path());
        assert!(acknowledged > total, "cycle {cycle}: nothing was written in {PATIENCE:?}: {}", said(&mut child));
        total = check(directory.path(), cycle, acknowledged, &epoch);
    }
    println!("{} kills, {total} batches", cycles());
}

fn said(child: &mut std::process::Child) -> String {
    let mut text = String::new();
    child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut text));
    text
}

fn last_acknowledged(directory: &Path) -> u64 {
    let mut last = [0; 8];
    let read = |file: File| {
        let end = file.metadata().ok()?.len() / 8 * 8;
        file.read_exact_at(&mut last, end.checked_sub(8)?).ok()
    };
    File::open(directory.join("acknowledged")).ok().and_then(read);
    u64::from_le_bytes(last)
}

/// Returns the batch that the store ends with.
fn check(directory: &Path, cycle: u32, acknowledged: u64, epoch: &str) -> u64 {
    let opened = Store::open(directory).unwrap();
    assert_eq!(opened.findings, vec![], "cycle {cycle}: a kill is no damage");
    assert_eq!(opened.store.epoch(), epoch, "cycle {cycle}");
    let revision = opened.store.revision();
    // The one that was on its way when the kill came may be there too, whole.
    assert!(
        revision == acknowledged || revision == acknowledged + 1,
        "cycle {cycle}: {acknowledged} was acknowledged, the store ends with {revision}"
    );
    let should = super::expected(&[numbered(revision)]);
    let have = super::by_key(&opened.records);
    for (key, value) in should {
        let stands = |value: &Vec<u8>| match decode_record(key.table, &key.key, value).unwrap() {
            Record::Endpoints(record) => record.revision,
            Record::Scheduler(record) => record.revision,
            _ => 0,
        };
        assert_eq!(have.get(&key).map(stands), Some(stands(&value)), "cycle {cycle}: the {key} of batch {revision}");
    }
    revision
}
