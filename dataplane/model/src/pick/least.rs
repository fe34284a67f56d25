//! LC, WLC, SED and NQ: whoever carries least.
//!
//! Among the equally busy, chance decides by weight (for LC evenly), so that flows too short to be seen are spread too.
//! Linear in the members: every load is looked at.

use std::net::IpAddr;

use super::probe::{mix, scale};
use super::{Draw, Load, Member};

/// What is least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// LC: flows.
    Connections,
    /// WLC: flows per weight.
    PerWeight,
    /// SED: flows per weight, the new one counted. An idle light member is worse than an idle heavy one.
    ExpectedDelay,
    /// NQ: anybody idle first, then as SED.
    NeverQueue,
}

impl Cost {
    /// The cost as a fraction.
    fn of(self, active: u32, weight: u16) -> (u64, u64) {
        let (active, weight) = (u64::from(active), u64::from(weight));
        match self {
            Self::Connections => (active, 1),
            Self::PerWeight => (active, weight),
            Self::NeverQueue if active == 0 => (0, weight),
            Self::ExpectedDelay | Self::NeverQueue => (active + 1, weight),
        }
    }

    /// A member's part when chance decides among equals.
    fn tie(self, weight: u16) -> u64 {
        if self == Self::Connections { 1 } else { weight.into() }
    }
}

/// Whoever carries least.
#[derive(Clone, Debug)]
pub(super) struct Least {
    cost: Cost,
    weights: Box<[u16]>,
}

impl Least {
    pub(super) fn new(cost: Cost, members: &[Member]) -> Self {
        Self { cost, weights: members.iter().map(|member| member.weight.get()).collect() }
    }

    pub(super) fn weight(&self, member: usize) -> u16 {
        self.weights.get(member).copied().unwrap_or(0)
    }

    /// One pass, since loads change meanwhile: each equal takes the lead with its part of the weight of all equals so
    /// far, which in the end gives every one its part (reservoir sampling).
    pub(super) fn pick<L: Load>(&self, draw: &Draw<'_, L>) -> Option<usize> {
        let mut best: Option<(usize, (u64, u64))> = None;
        let mut equals = 0;
        for (member, &weight) in self.weights.iter().enumerate() {
            if draw.load.excluded(member) {
                continue;
            }
            let cost = self.cost.of(draw.load.active(member), weight);
            let tie = self.cost.tie(weight);
            // Fractions, multiplied out: at most 2^33 · 2^16.
            let order = best.map(|(_, least)| (cost.0 * least.1).cmp(&(least.0 * cost.1)));
            match order {
                Some(std::cmp::Ordering::Greater) => continue,
                Some(std::cmp::Ordering::Equal) => {
                    equals += tie;
                    if scale(mix(draw.random.wrapping_add(member as u64)), equals) >= tie {
                        continue;
                    }
                }
                Some(std::cmp::Ordering::Less) | None => equals = tie,
            }
            best = Some((member, cost));
        }
        best.map(|(member, _)| member)
    }

    pub(super) fn shares(&self, _: IpAddr) -> Vec<f64> {
        let heaviest = self.weights.iter().copied().max().unwrap_or(0);
        let part = |weight: u16| match self.cost {
            Cost::ExpectedDelay if weight < heaviest => 0,
            cost => cost.tie(weight),
        };
        let total: u64 = self.weights.iter().map(|&weight| part(weight)).sum();
        self.weights.iter().map(|&weight| part(weight) as f64 / total as f64).collect()
    }
}
