//! A power cut: of what was written since the last way to the disk, any part may be there and any part may not, in any
//! order. The store must be as some commit left it, with nothing half there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::damage::Random;
use super::{batch, by_key, expected, open};
use vipd::store::Finding;

const BLOCK: usize = 4096;

fn files(directory: &Path) -> BTreeMap<&'static str, Vec<u8>> {
    ["store.db", "store.db-wal"].map(|name| (name, fs::read(directory.join(name)).unwrap_or_default())).into()
}

/// What the disk holds: each block as it was before, or as it was written since; a file perhaps shorter.
fn cut(random: &mut Random, before: &[u8], after: &[u8]) -> Vec<u8> {
    let mut disk = after.to_vec();
    if random.below(2) == 0 {
        disk.truncate(before.len() + random.below(after.len().saturating_sub(before.len()) + 1));
    }
    // Sometimes nearly all of it came to the disk, sometimes nearly nothing.
    let share = 1 + random.below(30);
    for at in (0..disk.len()).step_by(BLOCK) {
        let end = disk.len().min(at + BLOCK);
        if random.below(share) == 0 {
            let old = before.get(at..end.min(before.len())).unwrap_or_default();
            disk[at..at + old.len()].copy_from_slice(old);
            disk[at + old.len()..end].fill(0);
        }
    }
    disk
}

#[test]
fn a_power_cut_leaves_the_state_of_some_commit_whole() {
    let directory = tempfile::tempdir().unwrap();
    let mut batches = vec![batch(0..200, 1)];
    let mut store = open(directory.path()).store;
    store.commit(&batches[0]).unwrap();
    store.close().unwrap();
    let before = files(directory.path());
    let mut store = open(directory.path()).store;
    for revision in 2..40 {
        let next = batch(revision * 5..revision * 5 + 20, revision);
        store.commit(&next).unwrap();
        batches.push(next);
    }
    let after = files(directory.path());
    drop(store);
    assert!(before["store.db"] == after["store.db"], "too slow: the way to the disk came in between");

    let states: Vec<_> = (1..=batches.len()).map(|count| expected(&batches[..count])).collect();
    let mut random = Random(0x60);
    let mut reached = BTreeMap::new();
    for round in 0..60 {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("store.db"), &before["store.db"]).unwrap();
        let journal = cut(&mut random, &before["store.db-wal"], &after["store.db-wal"]);
        fs::write(directory.path().join("store.db-wal"), journal).unwrap();
        fs::write(directory.path().join("lock"), "1 00000000-0000-0000-0000-000000000000 7\n").unwrap();

        let opened = open(directory.path());
        assert!(matches!(opened.findings[..], [Finding::NewEpoch(_)]), "round {round}: {:?}", opened.findings);
        let have = by_key(&opened.records);
        let state = states.iter().position(|state| *state == have);
        let state = state.unwrap_or_else(|| panic!("round {round}: the state of no commit"));
        assert_eq!(opened.store.revision(), state as u64 + 1, "round {round}");
        *reached.entry(state).or_insert(0) += 1;
    }
    assert!(reached.len() > 3, "the cuts differ: {reached:?}");
}
