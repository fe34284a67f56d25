//! The books of a runner: for every object of ours, what the kernel has and what is wanted, by how many.
//!
//! Nearly every object is in the kernel exactly as its one user wants it, and is kept once. What is on its way, shared
//! or nobody's has the long form.

use std::collections::BTreeMap;

use crate::plan::Objects;

/// What is known of one object, in the long form.
struct Books<V> {
    /// What the kernel has, as far as we know; absent: nothing.
    kernel: Option<V>,
    /// What it is to have; absent: nothing (a stray).
    wanted: Option<V>,
    /// How many services (and the node) want it.
    users: u32,
    /// How many of those want it only until their `finish`.
    retiring: u32,
}

impl<V> Default for Books<V> {
    fn default() -> Self {
        Self { kernel: None, wanted: None, users: 0, retiring: 0 }
    }
}

/// What is known of one object.
enum Entry<V> {
    /// In the kernel as its one user wants it.
    Settled(V),
    /// Anything else.
    Other(Box<Books<V>>),
}

impl<V: Eq + Clone> Entry<V> {
    fn kernel(&self) -> Option<&V> {
        match self {
            Self::Settled(value) => Some(value),
            Self::Other(books) => books.kernel.as_ref(),
        }
    }

    fn wanted(&self) -> Option<&V> {
        match self {
            Self::Settled(value) => Some(value),
            Self::Other(books) => books.wanted.as_ref(),
        }
    }

    fn users(&self) -> u32 {
        match self {
            Self::Settled(_) => 1,
            Self::Other(books) => books.users,
        }
    }

    fn retiring(&self) -> u32 {
        match self {
            Self::Settled(_) => 0,
            Self::Other(books) => books.retiring,
        }
    }

    fn opened(self) -> Box<Books<V>> {
        match self {
            Self::Settled(value) => {
                Box::new(Books { kernel: Some(value.clone()), wanted: Some(value), users: 1, retiring: 0 })
            }
            Self::Other(books) => books,
        }
    }

    /// Absent if there is nothing to remember.
    #[expect(clippy::boxed_local, reason = "the counterpart of `opened`")]
    fn closed(books: Box<Books<V>>) -> Option<Self> {
        if books.kernel.is_none() && books.users == 0 {
            return None;
        }
        match *books {
            Books { kernel: Some(kernel), wanted: Some(wanted), users: 1, retiring: 0 } if kernel == wanted => {
                Some(Self::Settled(kernel))
            }
            books => Some(Self::Other(Box::new(books))),
        }
    }
}

/// Objects by key.
pub(super) struct Held<K, V> {
    entries: BTreeMap<K, Entry<V>>,
}

impl<K: Ord + Clone, V: Eq + Clone> Held<K, V> {
    /// What the kernel has at start; nothing is wanted yet.
    pub(super) fn adopt(kernel: Objects<K, V>) -> Self {
        Self { entries: kernel.into_iter().map(|(key, value)| (key, stray(value))).collect() }
    }

    /// Changes the books of one object.
    fn edit<T>(&mut self, key: &K, change: impl FnOnce(&mut Books<V>) -> T) -> T {
        let known = self.entries.remove_entry(key);
        let (key, mut books) = match known {
            Some((key, entry)) => (key, entry.opened()),
            None => (key.clone(), Box::default()),
        };
        let result = change(&mut books);
        if let Some(entry) = Entry::closed(books) {
            self.entries.insert(key, entry);
        }
        result
    }

    pub(super) fn in_kernel(&self) -> usize {
        self.entries.values().filter(|entry| entry.kernel().is_some()).count()
    }

    pub(super) fn kernel(&self, key: &K) -> Option<&V> {
        self.entries.get(key)?.kernel()
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
        keys.filter_map(|key| Some((key.clone(), self.entries.get(key)?.wanted()?.clone()))).collect()
    }

    pub(super) fn wanted(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.wanted()?)))
    }

    pub(super) fn users(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, Entry::users)
    }

    /// In the kernel, wanted by nobody.
    pub(super) fn is_stray(&self, key: &K) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.kernel().is_some() && entry.wanted().is_none())
    }

    /// How many keep another value there; those that are about to give it up do not count.
    pub(super) fn opposed(&self, key: &K, value: &V) -> u32 {
        match self.entries.get(key) {
            Some(entry) if entry.wanted().is_some_and(|wanted| wanted != value) => entry.users() - entry.retiring(),
            _ => 0,
        }
    }

    pub(super) fn set_kernel(&mut self, key: &K, value: Option<V>) {
        if self.kernel(key) != value.as_ref() {
            self.edit(key, |books| books.kernel = value);
        }
    }

    /// One user more (`new`), or the same users with this value.
    pub(super) fn want(&mut self, key: &K, value: &V, new: bool) {
        if !new && self.entries.get(key).and_then(Entry::wanted) == Some(value) {
            return;
        }
        self.edit(key, |books| {
            if books.wanted.as_ref() != Some(value) {
                books.wanted = Some(value.clone());
            }
            books.users += u32::from(new);
        });
    }

    /// A user will give it up.
    pub(super) fn retire(&mut self, key: &K) {
        if self.entries.contains_key(key) {
            self.edit(key, |books| books.retiring += 1);
        }
    }

    /// A user that was to give it up keeps it.
    pub(super) fn keep(&mut self, key: &K) {
        if self.entries.contains_key(key) {
            self.edit(key, |books| books.retiring = books.retiring.saturating_sub(1));
        }
    }

    /// One retiring user more of what the kernel has, or may have: it could not be removed.
    pub(super) fn retire_again(&mut self, key: &K) {
        self.edit(key, |books| {
            books.wanted.clone_from(&books.kernel);
            books.users += 1;
            books.retiring += 1;
        });
    }

    /// One user less. True if it was the last: the object may go.
    pub(super) fn unwant(&mut self, key: &K) -> bool {
        if !self.entries.contains_key(key) {
            return false;
        }
        self.edit(key, |books| {
            books.users = books.users.saturating_sub(1);
            if books.users > 0 {
                return false;
            }
            books.wanted = None;
            books.kernel.is_some()
        })
    }

    /// Takes a fresh reading of the whole kernel.
    pub(super) fn replace_kernel(&mut self, mut kernel: Objects<K, V>) {
        let otherwise: Vec<K> = self
            .entries
            .iter()
            .filter(|(key, entry)| kernel.get(*key) != entry.kernel())
            .map(|(key, _)| key.clone())
            .collect();
        for key in otherwise {
            let value = kernel.remove(&key);
            self.set_kernel(&key, value);
        }
        for (key, value) in kernel {
            self.entries.entry(key).or_insert_with(|| stray(value));
        }
    }

    /// Keys whose kernel value is not the wanted one, strays included. An object that is only wanted until it is removed
    /// is not missed.
    pub(super) fn differing(&self) -> impl Iterator<Item = (&K, Option<&V>, Option<&V>)> {
        self.entries.iter().filter_map(|(key, entry)| {
            let Entry::Other(books) = entry else { return None };
            let missed = books.kernel.is_some() || books.users > books.retiring;
            (books.kernel != books.wanted && missed).then_some((key, books.kernel.as_ref(), books.wanted.as_ref()))
        })
    }
}

/// What was found in the kernel and nobody wants yet.
fn stray<V>(value: V) -> Entry<V> {
    Entry::Other(Box::new(Books { kernel: Some(value), wanted: None, users: 0, retiring: 0 }))
}
