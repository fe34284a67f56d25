//! Which services changed, in order, each once at its newest place: what `Watch` reads. A slow reader skips states of a
//! service, never its last.

use std::collections::{BTreeMap, HashMap};

use vipd_model::{Revision, ServiceKey};

/// Deletions kept for watchers that resume.
const DELETIONS_KEPT: usize = 10_000;

/// The order of changes since the start of the daemon.
#[derive(Debug)]
pub struct Changes {
    next: u64,
    /// The node's revision now.
    revision: Revision,
    place: HashMap<ServiceKey, u64>,
    log: BTreeMap<u64, Entry>,
    /// Places of deletions, oldest first.
    deletions: BTreeMap<u64, Revision>,
    /// Deletions up to this revision are not known any more.
    deletions_forgotten: Revision,
    /// The newest place of those; a reader that has not passed it must start over.
    forgotten_place: u64,
}

/// One service's newest place.
#[derive(Debug)]
struct Entry {
    key: ServiceKey,
    deleted: Option<Revision>,
    /// The node's revision then.
    at: Revision,
}

/// One service that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Its place; the next read begins after it.
    pub cursor: u64,
    /// Which.
    pub key: ServiceKey,
    /// It was deleted at this revision, and nothing else has happened to it since.
    pub deleted: Option<Revision>,
}

impl Changes {
    /// Nothing has changed; what was deleted up to `revision` is not known (it was before the restart).
    #[must_use]
    pub fn new(revision: Revision) -> Self {
        Self {
            next: 1,
            revision,
            place: HashMap::new(),
            log: BTreeMap::new(),
            deletions: BTreeMap::new(),
            deletions_forgotten: revision,
            forgotten_place: 0,
        }
    }

    /// The node is at this revision now.
    pub fn advance(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
    }

    /// The service, or its status, is new.
    pub fn touch(&mut self, key: &ServiceKey) {
        self.record(key, None);
    }

    /// The status of the service is new; of a deleted one nobody wants to know.
    pub fn touch_status(&mut self, key: &ServiceKey) {
        let deleted = |place| self.log.get(place).is_some_and(|entry| entry.deleted.is_some());
        if !self.place.get(key).is_some_and(deleted) {
            self.record(key, None);
        }
    }

    /// The service is gone.
    pub fn delete(&mut self, key: &ServiceKey, revision: Revision) {
        self.record(key, Some(revision));
        self.deletions.insert(self.next - 1, revision);
        while self.deletions.len() > DELETIONS_KEPT {
            let Some((place, revision)) = self.deletions.pop_first() else { break };
            if let Some(entry) = self.log.remove(&place) {
                self.place.remove(&entry.key);
            }
            self.deletions_forgotten = self.deletions_forgotten.max(revision);
            self.forgotten_place = place;
        }
    }

    fn record(&mut self, key: &ServiceKey, deleted: Option<Revision>) {
        let place = self.next;
        self.next += 1;
        if let Some(before) = self.place.insert(key.clone(), place) {
            self.log.remove(&before);
            self.deletions.remove(&before);
        }
        self.log.insert(place, Entry { key: key.clone(), deleted, at: self.revision });
    }

    /// The place before which everything has been seen by a reader that starts now.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.next - 1
    }

    /// Up to `limit` services that changed after `cursor`; `None` if deletions that such a reader must see are not
    /// known any more.
    #[must_use]
    pub fn after(&self, cursor: u64, limit: usize) -> Option<Vec<Changed>> {
        if cursor < self.forgotten_place {
            return None;
        }
        let changed = self.log.range(cursor + 1..).take(limit).map(|(place, entry)| Changed {
            cursor: *place,
            key: entry.key.clone(),
            deleted: entry.deleted,
        });
        Some(changed.collect())
    }

    /// Whether every deletion after this revision is known, so that a watcher may resume from it.
    #[must_use]
    pub fn knows_deletions_after(&self, revision: Revision) -> bool {
        revision >= self.deletions_forgotten
    }

    /// Services deleted after this revision.
    pub fn deleted_after(&self, revision: Revision) -> impl Iterator<Item = (&ServiceKey, Revision)> {
        self.deletions
            .iter()
            .filter(move |(_, deleted)| **deleted > revision)
            .filter_map(|(place, deleted)| Some((&self.log.get(place)?.key, *deleted)))
    }

    /// Services that are there and of which something (their status too) changed while the node was at this revision or
    /// a later one: what a reader that saw everything up to it may have missed.
    pub fn touched_since(&self, revision: Revision) -> impl Iterator<Item = &ServiceKey> {
        // Places are in the order of time, so the revisions beside them never fall.
        let newest_first = self.log.values().rev().take_while(move |entry| entry.at >= revision);
        newest_first.filter(|entry| entry.deleted.is_none()).map(|entry| &entry.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ServiceKey {
        ServiceKey::new("ops", name).unwrap()
    }

    #[test]
    fn a_slow_reader_skips_states_but_never_the_last() {
        let mut changes = Changes::new(Revision(0));
        for _ in 0..3 {
            changes.touch(&key("a"));
        }
        changes.touch(&key("b"));
        changes.delete(&key("a"), Revision(9));
        let seen = changes.after(0, 10).unwrap();
        assert_eq!(
            seen.iter().map(|c| (c.key.clone(), c.deleted)).collect::<Vec<_>>(),
            [(key("b"), None), (key("a"), Some(Revision(9)))]
        );
        assert_eq!(changes.after(changes.cursor(), 10).unwrap(), []);
    }

    #[test]
    fn a_status_that_changed_without_a_revision_is_not_missed() {
        let mut changes = Changes::new(Revision(5));
        changes.touch(&key("a"));
        changes.advance(Revision(6));
        changes.touch(&key("b"));
        changes.touch_status(&key("c"));
        changes.advance(Revision(7));
        changes.delete(&key("c"), Revision(7));
        let since = |revision| changes.touched_since(Revision(revision)).map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(since(5), ["ops/b", "ops/a"]);
        assert_eq!(since(6), ["ops/b"]);
        assert!(since(7).is_empty());
    }

    #[test]
    fn a_reader_that_missed_forgotten_deletions_must_start_over() {
        let mut changes = Changes::new(Revision(5));
        assert!(!changes.knows_deletions_after(Revision(4)), "deleted before the restart");
        let cursor = changes.cursor();
        for n in 0..=DELETIONS_KEPT as u64 {
            changes.delete(&key(&format!("s{n}")), Revision(10 + n));
        }
        assert_eq!(changes.after(cursor, 1), None);
        assert!(changes.after(cursor + 1, 1).is_some());
        assert!(!changes.knows_deletions_after(Revision(9)));
        assert!(changes.knows_deletions_after(Revision(10)));
        assert_eq!(changes.deleted_after(Revision(10)).count(), DELETIONS_KEPT);
    }
}
