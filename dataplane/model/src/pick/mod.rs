//! Pickers: which member of an endpoint set takes a new flow.
//!
//! A [`Picker`] is made once from an algorithm and a set, and is then asked for every flow; it never changes and keeps
//! nothing. What varies (a turn, a random number, the packet, who is busy) comes in with a [`Draw`], so a pick can be
//! repeated, and Explain can ask what the proxy will do. Hash seeds are fixed: a restart sends a client where it was.
//!
//! Weights hold for every algorithm but LC, whose point is to ignore them, and FO, which ranks by them; without weights
//! in play RR is the plain one. After a failed attempt ask again with the same draw and the failed member excluded.
//! Each family of algorithms is a file: turns, chance, hash, maglev, least, rank, locality.

mod chance;
mod hash;
mod least;
mod locality;
mod maglev;
mod probe;
mod rank;
#[cfg(test)]
mod tests;
mod turns;
mod weights;

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

pub use maglev::table as maglev_table;

use crate::endpoint::EndpointKey;
use crate::scheduler::Algorithm;
use crate::select::{EndpointSet, Selected};

/// One endpoint that may be picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who it is; MH hashes it, so that its clients stay whatever the others do.
    pub key: EndpointKey,
    /// Its weight; what has weight 0 is in no set.
    pub weight: NonZeroU16,
}

/// What is known of the members at the time of a pick; asked by their index, on the path of every flow.
pub trait Load {
    /// Flows that the member carries now.
    fn active(&self, member: usize) -> u32;
    /// Whether it must not be picked: it has just failed, or has reached its `max_connections`.
    fn excluded(&self, member: usize) -> bool;
}

/// Nobody carries anything and nobody is excluded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Idle;

impl Load for Idle {
    fn active(&self, _: usize) -> u32 {
        0
    }
    fn excluded(&self, _: usize) -> bool {
        false
    }
}

/// A closure for each question.
impl<A: Fn(usize) -> u32, E: Fn(usize) -> bool> Load for (A, E) {
    fn active(&self, member: usize) -> u32 {
        self.0(member)
    }
    fn excluded(&self, member: usize) -> bool {
        self.1(member)
    }
}

/// What one pick is made from.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a, L> {
    /// Counts the flows of this set: 0, 1, 2 …, wrapping. RR and WRR follow it.
    pub turn: u64,
    /// Uniform over all values and new for every flow. RANDOM, P2C, and who of the equally busy.
    pub random: u64,
    /// The client. SH and MH.
    pub source: SocketAddr,
    /// The address that it asked for. DH, LBLC, LBLCR.
    pub destination: IpAddr,
    /// The members now.
    pub load: &'a L,
}

/// One algorithm over one set.
#[derive(Clone, Debug)]
pub struct Picker(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Turns(turns::Turns),
    Random(chance::Random),
    TwoChoices(chance::TwoChoices),
    Source(hash::SourceHash),
    Destination(hash::DestinationHash),
    Maglev(maglev::Maglev),
    Least(least::Least),
    Rank(rank::Rank),
    Locality(locality::Locality),
}

/// The same expression for every kind.
macro_rules! each {
    ($self:expr, $picker:ident => $do:expr) => {
        match &$self.0 {
            Kind::Turns($picker) => $do,
            Kind::Random($picker) => $do,
            Kind::TwoChoices($picker) => $do,
            Kind::Source($picker) => $do,
            Kind::Destination($picker) => $do,
            Kind::Maglev($picker) => $do,
            Kind::Least($picker) => $do,
            Kind::Rank($picker) => $do,
            Kind::Locality($picker) => $do,
        }
    };
}

impl Picker {
    /// Makes a picker; linear in the members, except that MH fills a table of 8,191 to 655,373 slots.
    /// `Algorithm::Default` is round robin, `hash_source_port` concerns SH and MH only.
    #[must_use]
    pub fn new(algorithm: Algorithm, hash_source_port: bool, members: &[Member]) -> Self {
        let weights = || weights::Weights::new(members);
        Self(match algorithm {
            Algorithm::Default | Algorithm::Rr | Algorithm::Wrr => Kind::Turns(turns::Turns::new(members)),
            Algorithm::Random => Kind::Random(chance::Random::new(weights())),
            Algorithm::P2c => Kind::TwoChoices(chance::TwoChoices::new(weights())),
            Algorithm::Sh => Kind::Source(hash::SourceHash::new(weights(), hash_source_port)),
            Algorithm::Dh => Kind::Destination(hash::DestinationHash::new(weights())),
            Algorithm::Mh => Kind::Maglev(maglev::Maglev::new(members, hash_source_port)),
            Algorithm::Lc => Kind::Least(least::Least::new(least::Cost::Connections, members)),
            Algorithm::Wlc => Kind::Least(least::Least::new(least::Cost::PerWeight, members)),
            Algorithm::Sed => Kind::Least(least::Least::new(least::Cost::ExpectedDelay, members)),
            Algorithm::Nq => Kind::Least(least::Least::new(least::Cost::NeverQueue, members)),
            Algorithm::Fo => Kind::Rank(rank::Rank::fail_over(members)),
            Algorithm::Ovf => Kind::Rank(rank::Rank::overflow(members)),
            Algorithm::Lblc => Kind::Locality(locality::Locality::single(members)),
            Algorithm::Lblcr => Kind::Locality(locality::Locality::replicated(members)),
        })
    }

    /// A picker for one of a service's sets. What it picks is an index into the set's members.
    #[must_use]
    pub fn of(selected: &Selected, set: &EndpointSet) -> Self {
        let endpoints = set.members.iter().filter_map(|&index| selected.service.endpoints.get(index as usize));
        let members: Vec<Member> = endpoints
            .map(|e| Member { key: e.key, weight: NonZeroU16::new(e.weight).unwrap_or(NonZeroU16::MIN) })
            .collect();
        Self::new(selected.algorithm, selected.service.scheduler.hash_source_port, &members)
    }

    /// Picks a member: its index. None only if there is none, or all are excluded.
    #[inline]
    #[must_use]
    pub fn pick<L: Load>(&self, draw: &Draw<'_, L>) -> Option<usize> {
        each!(self, picker => picker.pick(draw))
    }

    /// The share of new flows that each member gets while nobody carries anything. LC, WLC, SED, NQ, OVF, P2C, LBLC and
    /// LBLCR move away from it as flows stay.
    #[must_use]
    pub fn shares(&self, destination: IpAddr) -> Vec<f64> {
        each!(self, picker => picker.shares(destination))
    }

    /// The member that a hash decides for this client, whatever turn, chance and load are; absent if none does, or if it
    /// takes a port that is not known.
    #[must_use]
    pub fn pinned(&self, source: IpAddr, source_port: Option<u16>, destination: IpAddr) -> Option<usize> {
        let decided = match &self.0 {
            Kind::Source(picker) => source_port.is_some() || !picker.hashes_port(),
            Kind::Maglev(picker) => source_port.is_some() || !picker.hashes_port(),
            Kind::Destination(_) => true,
            _ => false,
        };
        let source = SocketAddr::new(source, source_port.unwrap_or(0));
        let draw = Draw { turn: 0, random: 0, source, destination, load: &Idle };
        if decided { self.pick(&draw) } else { None }
    }
}

/// Shares where one member gets everything.
pub(crate) fn one(member: Option<usize>, members: usize) -> Vec<f64> {
    (0..members).map(|index| if Some(index) == member { 1.0 } else { 0.0 }).collect()
}
