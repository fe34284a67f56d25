//! FO and OVF: the heaviest first.

use std::cmp::Reverse;
use std::net::IpAddr;

use super::least::{Cost, Least};
use super::{Draw, Load, Member};

/// The heaviest first; of equals the one with the lower key, so that it does not change without need.
#[derive(Clone, Debug)]
pub(super) struct Rank {
    /// Members, the heaviest first.
    order: Box<[u32]>,
    /// OVF: a member is full at as many flows as its weight. When all are, it is as WLC: full ones share what is too
    /// much, where IPVS would refuse.
    full: Option<Least>,
}

impl Rank {
    pub(super) fn fail_over(members: &[Member]) -> Self {
        let mut order: Vec<u32> = (0u32..).zip(members).map(|(index, _)| index).collect();
        order.sort_by_key(|&index| members.get(index as usize).map(|member| (Reverse(member.weight), member.key)));
        Self { order: order.into(), full: None }
    }

    pub(super) fn overflow(members: &[Member]) -> Self {
        Self { full: Some(Least::new(Cost::PerWeight, members)), ..Self::fail_over(members) }
    }

    pub(super) fn pick<L: Load>(&self, draw: &Draw<'_, L>) -> Option<usize> {
        let is_full = |member| {
            self.full.as_ref().is_some_and(|least| draw.load.active(member) >= u32::from(least.weight(member)))
        };
        let mut ranked = self.order.iter().map(|&member| member as usize);
        let found = ranked.find(|&member| !draw.load.excluded(member) && !is_full(member));
        found.or_else(|| self.full.as_ref()?.pick(draw))
    }

    pub(super) fn shares(&self, _: IpAddr) -> Vec<f64> {
        let first = self.order.first().map(|&member| member as usize);
        super::one(first, self.order.len())
    }
}
