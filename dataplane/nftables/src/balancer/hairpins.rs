//! Which addresses need a hairpin pair, counted by the pools that lead to them.
//!
//! Many pools share an address, so the pair is nobody's own. The counts are rebuilt from what the kernel has; while they
//! may be wrong (an answer of the kernel was lost) no pair is removed: a pair too many does nothing.

use std::{collections::HashMap, net::IpAddr};

use super::pool::Pool;

/// The counts, with a change that is on its way.
#[derive(Debug, Default)]
pub(super) struct Hairpins {
    pools: HashMap<IpAddr, u32>,
    staged: Vec<(IpAddr, bool)>,
    unsure: bool,
}

impl Hairpins {
    /// Counts anew.
    pub(super) fn rebuild<'a>(&mut self, pools: impl Iterator<Item = &'a Pool>) {
        *self = Self::default();
        for address in pools.flat_map(addresses) {
            *self.pools.entry(address).or_default() += 1;
        }
    }

    /// A pool changes: the addresses that now need a pair, and those that need none any more.
    pub(super) fn stage(&mut self, before: Option<&Pool>, after: Option<&Pool>) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let of = |pool: Option<&Pool>| pool.map(addresses).unwrap_or_default();
        let (old, new) = (of(before), of(after));
        let (mut needed, mut free) = (Vec::new(), Vec::new());
        let unpaired = before.is_some_and(|pool| pool.unpaired > 0);
        for address in &new {
            if old.binary_search(address).is_err() {
                if self.add(*address) {
                    needed.push(*address);
                }
                self.staged.push((*address, true));
            } else if unpaired {
                needed.push(*address);
            }
        }
        for address in old.into_iter().filter(|address| new.binary_search(address).is_err()) {
            if self.remove(address) && !self.unsure {
                free.push(address);
            }
            self.staged.push((address, false));
        }
        (needed, free)
    }

    /// What was staged is in force.
    pub(super) fn commit(&mut self) {
        self.staged.clear();
    }

    /// It is not, or may not be.
    pub(super) fn roll_back(&mut self, unsure: bool) {
        for (address, added) in std::mem::take(&mut self.staged) {
            if added {
                self.remove(address);
            } else {
                self.add(address);
            }
        }
        self.unsure |= unsure;
    }

    /// Whether it is the first.
    fn add(&mut self, address: IpAddr) -> bool {
        let pools = self.pools.entry(address).or_default();
        *pools += 1;
        *pools == 1
    }

    /// Whether it was the last.
    fn remove(&mut self, address: IpAddr) -> bool {
        let Some(pools) = self.pools.get_mut(&address) else { return false };
        *pools -= 1;
        let last = *pools == 0;
        if last {
            self.pools.remove(&address);
        }
        last
    }
}

/// Each address once, ascending.
fn addresses(pool: &Pool) -> Vec<IpAddr> {
    let mut addresses: Vec<_> = pool.endpoints().map(|endpoint| endpoint.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

#[cfg(test)]
mod tests {
    use vipd_model::EndpointKey;

    use super::*;

    fn pool(addresses: &[u8]) -> Pool {
        let endpoint = |n: &u8| EndpointKey { address: [10, 0, 0, *n].into(), port: 80 };
        Pool { direct: (0..).zip(addresses.iter().map(endpoint)).collect(), ..Pool::default() }
    }

    #[test]
    fn a_shared_address_keeps_its_pair_until_the_last_pool_goes() {
        let mut hairpins = Hairpins::default();
        let (a, b) = (pool(&[1, 2, 2]), pool(&[2]));
        assert_eq!(hairpins.stage(None, Some(&a)).0.len(), 2);
        hairpins.commit();
        assert_eq!(hairpins.stage(None, Some(&b)), (vec![], vec![]));
        hairpins.commit();
        assert_eq!(hairpins.stage(Some(&a), None).1, [IpAddr::from([10, 0, 0, 1])]);
        hairpins.roll_back(false);
        assert_eq!(hairpins.stage(Some(&a), None).1.len(), 1, "what failed is not counted");
        hairpins.commit();
        assert_eq!(hairpins.stage(Some(&b), None).1.len(), 1);
    }
}
