//! The sessions of a door: who talks to which endpoint, and who has been silent for too long. Sans I/O; `S` is a session,
//! which says itself when its time is over, because both directions of its traffic prolong it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;

/// When a session is to end, in the proxy's own milliseconds; absent: it has ended.
pub(crate) trait Expires {
    fn expires(&self) -> Option<u64>;
}

/// Sessions by key.
#[derive(Debug)]
pub(crate) struct Sessions<K, S> {
    sessions: HashMap<K, (u64, S)>,
    /// When to look at a session next, which is never after it expires. The second number says whether the entry is
    /// still about the session that has the key now.
    looks: BinaryHeap<Reverse<(u64, u64, K)>>,
    next: u64,
}

impl<K: Hash + Ord + Copy, S: Expires> Sessions<K, S> {
    pub(crate) fn new() -> Self {
        Self { sessions: HashMap::new(), looks: BinaryHeap::new(), next: 0 }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&S> {
        self.sessions.get(key).map(|(_, session)| session)
    }

    pub(crate) fn insert(&mut self, key: K, session: S) {
        let Some(expires) = session.expires() else { return };
        self.looks.push(Reverse((expires, self.next, key)));
        self.sessions.insert(key, (self.next, session));
        self.next += 1;
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.sessions.remove(key);
    }

    /// Drops every session whose time is over.
    pub(crate) fn expire(&mut self, now: u64) {
        while let Some(&Reverse((look, id, key))) = self.looks.peek() {
            if look > now {
                return;
            }
            self.looks.pop();
            match self.sessions.get(&key) {
                Some((current, session)) if *current == id => match session.expires() {
                    Some(later) if later > now => self.looks.push(Reverse((later, id, key))),
                    _ => drop(self.sessions.remove(&key)),
                },
                _ => {}
            }
        }
    }

    /// Drops sessions for which `keep` does not hold.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&S) -> bool) {
        self.sessions.retain(|_, (_, session)| keep(session));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[derive(Clone, Debug)]
    struct Until(Rc<Cell<u64>>);

    impl Expires for Until {
        fn expires(&self) -> Option<u64> {
            Some(self.0.get())
        }
    }

    /// Random traffic, many seeds: a session lives exactly as long as it was last prolonged to.
    #[test]
    fn a_session_lives_as_long_as_it_was_prolonged() {
        for seed in 1..300u64 {
            let mut random = seed;
            let mut next = |below: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % below
            };
            let mut sessions = Sessions::new();
            let mut model: HashMap<u64, Until> = HashMap::new();
            let mut now = 0;
            for step in 0..500 {
                now += next(4);
                sessions.expire(now);
                model.retain(|_, until| until.0.get() > now);
                assert_eq!(sessions.sessions.len(), model.len(), "seed {seed} step {step}");
                let key = next(20);
                match (next(5), model.get(&key)) {
                    (0, _) => {
                        sessions.remove(&key);
                        model.remove(&key);
                    }
                    (_, Some(until)) => until.0.set(until.0.get().max(now + 1 + next(30))),
                    (_, None) => {
                        let until = Until(Rc::new(Cell::new(now + 1 + next(10))));
                        sessions.insert(key, until.clone());
                        model.insert(key, until);
                    }
                }
                assert!(model.keys().all(|key| sessions.get(key).is_some()));
            }
        }
    }
}
