//! The event journal: who changed what, and what happened by itself. A bounded ring; what fell out is counted.

use std::collections::VecDeque;

use vipd_model::{Millis, OwnerName, Revision, ServiceName};

/// The names of `vipd.v1.EventsResponse.Kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "documented in node.proto, whose names these are")]
pub enum EventKind {
    Changed,
    Programmed,
    NotProgrammed,
    Drifted,
    Repaired,
    Health,
    Drained,
    Engine,
    Lease,
    RefusedCall,
}

/// One line of the journal.
#[derive(Clone, Debug)]
pub struct Event {
    /// Counts from 1.
    pub sequence: u64,
    /// When.
    pub at: Millis,
    /// What kind.
    pub kind: EventKind,
    /// Who; empty: vipd itself.
    pub actor: String,
    /// Of which owner; absent: the node.
    pub owner: Option<OwnerName>,
    /// Of which service; absent: the owner, or the node.
    pub name: Option<ServiceName>,
    /// The change it belongs to; 0: none.
    pub revision: Revision,
    /// In words.
    pub text: String,
}

/// The ring.
#[derive(Debug)]
pub struct Journal {
    events: VecDeque<Event>,
    capacity: usize,
    next: u64,
}

impl Journal {
    /// Keeps the last `capacity` events.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { events: VecDeque::new(), capacity, next: 1 }
    }

    /// Adds one; its sequence number is given here.
    pub fn push(&mut self, mut event: Event) {
        event.sequence = self.next;
        self.next += 1;
        if self.events.len() == self.capacity {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Up to `limit` events after a sequence number, and how many before the first of them are lost.
    #[must_use]
    pub fn after(&self, sequence: u64, limit: usize) -> (u64, Vec<Event>) {
        let oldest = self.next - self.events.len() as u64;
        let lost = oldest.saturating_sub(sequence.saturating_add(1)).min(oldest - 1);
        let skip = usize::try_from((sequence + 1).saturating_sub(oldest)).unwrap_or(usize::MAX);
        (if sequence == 0 { 0 } else { lost }, self.events.iter().skip(skip).take(limit).cloned().collect())
    }

    /// The number of the newest event; 0: none yet.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.next - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event {
            sequence: 0,
            at: Millis(0),
            kind: EventKind::Changed,
            actor: String::new(),
            owner: None,
            name: None,
            revision: Revision(0),
            text: String::new(),
        }
    }

    #[test]
    fn a_full_ring_says_what_it_lost() {
        let mut journal = Journal::new(3);
        (0..5).for_each(|_| journal.push(event()));
        let (lost, events) = journal.after(1, 10);
        assert_eq!((lost, events.iter().map(|e| e.sequence).collect::<Vec<_>>()), (1, vec![3, 4, 5]));
        let (lost, events) = journal.after(0, 10);
        assert_eq!((lost, events.len()), (0, 3), "from the oldest kept: nothing was promised before it");
        let (lost, events) = journal.after(4, 10);
        assert_eq!((lost, events.len()), (0, 1));
        assert_eq!(journal.after(5, 10).1.len(), 0);
        assert_eq!(journal.after(99, 10).1.len(), 0);
    }
}
