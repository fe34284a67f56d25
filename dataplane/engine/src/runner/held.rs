//! The books of a runner: for every object of ours, what the kernel has and what is wanted, by how many.

use std::collections::BTreeMap;

use crate::plan::Objects;

struct Entry<V> {
    /// What the kernel has, as far as we know; absent: nothing.
    kernel: Option<V>,
    /// What it is to have; absent: nothing (a stray).
    wanted: Option<V>,
    /// How many services (and the node) want it.
    users: u32,
    /// How many of those want it only until their `finish`.
    retiring: u32,
}

impl<V> Entry<V> {
    fn new(kernel: Option<V>) -> Self {
        Self { kernel, wanted: None, users: 0, retiring: 0 }
    }
}

/// Objects by key.
pub(super) struct Held<K, V> {
    entries: BTreeMap<K, Entry<V>>,
}

impl<K: Ord + Clone, V: Eq + Clone> Held<K, V> {
    /// What the kernel has at start; nothing is wanted yet.
    pub(super) fn adopt(kernel: Objects<K, V>) -> Self {
        Self { entries: kernel.into_iter().map(|(key, value)| (key, Entry::new(Some(value)))).collect() }
    }

    pub(super) fn in_kernel(&self) -> usize {
        self.entries.values().filter(|entry| entry.kernel.is_some()).count()
    }

    pub(super) fn kernel(&self, key: &K) -> Option<&V> {
        self.entries.get(key)?.kernel.as_ref()
    }

    pub(super) fn kernel_of<'a>(&self, keys: impl Iterator<Item = &'a K>) -> Objects<K, V>
    where
        K: 'a,
    {
        keys.filter_map(|key| Some((key.clone(), self.kernel(key)?.clone()))).collect()
    }

    pub(super) fn wanted_of<'a>(&self, keys: impl Iterator<Item = &'a K>) -> Objects<K, V>
    where
        K: 'a,
    {
        keys.filter_map(|key| Some((key.clone(), self.entries.get(key)?.wanted.clone()?))).collect()
    }

    pub(super) fn wanted(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.wanted.as_ref()?)))
    }

    pub(super) fn users(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.users)
    }

    /// In the kernel, wanted by nobody.
    pub(super) fn is_stray(&self, key: &K) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.kernel.is_some() && entry.wanted.is_none())
    }

    /// How many keep another value there; those that are about to give it up do not count.
    pub(super) fn opposed(&self, key: &K, value: &V) -> u32 {
        match self.entries.get(key) {
            Some(entry) if entry.wanted.as_ref().is_some_and(|wanted| wanted != value) => entry.users - entry.retiring,
            _ => 0,
        }
    }

    pub(super) fn set_kernel(&mut self, key: &K, value: Option<V>) {
        match self.entries.get_mut(key) {
            Some(entry) => {
                entry.kernel = value;
                if entry.kernel.is_none() && entry.users == 0 {
                    self.entries.remove(key);
                }
            }
            None if value.is_some() => {
                self.entries.insert(key.clone(), Entry::new(value));
            }
            None => {}
        }
    }

    /// One user more (`new`), or the same users with this value.
    pub(super) fn want(&mut self, key: &K, value: &V, new: bool) {
        let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry::new(None));
        if entry.wanted.as_ref() != Some(value) {
            entry.wanted = Some(value.clone());
        }
        entry.users += u32::from(new);
    }

    /// A user will give it up.
    pub(super) fn retire(&mut self, key: &K) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.retiring += 1;
        }
    }

    /// A user that was to give it up keeps it.
    pub(super) fn keep(&mut self, key: &K) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.retiring = entry.retiring.saturating_sub(1);
        }
    }

    /// One retiring user more of what the kernel has, or may have: it could not be removed.
    pub(super) fn retire_again(&mut self, key: &K) {
        let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry::new(None));
        entry.wanted.clone_from(&entry.kernel);
        entry.users += 1;
        entry.retiring += 1;
    }

    /// One user less. True if it was the last: the object may go.
    pub(super) fn unwant(&mut self, key: &K) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        entry.users = entry.users.saturating_sub(1);
        if entry.users > 0 {
            return false;
        }
        entry.wanted = None;
        if entry.kernel.is_none() {
            self.entries.remove(key);
            return false;
        }
        true
    }

    /// Takes a fresh reading of the whole kernel.
    pub(super) fn replace_kernel(&mut self, mut kernel: Objects<K, V>) {
        self.entries.retain(|key, entry| {
            entry.kernel = kernel.remove(key);
            entry.kernel.is_some() || entry.users > 0
        });
        for (key, value) in kernel {
            self.entries.insert(key, Entry::new(Some(value)));
        }
    }

    /// Keys whose kernel value is not the wanted one, strays included. An object that is only wanted until it is removed
    /// is not missed.
    pub(super) fn differing(&self) -> impl Iterator<Item = (&K, Option<&V>, Option<&V>)> {
        self.entries.iter().filter_map(|(key, entry)| {
            let missed = entry.kernel.is_some() || entry.users > entry.retiring;
            (entry.kernel != entry.wanted && missed).then_some((key, entry.kernel.as_ref(), entry.wanted.as_ref()))
        })
    }
}
