//! Weights laid end to end: a line of `total` places on which every member owns as many as its weight.
//!
//! A place is turned into its member by binary search, so memory is linear in the members, whatever the weights are.

use super::Member;

/// The line. Weights are divided by their greatest common divisor.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    /// Where each member's places end; strictly ascending.
    ends: Box<[u64]>,
    /// All weights are the same, so each member owns one place.
    even: bool,
}

impl Weights {
    pub(super) fn new(members: &[Member]) -> Self {
        let divisor = members.iter().fold(0, |divisor, member| gcd(divisor, u64::from(member.weight.get())));
        let mut end = 0;
        let ends: Box<[u64]> = members
            .iter()
            .map(|member| {
                end += u64::from(member.weight.get()) / divisor;
                end
            })
            .collect();
        let even = end == ends.len() as u64;
        Self { ends, even }
    }

    /// How many members.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// How many places; 0 only without members.
    pub(super) fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether all have the same weight.
    pub(super) fn even(&self) -> bool {
        self.even
    }

    /// Who owns a place below the total.
    pub(super) fn at(&self, place: u64) -> usize {
        if self.even { place as usize } else { self.ends.partition_point(|&end| end <= place) }
    }

    /// A member's first place.
    pub(super) fn start(&self, member: usize) -> u64 {
        member.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0)
    }

    /// A member's weight, in places.
    pub(super) fn weight(&self, member: usize) -> u64 {
        self.ends.get(member).copied().unwrap_or(0) - self.start(member)
    }

    /// Each member's part of the whole.
    pub(super) fn shares(&self) -> Vec<f64> {
        (0..self.len()).map(|member| self.weight(member) as f64 / self.total() as f64).collect()
    }
}

/// The greatest common divisor; that of 0 and a number is the number.
pub(super) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
