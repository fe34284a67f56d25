//! Which service stands at an address and port: read by every new flow without a lock, written one bucket at a time.
//!
//! A fixed array of buckets, each an immutable list behind an atomic pointer. A reader loads one pointer; a writer copies
//! one bucket of a handful of entries, so a change costs the same among ten services and among fifty thousand.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use vipd_model::{Family, PortRange, Protocol};

/// Buckets: at 50,000 services of two frontends six entries each. 512 KiB of pointers.
const BUCKETS: usize = 1 << 14;

/// Where a frontend is, to the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Spot {
    /// A virtual IP.
    Vip(IpAddr),
    /// The node's addresses of one family.
    Node(Family),
}

/// One frontend's place in the table: `ports` of one are found exactly, wider ones by search among the spot's ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) protocol: Protocol,
    pub(crate) spot: Spot,
    pub(crate) ports: PortRange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BucketKey {
    protocol: Protocol,
    spot: Spot,
    /// 0: the ranges of the spot.
    port: u16,
}

impl BucketKey {
    fn of(place: &Place) -> Self {
        let port = if place.ports.is_one() { place.ports.first } else { 0 };
        Self { protocol: place.protocol, spot: place.spot, port }
    }
}

type Bucket<T> = Vec<(Place, Arc<T>)>;

/// The table. `T` is what stands at a place.
pub(crate) struct Table<T> {
    buckets: Box<[ArcSwapOption<Bucket<T>>]>,
    version: AtomicU64,
    /// One writer at a time; readers never see it.
    writer: Mutex<()>,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| ArcSwapOption::empty()).collect(),
            version: AtomicU64::new(0),
            writer: Mutex::new(()),
        }
    }

    fn bucket(&self, key: &BucketKey) -> &ArcSwapOption<Bucket<T>> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        // The mask keeps it below BUCKETS, whatever usize is.
        &self.buckets[(hash & (BUCKETS as u64 - 1)) as usize]
    }

    /// What stands at an address and port: a VIP before a node port, one port before a range.
    pub(crate) fn find(&self, protocol: Protocol, address: IpAddr, port: u16) -> Option<(Place, Arc<T>)> {
        let at_vip = self.find_at(protocol, Spot::Vip(address), port);
        at_vip.or_else(|| self.find_at(protocol, Spot::Node(Family::of(address)), port))
    }

    /// What stands at a port of a spot: one port before a range.
    pub(crate) fn find_at(&self, protocol: Protocol, spot: Spot, port: u16) -> Option<(Place, Arc<T>)> {
        [port, 0].into_iter().find_map(|key_port| {
            let key = BucketKey { protocol, spot, port: key_port };
            let bucket = self.bucket(&key).load();
            let mut here = bucket.as_ref()?.iter();
            let found = here.find(|(place, _)| BucketKey::of(place) == key && place.ports.contains(port));
            found.map(|(place, value)| (*place, Arc::clone(value)))
        })
    }

    /// Another number after every change, so that what was found may be kept while it stays the same.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Puts `value` at a place; what stood there before does not any more.
    pub(crate) fn insert(&self, place: Place, value: Arc<T>) {
        self.change(&place, |bucket| {
            bucket.retain(|(other, _)| *other != place);
            bucket.push((place, value));
        });
    }

    /// Empties a place if `value` stands there. Another may have taken it meanwhile (frontends swapped by one Apply).
    pub(crate) fn remove(&self, place: &Place, value: &Arc<T>) {
        self.change(place, |bucket| bucket.retain(|(other, holder)| other != place || !Arc::ptr_eq(holder, value)));
    }

    fn change(&self, place: &Place, edit: impl FnOnce(&mut Bucket<T>)) {
        let cell = self.bucket(&BucketKey::of(place));
        let _one = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bucket: Bucket<T> = match cell.load_full() {
            Some(bucket) => bucket.iter().map(|(place, value)| (*place, Arc::clone(value))).collect(),
            None => Vec::new(),
        };
        edit(&mut bucket);
        cell.store((!bucket.is_empty()).then(|| Arc::new(bucket)));
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn vip(last: u8, first_port: u16, last_port: u16) -> Place {
        Place {
            protocol: Protocol::Tcp,
            spot: Spot::Vip(address(last)),
            ports: PortRange { first: first_port, last: last_port },
        }
    }

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn at(table: &Table<&'static str>, last: u8, port: u16) -> Option<&'static str> {
        table.find(Protocol::Tcp, address(last), port).map(|(_, value)| *value)
    }

    #[test]
    fn a_vip_before_a_node_port_and_one_port_before_a_range() {
        let table = Table::new();
        let node = |ports| Place { protocol: Protocol::Tcp, spot: Spot::Node(Family::V4), ports };
        table.insert(node(PortRange::one(80)), Arc::new("node port"));
        table.insert(node(PortRange { first: 1, last: 9_999 }), Arc::new("node range"));
        table.insert(vip(1, 70, 90), Arc::new("range"));
        table.insert(vip(1, 81, 81), Arc::new("one"));
        assert_eq!(at(&table, 1, 80), Some("range"));
        assert_eq!(at(&table, 1, 81), Some("one"));
        assert_eq!(at(&table, 2, 80), Some("node port"));
        assert_eq!(at(&table, 2, 81), Some("node range"));
        assert_eq!(at(&table, 2, 10_000), None);
        assert!(table.find(Protocol::Udp, address(1), 80).is_none());
    }

    #[test]
    fn removing_what_another_has_taken_over_removes_nothing() {
        let table = Table::new();
        let (old, new) = (Arc::new("old"), Arc::new("new"));
        table.insert(vip(1, 80, 80), Arc::clone(&old));
        table.insert(vip(1, 80, 80), Arc::clone(&new));
        table.remove(&vip(1, 80, 80), &old);
        assert_eq!(at(&table, 1, 80), Some("new"));
        table.remove(&vip(1, 80, 80), &new);
        assert_eq!(at(&table, 1, 80), None);
    }

    #[test]
    fn fifty_thousand_places_are_each_found() {
        let table = Table::new();
        for n in 0..50_000u32 {
            let spot = Spot::Vip(Ipv4Addr::from(0x0a00_0000 + n).into());
            table.insert(Place { protocol: Protocol::Tcp, spot, ports: PortRange::one(80) }, Arc::new(n));
        }
        for n in 0..50_000u32 {
            let found = table.find(Protocol::Tcp, Ipv4Addr::from(0x0a00_0000 + n).into(), 80);
            assert_eq!(found.map(|(_, value)| *value), Some(n));
        }
    }
}
