//! Damaged files: whatever stands in them, the store opens, gives only what was written, names what is lost, keeps the
//! bad file, and is sound afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{assert_accounted, batch, by_key, expected, open};
use vipd::store::{Batch, Finding, Opened};

/// Services in the store that is damaged: several levels of pages, in the table and in the index.
const SERVICES: u64 = 400;
/// Rounds of every random damage; VIPD_DAMAGE_ROUNDS for more.
const ROUNDS: u64 = 60;

/// xorshift64*, so that a printed seed repeats the run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// A store as a kill leaves it: some of it in the database, the newest in the journal.
struct Victim {
    files: BTreeMap<&'static str, Vec<u8>>,
    batches: Vec<Batch>,
    epoch: String,
}

impl Victim {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut store = open(directory.path()).store;
        let epoch = store.epoch().to_owned();
        let mut batches = vec![batch(0..SERVICES, 1)];
        store.commit(&batches[0]).unwrap();
        store.close().unwrap();
        let mut store = open(directory.path()).store;
        for revision in 2..12 {
            let next = batch(revision * 7..revision * 7 + 5, revision);
            store.commit(&next).unwrap();
            batches.push(next);
        }
        let read = |name| (name, fs::read(directory.path().join(name)).unwrap());
        let files = ["store.db", "store.db-wal", "lock"].map(read).into();
        Self { files, batches, epoch }
    }

    /// Opens a copy with one file changed, and holds it to the promise.
    fn with(&self, what: &str, name: &str, mut damage: impl FnMut(&mut Vec<u8>)) -> (usize, Vec<Finding>) {
        let directory = tempfile::tempdir().unwrap();
        for (file, bytes) in &self.files {
            let mut bytes = bytes.clone();
            if *file == name {
                damage(&mut bytes);
                // Only the damaged one, as it was found, may be what is kept.
                fs::write(directory.path().join("as-found"), &bytes).unwrap();
            }
            fs::write(directory.path().join(file), bytes).unwrap();
        }
        damage_answer(what, directory.path(), name, self)
    }
}

fn damage_answer(what: &str, directory: &Path, name: &str, victim: &Victim) -> (usize, Vec<Finding>) {
    let opened = open(directory);
    let missing = assert_accounted(what, &victim.batches, &opened);
    assert!(missing == 0 || opened.findings.iter().any(Finding::is_loss), "{what}: {:?}", opened.findings);
    if let Some(Finding::Damaged { kept, .. }) = opened.findings.first() {
        let suffix = name.strip_prefix("store.db").unwrap();
        let kept = PathBuf::from(format!("{}{suffix}", kept.display()));
        assert_eq!(fs::read(kept).unwrap(), fs::read(directory.join("as-found")).unwrap(), "{what}: kept as found");
        let epoch_lost = opened.findings.iter().any(|f| matches!(f, Finding::NewEpoch(_)));
        assert_eq!(opened.store.epoch() == victim.epoch, !epoch_lost, "{what}: {:?}", opened.findings);
    }
    let findings = opened.findings.clone();
    assert_sound_afterwards(what, directory, opened);
    (missing, findings)
}

/// What was read is there again, with what is committed from now on, and nothing is found any more.
fn assert_sound_afterwards(what: &str, directory: &Path, opened: Opened) {
    let mut should = by_key(&opened.records);
    let mut store = opened.store;
    let more = batch(5000..5002, store.revision() + 1);
    store.commit(&more).unwrap_or_else(|error| panic!("{what}: {error}"));
    should.extend(expected(&[more]));
    drop(store);
    let opened = open(directory);
    assert_eq!((by_key(&opened.records), opened.findings), (should, vec![]), "{what}: sound afterwards");
}

fn rounds() -> u64 {
    std::env::var("VIPD_DAMAGE_ROUNDS").map_or(ROUNDS, |text| text.parse().expect("VIPD_DAMAGE_ROUNDS is a number"))
}

fn random_rounds(seed: u64, damage: impl Fn(&mut Random, &mut Vec<u8>)) -> usize {
    let victim = Victim::new();
    let mut random = Random(seed);
    let mut noticed = 0;
    for round in 0..rounds() {
        let name = if random.below(4) == 0 { "store.db-wal" } else { "store.db" };
        let what = format!("seed {seed}, round {round}, {name}");
        noticed += usize::from(!victim.with(&what, name, |bytes| damage(&mut random, bytes)).1.is_empty());
    }
    noticed
}

