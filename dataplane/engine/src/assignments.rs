//! Numbers that must be kept while something in the kernel carries them: proxy ports, service ids, slots, marks.

use std::collections::BTreeMap;

/// Named numbers, by pool. An explicit input and output of `render` and `apply`, read back from the kernel at start.
#[derive(Clone, Debug, Default)]
pub struct Assignments {
    pools: BTreeMap<&'static str, Pool>,
}

/// Numbers of one kind.
#[derive(Clone, Debug, Default)]
struct Pool {
    numbers: BTreeMap<Box<str>, u32>,
    /// How many names each number has, so that a free one is found fast.
    taken: BTreeMap<u32, u32>,
    /// No number below is free.
    hint: u32,
}

impl PartialEq for Assignments {
    fn eq(&self, other: &Self) -> bool {
        let of = |all: &Self| -> Vec<_> {
            all.pools.keys().copied().filter(|pool| all.pool(pool).next().is_some()).collect()
        };
        of(self) == of(other) && of(self).into_iter().all(|pool| self.pool(pool).eq(other.pool(pool)))
    }
}

impl Eq for Assignments {}

impl Pool {
    fn set(&mut self, name: &str, number: u32) {
        self.release(name);
        self.numbers.insert(name.into(), number);
        *self.taken.entry(number).or_default() += 1;
    }

    fn release(&mut self, name: &str) {
        let Some(number) = self.numbers.remove(name) else { return };
        if let Some(users) = self.taken.get_mut(&number) {
            *users -= 1;
            if *users == 0 {
                self.taken.remove(&number);
                self.hint = self.hint.min(number);
            }
        }
    }

    fn free(&mut self, first: u32) -> u32 {
        let mut free = first.max(self.hint);
        for (&number, _) in self.taken.range(free..) {
            if number != free {
                break;
            }
            free += 1;
        }
        self.hint = free;
        free
    }
}

impl Assignments {
    /// The number of `name` in `pool`.
    #[must_use]
    pub fn get(&self, pool: &'static str, name: &str) -> Option<u32> {
        self.pools.get(pool)?.numbers.get(name).copied()
    }

    /// The number of `name` in `pool`; if it has none, the lowest free one from `first` on, which must be the same for
    /// every call of that pool.
    pub fn assign(&mut self, pool: &'static str, name: &str, first: u32) -> u32 {
        let pool = self.pools.entry(pool).or_default();
        if let Some(number) = pool.numbers.get(name) {
            return *number;
        }
        let number = pool.free(first);
        pool.set(name, number);
        number
    }

    /// Records a number that the kernel gave, or that was read back.
    pub fn set(&mut self, pool: &'static str, name: impl AsRef<str>, number: u32) {
        self.pools.entry(pool).or_default().set(name.as_ref(), number);
    }

    /// Forgets a number: nothing carries it any more.
    pub fn release(&mut self, pool: &'static str, name: &str) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.release(name);
        }
    }

    /// The numbers of a pool, by name.
    pub fn pool(&self, pool: &'static str) -> impl Iterator<Item = (&str, u32)> {
        let numbers = self.pools.get(pool).map(|pool| &pool.numbers);
        numbers.into_iter().flatten().map(|(name, number)| (&**name, *number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_given() {
        let mut numbers = Assignments::default();
        numbers.set("ids", "kept", 3);
        let mut assign = |name: &str| numbers.assign("ids", name, 1);
        assert_eq!([assign("a"), assign("b"), assign("c"), assign("a")], [1, 2, 4, 1]);
        numbers.release("ids", "b");
        assert_eq!(numbers.assign("ids", "d", 1), 2);
        assert_eq!(numbers.assign("ids", "e", 1), 5);
        numbers.release("ids", "absent");
        assert_eq!(numbers.get("ids", "b"), None);
    }
}
