//! Everything that the API server has told us, and which Services may look different since vipd was last told.
//!
//! Pure and level-triggered: an object's newest state counts, however many there were before it, so nothing here grows
//! with the speed of changes. Events of different objects may come in any order.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;

use crate::facts::{Key, NodeFacts, ServiceFacts, SliceFacts};
use crate::translate::{Context, Translation, translate};

/// The kinds of objects that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Services.
    Service,
    /// EndpointSlices.
    Slice,
    /// ServiceCIDRs.
    ServiceRange,
    /// This Node.
    Node,
}

impl Kind {
    /// All of them: nothing is told to vipd before each has been listed once.
    pub const ALL: [Self; 4] = [Self::Service, Self::Slice, Self::ServiceRange, Self::Node];
}

/// What an object is now; `None` if it is not there, or of no use.
#[derive(Clone, Debug)]
pub enum Now {
    /// A Service.
    Service(Option<ServiceFacts>),
    /// An EndpointSlice.
    Slice(Option<SliceFacts>),
    /// A ServiceCIDR.
    ServiceRange(Option<Vec<IpNet>>),
    /// This Node.
    Node(Option<NodeFacts>),
}

/// Something that the API server told.
#[derive(Clone, Debug)]
pub struct Told {
    /// Whose.
    pub key: Key,
    /// Its resource version; 0 if that is no number.
    pub version: u64,
    /// What it is.
    pub now: Now,
}

/// What is to be told to vipd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Services that may look different.
    pub services: BTreeSet<Key>,
    /// When what changed came to pass, for each change whose time is known.
    pub triggers: BTreeMap<Key, Vec<Timestamp>>,
    /// Changes of Services and of slices, for the metrics.
    pub counts: (u64, u64),
    /// The node's own facts or the ranges changed.
    pub owner: bool,
}

impl Changed {
    /// Nothing is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.owner
    }
}

/// Changes of one Service whose time is remembered until vipd has been told.
const TRIGGERS: usize = 32;

/// The state.
#[derive(Debug, Default)]
pub struct World {
    services: BTreeMap<Key, ServiceFacts>,
    slices: BTreeMap<Key, SliceFacts>,
    slices_of: BTreeMap<Key, BTreeSet<Key>>,
    service_ranges: BTreeMap<Key, Vec<IpNet>>,
    node: Option<NodeFacts>,
    node_was_there: bool,
    versions: BTreeMap<Kind, BTreeMap<Key, u64>>,
    listing: BTreeMap<Kind, BTreeSet<Key>>,
    listed: BTreeSet<Kind>,
    changed: Changed,
}

impl World {
    /// A list begins. What is there stays until it is complete.
    pub fn list_begins(&mut self, kind: Kind) {
        self.listing.insert(kind, BTreeSet::new());
    }

    /// A list is complete: what it did not have is gone.
    pub fn list_ends(&mut self, kind: Kind) {
        let seen = self.listing.remove(&kind).unwrap_or_default();
        let known = self.versions.get(&kind).into_iter().flat_map(BTreeMap::keys);
        let gone: Vec<Key> = known.filter(|key| !seen.contains(key)).cloned().collect();
        for key in gone {
            self.forget(kind, &key);
        }
        self.listed.insert(kind);
    }