#[test]
fn a_flipped_bit_costs_at_most_what_it_hit() {
    let noticed = random_rounds(0x51, |random, bytes| {
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
    });
    assert!(noticed > 0, "no flip was ever noticed: the test tests nothing");
}

#[test]
fn a_page_of_garbage_costs_its_own_records() {
    let noticed = random_rounds(0x52, |random, bytes| {
        let page = random.below(bytes.len()) / 4096 * 4096;
        let end = bytes.len().min(page + 4096);
        bytes[page..end].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    });
    assert!(noticed > 0, "no page was ever noticed: the test tests nothing");
}

/// A page of the database of which the journal has no newer copy: of kind 13, a leaf of the table, or 10, a leaf of the
/// index (<https://www.sqlite.org/fileformat2.html#b_tree_pages>).
fn settled_page(victim: &Victim, kind: u8) -> std::ops::Range<usize> {
    let frames = victim.files["store.db-wal"][32..].chunks_exact(24 + 4096);
    let newer: Vec<_> = frames.map(|frame| u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize - 1).collect();
    let database = &victim.files["store.db"];
    let page = (1..database.len() / 4096).find(|page| database[page * 4096] == kind && !newer.contains(page)).unwrap();
    page * 4096..(page + 1) * 4096
}

#[test]
fn what_a_lost_page_held_is_named_by_the_index() {
    let victim = Victim::new();
    let (missing, findings) = victim.with("a leaf of the table", "store.db", |bytes| {
        bytes[settled_page(&victim, 13)].fill(0x5a);
    });
    let named = findings.iter().filter(|finding| matches!(finding, Finding::Lost(_))).count();
    assert!(missing > 0 && named == missing, "{missing} missing, {named} named: {findings:?}");
    assert!(missing < 20, "only those of one page: {missing}");
}

#[test]
fn a_lost_page_of_the_index_costs_nothing() {
    let victim = Victim::new();
    let (missing, findings) = victim.with("a leaf of the index", "store.db", |bytes| {
        bytes[settled_page(&victim, 10)].fill(0x5a);
    });
    assert!(missing == 0 && matches!(findings[..], [Finding::Damaged { .. }]), "{missing} missing: {findings:?}");
}

#[test]
fn a_cut_file_keeps_what_is_left_of_it() {
    let noticed = random_rounds(0x53, |random, bytes| bytes.truncate(random.below(bytes.len())));
    assert!(noticed > 0, "no cut was ever noticed: the test tests nothing");
}

#[test]
fn a_page_of_zeros_is_no_page() {
    let noticed = random_rounds(0x54, |random, bytes| {
        let page = random.below(bytes.len()) / 4096 * 4096;
        let end = bytes.len().min(page + 4096);
        bytes[page..end].fill(0);
    });
    assert!(noticed > 0, "no page was ever noticed: the test tests nothing");
}

#[test]
fn without_its_first_page_the_rest_is_still_read() {
    let victim = Victim::new();
    for (what, length) in [("wrong magic", 16), ("no header", 100), ("no first page", 4096)] {
        let (missing, findings) = victim.with(what, "store.db", |bytes| bytes[..length].fill(0xa5));
        assert_eq!(missing, 0, "{what}: {findings:?}");
        assert!(matches!(findings[0], Finding::Damaged { .. }), "{what}: {findings:?}");
    }
}

#[test]
fn an_empty_file_is_no_new_store() {
    let victim = Victim::new();
    let (missing, findings) = victim.with("empty", "store.db", Vec::clear);
    assert!(missing > 0 && findings.contains(&Finding::LostUnknown), "{missing} missing: {findings:?}");
}

#[test]
fn a_file_of_something_else_is_kept_and_a_new_store_made() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("store.db"), b"#!/bin/sh\necho this is no store\n".repeat(400)).unwrap();
    let opened = open(directory.path());
    assert!(opened.records.is_empty() && !opened.fresh);
    let [Finding::Damaged { why, kept }, Finding::LostUnknown, Finding::NewEpoch(_)] = &opened.findings[..] else {
        panic!("{:?}", opened.findings)
    };
    assert!(why.contains("not a database"), "{why}");
    assert!(kept.file_name().unwrap().to_string_lossy().starts_with("store.db.corrupt-"), "{kept:?}");
    assert!(fs::read(kept).unwrap().starts_with(b"#!/bin/sh"));
    assert_sound_afterwards("something else", directory.path(), opened);
}

