//! LBLC and LBLCR: flows to one destination go to one member (or few), while it is not overloaded. For caches.
//!
//! IPVS remembers which member a destination was given to, for a while. Here the destination's hash gives it, so there
//! is nothing to remember, bound, expire or lose in a restart: LBLC goes home as soon as the home has room again, and
//! LBLCR's set of replicas is as long as the load needs. Overloaded is as in IPVS: more flows than weight, while
//! somebody else has fewer than half of its weight.

use std::net::IpAddr;

use super::hash::{by_hash, destination_hash};
use super::least::{Cost, Least};
use super::probe::rehash;
use super::weights::Weights;
use super::{Draw, Idle, Load, Member};

/// The most members that serve one destination before all do.
const REPLICAS: u64 = 8;

/// The destination's members while they have room.
#[derive(Clone, Debug)]
pub(super) struct Locality {
    weights: Weights,
    least: Least,
    /// How many members a destination has.
    replicas: u64,
}

impl Locality {
    /// LBLC.
    pub(super) fn single(members: &[Member]) -> Self {
        Self { weights: Weights::new(members), least: Least::new(Cost::PerWeight, members), replicas: 1 }
    }

    /// LBLCR.
    pub(super) fn replicated(members: &[Member]) -> Self {
        Self { replicas: REPLICAS, ..Self::single(members) }
    }

    pub(super) fn pick<L: Load>(&self, draw: &Draw<'_, L>) -> Option<usize> {
        let home = destination_hash(draw.destination);
        let mut replicas = (0..self.replicas).filter_map(|n| by_hash(&self.weights, rehash(home, n), draw.load));
        let first = replicas.next()?;
        let flows_and_weight = |member| (u64::from(draw.load.active(member)), u64::from(self.least.weight(member)));
        let has_room = |&member: &usize| {
            let (flows, weight) = flows_and_weight(member);
            flows <= weight
        };
        if let Some(roomy) = std::iter::once(first).chain(replicas).find(has_room) {
            return Some(roomy);
        }
        let least = self.least.pick(draw)?;
        let (flows, weight) = flows_and_weight(least);
        Some(if flows * 2 < weight { least } else { first })
    }

    pub(super) fn shares(&self, destination: IpAddr) -> Vec<f64> {
        super::one(by_hash(&self.weights, destination_hash(destination), &Idle), self.weights.len())
    }
}
