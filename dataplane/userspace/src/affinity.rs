//! Client affinity: which endpoint a client had. Sans I/O; the proxy's own milliseconds come in.
//!
//! An entry slides: each new flow renews it, and it ends exactly `timeout` after the last one. The table is bounded; the
//! client that has been away longest makes room. Whether the endpoint of an entry may still be used is not known here.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Clients remembered per service. Beyond, the one that has been away longest is forgotten.
pub const AFFINITY_CLIENTS_MAX: usize = 65_536;

/// The clients of one service. `E` names an endpoint.
#[derive(Debug)]
pub(crate) struct Affinity<E> {
    entries: HashMap<IpAddr, Entry<E>>,
    /// Touches, oldest first; only the last touch of a client counts.
    touches: VecDeque<(u64, IpAddr)>,
    most: usize,
}

#[derive(Debug)]
struct Entry<E> {
    endpoint: E,
    touched: u64,
}

impl<E> Affinity<E> {
    pub(crate) fn new(most: usize) -> Self {
        Self { entries: HashMap::new(), touches: VecDeque::new(), most: most.max(1) }
    }

    /// The endpoint of a client, unless its time is over.
    pub(crate) fn get(&mut self, client: IpAddr, timeout_ms: u64, now: u64) -> Option<&E> {
        let entry = self.entries.get(&client)?;
        if now.saturating_sub(entry.touched) >= timeout_ms {
            self.entries.remove(&client);
        }
        self.entries.get(&client).map(|entry| &entry.endpoint)
    }

    /// A client's new flow goes to this endpoint.
    pub(crate) fn put(&mut self, client: IpAddr, endpoint: E, now: u64) {
        self.entries.insert(client, Entry { endpoint, touched: now });
        self.touches.push_back((now, client));
        while self.entries.len() > self.most {
            self.forget_oldest();
        }
        if self.touches.len() > 2 * self.entries.len() + 64 {
            let entries = &self.entries;
            self.touches.retain(|(at, client)| entries.get(client).is_some_and(|entry| entry.touched == *at));
        }
    }

    /// Forgets a client.
    pub(crate) fn remove(&mut self, client: IpAddr) {
        self.entries.remove(&client);
    }

    fn forget_oldest(&mut self) {
        while let Some((at, client)) = self.touches.pop_front() {
            if self.entries.get(&client).is_some_and(|entry| entry.touched == at) {
                self.entries.remove(&client);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn client(n: u32) -> IpAddr {
        Ipv4Addr::from(n).into()
    }

    #[test]
    fn an_entry_slides_and_ends_exactly() {
        let mut table = Affinity::new(10);
        table.put(client(1), 'a', 0);
        assert_eq!(table.get(client(1), 1_000, 999), Some(&'a'));
        table.put(client(1), 'a', 999);
        assert_eq!(table.get(client(1), 1_000, 1_998), Some(&'a'));
        assert_eq!(table.get(client(1), 1_000, 1_999), None);
        assert_eq!(table.get(client(1), u64::MAX, 1_999), None, "what is over is forgotten");
    }

    #[test]
    fn looking_does_not_renew() {
        let mut table = Affinity::new(10);
        table.put(client(1), 'a', 0);
        for now in (0..1_000).step_by(100) {
            assert!(table.get(client(1), 1_000, now).is_some());
        }
        assert_eq!(table.get(client(1), 1_000, 1_000), None);
    }

    #[test]
    fn the_one_away_longest_makes_room() {
        let mut table = Affinity::new(3);
        for n in 1..=3 {
            table.put(client(n), n, u64::from(n));
        }
        table.put(client(1), 1, 4);
        table.put(client(4), 4, 5);
        assert_eq!(table.get(client(2), 100, 5), None);
        assert_eq!(table.get(client(1), 100, 5), Some(&1));
    }

    /// Against a plain list, over many seeds: bounded, and never an answer that the list would not give.
    #[test]
    fn agrees_with_a_plain_list() {
        for seed in 1..200u64 {
            let mut random = seed;
            let mut next = |below: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % below
            };
            let mut table = Affinity::new(8);
            let mut list: Vec<(IpAddr, u64, u64)> = Vec::new();
            let mut now = 0;
            for step in 0..300 {
                now += next(3) + 1;
                let who = client(u32::try_from(next(12)).unwrap());
                match next(4) {
                    0 => {
                        table.remove(who);
                        list.retain(|(client, ..)| *client != who);
                    }
                    1 => {
                        let want = list.iter().find(|(client, ..)| *client == who);
                        let want = want.filter(|(_, _, touched)| now - touched < 20).map(|(_, endpoint, _)| *endpoint);
                        assert_eq!(table.get(who, 20, now).copied(), want, "seed {seed} step {step}");
                        list.retain(|(client, _, touched)| *client != who || now - touched < 20);
                    }
                    _ => {
                        table.put(who, step, now);
                        list.retain(|(client, ..)| *client != who);
                        list.push((who, step, now));
                        if list.len() > 8 {
                            list.remove(0);
                        }
                    }
                }
                assert!(table.entries.len() <= 8 && table.touches.len() <= 2 * 8 + 64);
            }
        }
    }
}