#[test]
fn a_lost_database_beside_its_journal_is_said() {
    let victim = Victim::new();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("store.db-wal"), &victim.files["store.db-wal"]).unwrap();
    fs::write(directory.path().join("lock"), &victim.files["lock"]).unwrap();
    let opened = open(directory.path());
    assert!(!opened.fresh, "it is not a new store");
    assert_accounted("no database", &victim.batches, &opened);
    assert!(opened.findings.iter().any(Finding::is_loss), "{:?}", opened.findings);
}

#[test]
fn a_torn_end_of_the_journal_is_no_damage() {
    // A transaction that was being written when the process was killed: its last frame is not there, or is but for its
    // data, under which an older journal's stands.
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 4096 - 100);
    let stale = |bytes: &mut Vec<u8>| {
        let at = bytes.len() - 4096;
        bytes[at..].fill(0x33);
    };
    for tear in [&cut as &dyn Fn(&mut Vec<u8>), &stale] {
        let directory = tempfile::tempdir().unwrap();
        let mut store = open(directory.path()).store;
        store.commit(&batch(0..1, 1)).unwrap();
        let noted = fs::read(directory.path().join("lock")).unwrap();
        store.commit(&batch(0..40, 2)).unwrap();
        drop(store);
        let journal = directory.path().join("store.db-wal");
        let mut bytes = fs::read(&journal).unwrap();
        tear(&mut bytes);
        fs::write(&journal, bytes).unwrap();
        // Nobody was told of it.
        fs::write(directory.path().join("lock"), noted).unwrap();
        let opened = open(directory.path());
        assert_eq!(opened.findings, vec![]);
        assert_eq!(by_key(&opened.records), expected(&[batch(0..1, 1)]));
    }
}

#[test]
fn records_that_are_gone_without_a_trace_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).store;
    let batches = [batch(0..20, 1)];
    store.commit(&batches[0]).unwrap();
    store.close().unwrap();
    // As a page of an older state would have it: table and index agree, and everything verifies.
    let connection = rusqlite::Connection::open(directory.path().join("store.db")).unwrap();
    connection.execute("DELETE FROM record WHERE id IN (7, 8)", []).unwrap();
    drop(connection);
    let opened = open(directory.path());
    assert_eq!(assert_accounted("gone", &batches, &opened), 2);
    assert!(opened.findings.contains(&Finding::LostUnnamed(2)), "{:?}", opened.findings);
}

#[test]
fn a_flip_inside_the_journal_is_told_from_a_torn_end() {
    let victim = Victim::new();
    // In the data of the first frame: SQLite by itself would read no frame at all, and say nothing.
    let (missing, findings) = victim.with("journal", "store.db-wal", |bytes| bytes[32 + 24 + 2000] ^= 0x10);
    let Finding::Damaged { why, .. } = &findings[0] else { panic!("{findings:?}") };
    assert!(why.contains("journal"), "{why}");
    assert!(missing <= 8, "the later changes of the journal are there: {missing} missing, {findings:?}");
}

#[test]
fn a_journal_that_has_lost_its_end_is_said() {
    let victim = Victim::new();
    // At the end of a transaction, where nothing in the file itself looks wrong.
    let (_, findings) = victim.with("no journal", "store.db-wal", Vec::clear);
    let [Finding::Outdated(why)] = &findings[..] else { panic!("{findings:?}") };
    assert!(why.contains("the last 10 of 11 commits"), "{why}");
}

#[test]
fn a_store_of_a_newer_format_is_kept_and_what_is_understood_is_served() {
    let victim = Victim::new();
    // Offset 60 of the header: the user version, where the format is.
    let (missing, findings) = victim.with("format", "store.db", |bytes| bytes[60..64].copy_from_slice(&[0, 0, 0, 9]));
    assert_eq!(missing, 0);
    let Finding::Damaged { why, .. } = &findings[0] else { panic!("{findings:?}") };
    assert!(why.contains("format 9, of a newer version"), "{why}");
}

#[test]
fn an_empty_batch_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path()).store;
    store.commit(&batch(0..1, 1)).unwrap();
    let journal = || fs::metadata(directory.path().join("store.db-wal")).unwrap().modified().unwrap();
    let before = journal();
    store.commit(&Batch::new()).unwrap();
    assert_eq!(journal(), before);
}
