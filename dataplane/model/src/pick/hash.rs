//! SH and DH: the source, or the destination, decides.
//!
//! As in IPVS, the promise is that one client (one destination) meets one member while the set stays as it is, and that
//! weights hold. When the set changes many move; MH is the algorithm that avoids that. When a member is only excluded,
//! its own clients alone move, and spread over all others.

use std::net::IpAddr;

use super::probe::{hash, probe, scale};
use super::weights::Weights;
use super::{Draw, Load};

const SOURCE_SEED: u64 = 0x7669_7064_2d73_6800;
const DESTINATION_SEED: u64 = 0x7669_7064_2d64_6800;

/// By hash of the source.
#[derive(Clone, Debug)]
pub(super) struct SourceHash {
    weights: Weights,
    port: bool,
}

impl SourceHash {
    pub(super) fn new(weights: Weights, port: bool) -> Self {
        Self { weights, port }
    }

    pub(super) fn hashes_port(&self) -> bool {
        self.port
    }

    pub(super) fn pick<L: Load>(&self, draw: &Draw<'_, L>) -> Option<usize> {
        let port = if self.port { draw.source.port() } else { 0 };
        by_hash(&self.weights, hash(SOURCE_SEED, draw.source.ip(), port), draw.load)
    }

    pub(super) fn shares(&self, _: IpAddr) -> Vec<f64> {
        self.weights.shares()
    }
}

/// By hash of the destination.
#[derive(Clone, Debug)]
pub(super) struct DestinationHash {
    weights: Weights,
}

impl DestinationHash {
    pub(super) fn new(weights: Weights) -> Self {
        Self { weights }
    }

    pub(super) fn pick<L: Load>(&self, draw: &Draw<'_, L>) -> Option<usize> {
        by_hash(&self.weights, destination_hash(draw.destination), draw.load)
    }

    pub(super) fn shares(&self, destination: IpAddr) -> Vec<f64> {
        let owner = by_hash(&self.weights, destination_hash(destination), &super::Idle);
        super::one(owner, self.weights.len())
    }
}

/// The hash that DH and the locality algorithms start from.
pub(super) fn destination_hash(destination: IpAddr) -> u64 {
    hash(DESTINATION_SEED, destination, 0)
}

/// The member that owns the place which a hash falls on.
pub(super) fn by_hash<L: Load>(weights: &Weights, hash: u64, load: &L) -> Option<usize> {
    probe(weights.len(), hash, load, |hash| weights.at(scale(hash, weights.total())))
}
