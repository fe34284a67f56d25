//! RR and WRR: in turn.
//!
//! The places of [`Weights`] are walked with a stride that shares no divisor with their number, so a period of `total`
//! turns meets every place once: each member gets exactly its weight. The stride is near total / golden ratio, which
//! spreads a member's turns over the period (three-distance theorem). No table, no state but the caller's counter. With
//! equal weights the stride is 1, plain round robin.

use std::net::IpAddr;

use super::probe::{mix, next_free, scale};
use super::weights::Weights;
use super::{Draw, Load, Member};

/// After so many levels of excluded members the rest is walked.
const LEVELS: u32 = 16;

/// How far from total / golden ratio a stride is looked for, on either side.
const NEIGHBOURHOOD: u64 = 64;

/// In turn, by weight.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    weights: Weights,
    stride: u64,
}

impl Turns {
    pub(super) fn new(members: &[Member]) -> Self {
        let weights = Weights::new(members);
        let stride = if weights.even() { 1 } else { spreading_stride(weights.total()) };
        Self { weights, stride }
    }

    /// A turn that falls on an excluded member is handed on by the same rule: that member's own turns are numbered, and
    /// the number is the turn of the next level. So the others share them in turn and by weight, instead of the
    /// neighbour getting them all.
    pub(super) fn pick<L: Load>(&self, draw: &Draw<'_, L>) -> Option<usize> {
        let total = self.weights.total();
        if total == 0 {
            return None;
        }
        let mut turn = draw.turn;
        for _ in 0..LEVELS {
            let (period, step) = (turn / total, turn % total);
            let place = multiply_modulo(step, self.stride, total);
            let member = self.weights.at(place);
            if !draw.load.excluded(member) {
                return Some(member);
            }
            let own = place - self.weights.start(member);
            turn = period.wrapping_mul(self.weights.weight(member)).wrapping_add(own);
        }
        let members = self.weights.len();
        next_free(members, scale(mix(draw.turn), members as u64) as usize, draw.load)
    }

    pub(super) fn shares(&self, _: IpAddr) -> Vec<f64> {
        self.weights.shares()
    }
}

/// `a · b mod modulus` for factors below the modulus, which is below 2^32 unless a set has more than 65,536 members.
fn multiply_modulo(a: u64, b: u64, modulus: u64) -> u64 {
    match u32::try_from(modulus) {
        Ok(_) => a * b % modulus,
        Err(_) => (u128::from(a) * u128::from(b) % u128::from(modulus)) as u64,
    }
}

/// A stride near total / golden ratio that is coprime to the total and, of those near, the most irregular: the one whose
/// continued fraction stride / total has the least sum of terms. A large term would mean runs of one member.
fn spreading_stride(total: u64) -> u64 {
    // 0.618… as a 32-bit fraction; totals stay below 2^48 (60,000 endpoints of 65,535 are below 2^32).
    const INVERSE_GOLDEN: u128 = 2_654_435_769;
    let ideal = ((u128::from(total) * INVERSE_GOLDEN) >> 32) as u64;
    let near = ideal.saturating_sub(NEIGHBOURHOOD).max(1)..=(ideal + NEIGHBOURHOOD).min(total.max(2) - 1);
    near.filter_map(|stride| irregularity(stride, total).map(|sum| (sum, stride.abs_diff(ideal), stride)))
        .min()
        .map_or(1, |(.., stride)| stride)
}

/// The sum of the terms of the continued fraction, by Euclid's algorithm; absent if the two have a common divisor.
fn irregularity(stride: u64, total: u64) -> Option<u64> {
    let (mut a, mut b, mut sum) = (total, stride, 0);
    while b != 0 {
        sum += a / b;
        (a, b) = (b, a % b);
    }
    (a == 1).then_some(sum)
}
