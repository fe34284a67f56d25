//! Objects, and the ordered operations from some to others.

use std::collections::BTreeMap;
use std::fmt;

/// What one service, or the whole kernel, holds.
pub type Objects<K, V> = BTreeMap<K, V>;

/// One change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation<K, V> {
    /// It is not there yet.
    Add {
        /// Which.
        key: K,
        /// What it is to be.
        value: V,
    },
    /// It is there, otherwise.
    Change {
        /// Which.
        key: K,
        /// What it is.
        before: V,
        /// What it is to be.
        after: V,
    },
    /// It is to go.
    Remove {
        /// Which.
        key: K,
        /// What it was.
        before: V,
    },
}

impl<K, V> Operation<K, V> {
    /// The object's name.
    pub fn key(&self) -> &K {
        match self {
            Self::Add { key, .. } | Self::Change { key, .. } | Self::Remove { key, .. } => key,
        }
    }

    /// What it is after the operation; absent: gone.
    pub fn after(&self) -> Option<&V> {
        match self {
            Self::Add { value, .. } => Some(value),
            Self::Change { after, .. } => Some(after),
            Self::Remove { .. } => None,
        }
    }

    /// What it was before; absent: nothing.
    pub fn before(&self) -> Option<&V> {
        match self {
            Self::Add { .. } => None,
            Self::Change { before, .. } | Self::Remove { before, .. } => Some(before),
        }
    }
}

impl<K: fmt::Display, V: fmt::Display> fmt::Display for Operation<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add { key, value } => write!(f, "add {key} {value}"),
            Self::Change { key, before, after } => write!(f, "change {key} {before} → {after}"),
            Self::Remove { key, before } => write!(f, "remove {key} {before}"),
        }
    }
}

/// Make before break: what is made or changed first, what goes afterwards. Between the two, capture is moved (guard) and
/// new flows go to another engine (switch).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<K, V> {
    /// Adds and changes, in key order.
    pub make: Vec<Operation<K, V>>,
    /// Removals, in reverse key order.
    pub finish: Vec<Operation<K, V>>,
}

impl<K, V> Default for Plan<K, V> {
    fn default() -> Self {
        Self { make: Vec::new(), finish: Vec::new() }
    }
}

impl<K: Ord + Clone, V: Eq + Clone> Plan<K, V> {
    /// The difference, object by object.
    pub fn difference(have: &Objects<K, V>, want: &Objects<K, V>) -> Self {
        let mut plan = Self::default();
        for (key, value) in want {
            match have.get(key) {
                Some(before) if before == value => {}
                Some(before) => {
                    plan.make.push(Operation::Change {
                        key: key.clone(),
                        before: before.clone(),
                        after: value.clone(),
                    });
                }
                None => plan.make.push(Operation::Add { key: key.clone(), value: value.clone() }),
            }
        }
        for (key, before) in have.iter().rev().filter(|(key, _)| !want.contains_key(key)) {
            plan.finish.push(Operation::Remove { key: key.clone(), before: before.clone() });
        }
        plan
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.make.is_empty() && self.finish.is_empty()
    }
}
