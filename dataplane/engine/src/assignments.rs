//! Numbers that must be kept while something in the kernel carries them: proxy ports, service ids, slots, marks.

use std::collections::BTreeMap;

/// Named numbers, by pool. An explicit input and output of `render` and `apply`, read back from the kernel at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignments {
    pools: BTreeMap<&'static str, BTreeMap<String, u32>>,
}

impl Assignments {
    /// The number of `name` in `pool`.
    #[must_use]
    pub fn get(&self, pool: &'static str, name: &str) -> Option<u32> {
        self.pools.get(pool)?.get(name).copied()
    }

    /// Records a number that the kernel gave, or that was read back.
    pub fn set(&mut self, pool: &'static str, name: impl Into<String>, number: u32) {
        self.pools.entry(pool).or_default().insert(name.into(), number);
    }

    /// Forgets a number: nothing carries it any more.
    pub fn release(&mut self, pool: &'static str, name: &str) {
        if let Some(numbers) = self.pools.get_mut(pool) {
            numbers.remove(name);
        }
    }

    /// The numbers of a pool, by name.
    pub fn pool(&self, pool: &'static str) -> impl Iterator<Item = (&str, u32)> {
        self.pools.get(pool).into_iter().flatten().map(|(name, number)| (name.as_str(), *number))
    }
}
