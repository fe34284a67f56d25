//! MH: a consistent hash by Maglev's table (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load
//! Balancer", NSDI 2016, §3.4), with weights.
//!
//! Every member has its own order of preference over the slots of a table, made from its key alone. The members take
//! slots in turn, each the first free one of its order, so a member that leaves gives up its slots and hardly any other
//! slot changes hands. Turns are given by weight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;

use super::probe::{hash, probe, scale};
use super::{Draw, Load, Member};

const SOURCE_SEED: u64 = 0x7669_7064_2d6d_6800;
const OFFSET_SEED: u64 = 0x7669_7064_2d6d_6801;
const SKIP_SEED: u64 = 0x7669_7064_2d6d_6802;

/// Table sizes, prime so that every skip visits every slot, and up to how many members each serves: 100 slots for a
/// member keep the shares within about 1 % and the disruption small. Few sizes, because a set that grows from one size
/// into the next moves most clients; the last, 2.6 MB, is the bound for all larger sets.
pub(super) const SIZES: [(u32, usize); 3] = [(8_191, 80), (65_537, 655), (655_373, usize::MAX)];

/// By hash of the source, Maglev.
#[derive(Clone, Debug)]
pub(super) struct Maglev {
    /// The member of each slot; empty only without members.
    table: Box<[u32]>,
    members: usize,
    port: bool,
}

impl Maglev {
    pub(super) fn new(members: &[Member], port: bool) -> Self {
        let size = SIZES.iter().find(|(_, most)| members.len() <= *most).map_or(SIZES[2].0, |(size, _)| *size);
        Self { table: fill(members, size), members: members.len(), port }
    }

    pub(super) fn hashes_port(&self) -> bool {
        self.port
    }

    pub(super) fn pick<L: Load>(&self, draw: &Draw<'_, L>) -> Option<usize> {
        let port = if self.port { draw.source.port() } else { 0 };
        let slot = |hash| self.table.get(scale(hash, self.table.len() as u64) as usize).map_or(0, |&m| m as usize);
        probe(self.members, hash(SOURCE_SEED, draw.source.ip(), port), draw.load, slot)
    }

    pub(super) fn shares(&self, _: IpAddr) -> Vec<f64> {
        let mut slots = vec![0u32; self.members];
        for &member in &self.table {
            slots[member as usize] += 1;
        }
        slots.into_iter().map(|count| f64::from(count) / self.table.len() as f64).collect()
    }
}

/// The member of each slot of a table of this size, for engines that hash in the kernel and only need the table. The size
/// must be prime; 100 slots for a member keep the shares within about 1 %.
#[must_use]
pub fn table(members: &[Member], size: u32) -> Box<[u32]> {
    fill(members, size)
}

/// A member's order of preference: offset, offset + skip, offset + 2 · skip …, modulo the size.
struct Preference {
    next: u32,
    skip: u32,
}

impl Preference {
    fn of(member: &Member, size: u32) -> Self {
        let below = |seed, below: u32| scale(hash(seed, member.key.address, member.key.port), below.into()) as u32;
        Self { next: below(OFFSET_SEED, size), skip: 1 + below(SKIP_SEED, size - 1) }
    }

    fn advance(&mut self, size: u32) -> u32 {
        let slot = self.next;
        self.next = (slot + self.skip) % size;
        slot
    }
}

/// Gives the slots out. Whoever has the fewest slots for its weight is next, of equals the lower key; so everybody gets
/// a slot before anybody gets a second one for the same weight.
fn fill(members: &[Member], size: u32) -> Box<[u32]> {
    const FREE: u32 = u32::MAX;
    if members.is_empty() {
        return Box::default();
    }
    let mut preferences: Vec<Preference> = members.iter().map(|member| Preference::of(member, size)).collect();
    // Slots per weight, in units of 2^-32: at most 655,373 · 2^32 < 2^52.
    let mut queue: BinaryHeap<Reverse<(u64, u32)>> = (0u32..).zip(members).map(|(i, _)| Reverse((0, i))).collect();
    let mut taken = vec![0u64; members.len()];
    let mut table = vec![FREE; size as usize].into_boxed_slice();
    for _ in 0..size {
        let Some(mut next) = queue.peek_mut() else { break };
        let Reverse((_, member)) = *next;
        let index = member as usize;
        let slot = loop {
            let slot = preferences[index].advance(size) as usize;
            if table[slot] == FREE {
                break slot;
            }
        };
        table[slot] = member;
        taken[index] += 1;
        *next = Reverse(((taken[index] << 32) / u64::from(members[index].weight.get()), member));
    }
    table
}
