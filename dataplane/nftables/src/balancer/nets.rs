//! From where endpoints answer: networks and ports, counted by the pools that lead there.
//!
//! INVALID packets from an endpoint are dropped: they would reach the client with the endpoint's own address. An element
//! for every endpoint would be half of a load, so they are told by network (/24, /64) and port. Many pools share one, so
//! the element is nobody's own. The counts are rebuilt from what the kernel has; while they may be wrong (an answer of
//! the kernel was lost) none is removed.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use vipd_model::EndpointKey;

use super::pool::Pool;

/// A network and a port of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Net {
    /// First address.
    pub(super) address: IpAddr,
    /// The endpoints' own.
    pub(super) port: u16,
}

/// Lengths of these networks.
pub(super) const LENGTH_V4: u8 = 24;
/// For IPv6.
pub(super) const LENGTH_V6: u8 = 64;

impl Net {
    /// Where an endpoint is; none of one that has the client's port.
    pub(super) fn of(endpoint: EndpointKey) -> Option<Self> {
        let address = match endpoint.address {
            IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & u32::MAX << (32 - LENGTH_V4)).into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & u128::MAX << (128 - LENGTH_V6)).into(),
        };
        (endpoint.port != 0).then_some(Self { address, port: endpoint.port })
    }
}

/// The counts, with a change that is on its way.
#[derive(Debug, Default)]
pub(super) struct Nets {
    pools: HashMap<Net, u32>,
    staged: Vec<(Net, bool)>,
    unsure: bool,
}

impl Nets {
    /// Counts anew.
    pub(super) fn rebuild<'a>(&mut self, pools: impl Iterator<Item = &'a Pool>) {
        *self = Self::default();
        for net in pools.flat_map(nets) {
            *self.pools.entry(net).or_default() += 1;
        }
    }

    /// A pool changes: what is new, and what is gone.
    pub(super) fn stage(&mut self, before: Option<&Pool>, after: Option<&Pool>) -> (Vec<Net>, Vec<Net>) {
        let of = |pool: Option<&Pool>| pool.map(nets).unwrap_or_default();
        let (old, new) = (of(before), of(after));
        let (mut needed, mut free) = (Vec::new(), Vec::new());
        let unlisted = before.is_some_and(|pool| pool.unlisted > 0);
        for net in &new {
            if old.binary_search(net).is_err() {
                if self.add(*net) {
                    needed.push(*net);
                }
                self.staged.push((*net, true));
            } else if unlisted {
                needed.push(*net);
            }
        }
        for net in old.into_iter().filter(|net| new.binary_search(net).is_err()) {
            // One that was missing cannot be deleted; one that was not is found as a stray by the next reading.
            if self.remove(net) && !self.unsure && !unlisted {
                free.push(net);
            }
            self.staged.push((net, false));
        }
        (needed, free)
    }

    /// What was staged is in force.
    pub(super) fn commit(&mut self) {
        self.staged.clear();
    }

    /// It is not, or may not be.
    pub(super) fn roll_back(&mut self, unsure: bool) {
        for (net, added) in std::mem::take(&mut self.staged) {
            if added {
                self.remove(net);
            } else {
                self.add(net);
            }
        }
        self.unsure |= unsure;
    }

    /// Whether it is the first.
    fn add(&mut self, net: Net) -> bool {
        let pools = self.pools.entry(net).or_default();
        *pools += 1;
        *pools == 1
    }

    /// Whether it was the last.
    fn remove(&mut self, net: Net) -> bool {
        let Some(pools) = self.pools.get_mut(&net) else { return false };
        *pools -= 1;
        let last = *pools == 0;
        if last {
            self.pools.remove(&net);
        }
        last
    }
}

/// Each once, ascending.
pub(super) fn nets(pool: &Pool) -> Vec<Net> {
    let mut nets: Vec<_> = pool.endpoints().filter_map(Net::of).collect();
    nets.sort_unstable();
    nets.dedup();
    nets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(nets: &[u8]) -> Pool {
        let endpoint = |n: &u8| EndpointKey { address: [10, 0, *n, 7].into(), port: 80 };
        Pool { direct: (0..).zip(nets.iter().map(endpoint)).collect(), ..Pool::default() }
    }

    #[test]
    fn a_shared_net_stays_until_the_last_pool_goes() {
        let mut nets = Nets::default();
        let (a, b) = (pool(&[1, 2, 2]), pool(&[2]));
        assert_eq!(nets.stage(None, Some(&a)).0.len(), 2);
        nets.commit();
        assert_eq!(nets.stage(None, Some(&b)), (vec![], vec![]));
        nets.commit();
        assert_eq!(nets.stage(Some(&a), None).1, [Net { address: [10, 0, 1, 0].into(), port: 80 }]);
        nets.roll_back(false);
        assert_eq!(nets.stage(Some(&a), None).1.len(), 1, "what failed is not counted");
        nets.commit();
        assert_eq!(nets.stage(Some(&b), None).1.len(), 1);
    }
}
