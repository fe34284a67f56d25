//! RANDOM and P2C: by chance.

use std::net::IpAddr;

use super::probe::{mix, probe, scale};
use super::weights::Weights;
use super::{Draw, Load};

/// At random, by weight.
#[derive(Clone, Debug)]
pub(super) struct Random {
    weights: Weights,
}

impl Random {
    pub(super) fn new(weights: Weights) -> Self {
        Self { weights }
    }

    pub(super) fn pick<L: Load>(&self, draw: &Draw<'_, L>) -> Option<usize> {
        by_weight(&self.weights, draw.random, draw.load)
    }

    pub(super) fn shares(&self, _: IpAddr) -> Vec<f64> {
        self.weights.shares()
    }
}

/// Two at random, by weight, and of them the one that carries less for its weight; the first if they are equal.
#[derive(Clone, Debug)]
pub(super) struct TwoChoices {
    weights: Weights,
}

impl TwoChoices {
    pub(super) fn new(weights: Weights) -> Self {
        Self { weights }
    }

    pub(super) fn pick<L: Load>(&self, draw: &Draw<'_, L>) -> Option<usize> {
        let first = by_weight(&self.weights, draw.random, draw.load)?;
        let others = (|member| draw.load.active(member), |member| member == first || draw.load.excluded(member));
        let Some(second) = by_weight(&self.weights, mix(draw.random), &others) else {
            return Some(first);
        };
        // active / weight, multiplied out.
        let cost = |of: usize, other: usize| u128::from(draw.load.active(of)) * u128::from(self.weights.weight(other));
        Some(if cost(second, first) < cost(first, second) { second } else { first })
    }

    pub(super) fn shares(&self, _: IpAddr) -> Vec<f64> {
        self.weights.shares()
    }
}

fn by_weight<L: Load>(weights: &Weights, random: u64, load: &L) -> Option<usize> {
    probe(weights.len(), random, load, |hash| weights.at(scale(hash, weights.total())))
}
