//! RR and WRR: in turn.
//!
//! The places of [`Weights`] are walked so that a period of `total` turns meets every place once: each member gets
//! exactly its weight, and its turns are spread over the period. With equal weights that is plain round robin. With few
//! places a table has them in the order of the times at which evenly spaced turns of every member would be due. With
//! many they are walked with a stride that shares no divisor with their number and is near total / golden ratio (three-
//! distance theorem), which needs no table. No state but the caller's counter.

use std::net::IpAddr;

use super::probe::{mix, next_free, scale};
use super::weights::Weights;
use super::{Draw, Load, Member};

/// After so many levels of excluded members the rest is walked.
const LEVELS: u32 = 16;

/// How far from total / golden ratio a stride is looked for, on either side.
const NEIGHBOURHOOD: u64 = 64;

/// Up to so many places there is a table; a stride has too little choice among few.
const TABLE_MAX: u64 = 4_096;

/// In turn, by weight.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    weights: Weights,
    walk: Walk,
}

/// Which place comes at which step of a period.
#[derive(Clone, Debug)]
enum Walk {
    Stride(u64),
    Table(Box<[u64]>),
}

impl Turns {
    pub(super) fn new(members: &[Member]) -> Self {
        let weights = Weights::new(members);
        let walk = match weights.total() {
            _ if weights.even() => Walk::Stride(1),
            total if total <= TABLE_MAX => Walk::Table(spread(&weights)),
            total => Walk::Stride(spreading_stride(total)),
        };
        Self { weights, walk }
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
            let place = match &self.walk {
                Walk::Stride(stride) => multiply_modulo(step, *stride, total),
                Walk::Table(places) => places.get(step as usize).copied().unwrap_or(0),
            };
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

/// Every place, in the order of the times at which they are due: the k-th turn of a member of weight w at (k + ½) / w.
fn spread(weights: &Weights) -> Box<[u64]> {
    let turns_of = |member| (0..weights.weight(member)).map(move |turn| (turn, member));
    let mut turns: Vec<(u64, usize)> = (0..weights.len()).flat_map(turns_of).collect();
    // Fractions, multiplied out; weights and turns are at most TABLE_MAX here.
    let due = |(turn, _): &(u64, usize), other: usize| (2 * turn + 1) * weights.weight(other);
    turns.sort_by(|a, b| due(a, b.1).cmp(&due(b, a.1)).then(a.1.cmp(&b.1)));
    turns.into_iter().map(|(turn, member)| weights.start(member) + turn).collect()
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