    /// Every kind has been listed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.listed.len() == Kind::ALL.len()
    }

    /// The API server told of an object. Within a list it is right in any case: the server may have been restored from
    /// a backup. Afterwards versions only grow, and an older one than we have is a repetition.
    pub fn told(&mut self, told: Told) {
        let kind = kind(&told.now);
        let listing = self.listing.get_mut(&kind);
        let held = self.versions.get(&kind).and_then(|versions| versions.get(&told.key)).copied();
        if listing.is_none() && told.version != 0 && held.is_some_and(|held| told.version < held) {
            return;
        }
        if let Some(seen) = listing {
            seen.insert(told.key.clone());
        }
        self.versions.entry(kind).or_default().insert(told.key.clone(), told.version);
        let first = !self.listed.contains(&kind);
        match told.now {
            Now::Service(now) => self.service(told.key, now),
            Now::Slice(now) => self.slice(told.key, now, first),
            Now::ServiceRange(now) => self.range(told.key, now),
            Now::Node(now) => self.node(now),
        }
    }

    /// The API server has an object, and what it is cannot be read: it is what it was, if it was anything.
    pub fn seen(&mut self, kind: Kind, key: Key) {
        if let Some(seen) = self.listing.get_mut(&kind) {
            seen.insert(key);
        }
    }

    /// The API server told that an object, of which it shows the last version, is gone.
    pub fn deleted(&mut self, kind: Kind, key: &Key, version: u64) {
        let held = self.versions.get(&kind).and_then(|versions| versions.get(key)).copied();
        if version == 0 || held.is_none_or(|held| version >= held) {
            self.forget(kind, key);
        }
    }

    fn forget(&mut self, kind: Kind, key: &Key) {
        if let Some(versions) = self.versions.get_mut(&kind) {
            versions.remove(key);
        }
        match kind {
            Kind::Service => self.service(key.clone(), None),
            Kind::Slice => self.slice(key.clone(), None, false),
            Kind::ServiceRange => self.range(key.clone(), None),
            Kind::Node => self.node(None),
        }
    }

    fn service(&mut self, key: Key, now: Option<ServiceFacts>) {
        if self.services.get(&key) == now.as_ref() {
            return;
        }
        match now {
            Some(facts) => drop(self.services.insert(key.clone(), facts)),
            None => drop(self.services.remove(&key)),
        }
        self.changed.services.insert(key);
        self.changed.counts.0 += 1;
    }

    fn slice(&mut self, key: Key, now: Option<SliceFacts>, first: bool) {
        let before = self.slices.remove(&key);
        if before == now {
            self.slices.extend(now.map(|now| (key, now)));
            return;
        }
        let triggered = now.as_ref().and_then(|now| now.triggered);
        let is_news = !first && triggered != before.as_ref().and_then(|before| before.triggered);
        for facts in [&before, &now].into_iter().flatten() {
            self.changed.services.insert(facts.service.clone());
        }
        if let Some(facts) = before
            && let Some(slices) = self.slices_of.get_mut(&facts.service)
        {
            slices.remove(&key);
            if slices.is_empty() {
                self.slices_of.remove(&facts.service);
            }
        }
        if let Some(facts) = now {
            if let Some(triggered) = triggered.filter(|_| is_news) {
                let triggers = self.changed.triggers.entry(facts.service.clone()).or_default();
                triggers.extend((triggers.len() < TRIGGERS).then_some(triggered));
            }
            self.slices_of.entry(facts.service.clone()).or_default().insert(key.clone());
            self.slices.insert(key, facts);
        }
        self.changed.counts.1 += 1;
    }

    fn range(&mut self, key: Key, now: Option<Vec<IpNet>>) {
        let before = match now {
            Some(ranges) if self.service_ranges.get(&key) == Some(&ranges) => return,
            Some(ranges) => self.service_ranges.insert(key, ranges),
            None => self.service_ranges.remove(&key),
        };
        drop(before);
        self.changed.owner = true;
    }

    /// A zone or an address of the node is part of every Service's translation.
    fn node(&mut self, now: Option<NodeFacts>) {
        self.node_was_there |= now.is_some();
        if self.node == now {
            return;
        }
        let counts = |node: &Option<NodeFacts>| node.as_ref().map(|node| (node.zone.clone(), node.addresses.clone()));
        if now.is_some() && counts(&self.node) != counts(&now) {
            self.changed.services.extend(self.services.keys().cloned());
        }
        // What a deleted Node said of pods and addresses is kept: its pods still run.
        match (now, &mut self.node) {
            (None, Some(last)) => last.going = true,
            (now, last) => *last = now,
        }
        self.changed.owner = true;
    }

    /// What changed since this was last asked; the caller has to tell it to vipd, or to put it back.
    pub fn take_changed(&mut self) -> Changed {
        mem::take(&mut self.changed)
    }

    /// Something is to be told.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// These are to be told again.
    pub fn put_back(&mut self, services: impl IntoIterator<Item = Key>) {
        self.changed.services.extend(services);
    }

    /// The owner's settings are to be told again.
    pub fn put_owner_back(&mut self) {
        self.changed.owner = true;
    }

    /// Changes of Services and of slices that wait.
    #[must_use]
    pub fn pending(&self) -> (u64, u64) {
        self.changed.counts
    }

    /// What one Service is to vipd now; nothing if it is not served.
    #[must_use]
    pub fn translate(&self, key: &Key, settings: Context<'_>) -> Option<Translation> {
        let facts = self.services.get(key)?;
        let keys = self.slices_of.get(key).into_iter().flatten();
        let slices: Vec<&SliceFacts> = keys.filter_map(|key| self.slices.get(key)).collect();
        Some(translate(key, facts, &slices, settings))
    }

    /// A Service.
    #[must_use]
    pub fn service_facts(&self, key: &Key) -> Option<&ServiceFacts> {
        self.services.get(key)
    }

    /// The keys of all Services that are served.
    pub fn services(&self) -> impl Iterator<Item = &Key> {
        self.services.keys()
    }

    /// All ServiceCIDRs together.
    pub fn service_ranges(&self) -> impl Iterator<Item = &IpNet> {
        self.service_ranges.values().flatten()
    }

    /// This Node, as it was last seen.
    #[must_use]
    pub fn node_facts(&self) -> Option<&NodeFacts> {
        self.node.as_ref()
    }

    /// It has been seen, and neither is nor will be deleted: kube-proxy's "eligible".
    #[must_use]
    pub fn node_is_eligible(&self) -> bool {
        self.node_was_there && self.node.as_ref().is_some_and(|node| !node.going)
    }
}

fn kind(now: &Now) -> Kind {
    match now {
        Now::Service(_) => Kind::Service,
        Now::Slice(_) => Kind::Slice,
        Now::ServiceRange(_) => Kind::ServiceRange,
        Now::Node(_) => Kind::Node,
    }
}
