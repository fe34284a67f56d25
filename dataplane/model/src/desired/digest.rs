//! The digest of the declared state: equal on nodes that were told the same, in whatever order.
//!
//! A wrapping sum of one hash per service definition and one per endpoint, so that a change costs what it touches.
//! It finds accidents, not attacks. Left out: revisions, times, what follows from the whole state (`waiting`), the order
//! of arrival, sessions, and what an operator chose for this node (its default engine).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::endpoints::{Visit, difference};
use crate::endpoint::Endpoint;
use crate::owner::{Owner, OwnerRecord};
use crate::service::Service;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest(pub(crate) u64);

impl Digest {
    /// Takes a service's change into the sum.
    pub(crate) fn service(&mut self, before: Option<&Service>, after: Option<&Service>) {
        let kept =
            |(a, b): (&Service, &Service)| Arc::ptr_eq(&a.definition, &b.definition) && a.scheduler == b.scheduler;
        if !before.zip(after).is_some_and(kept) {
            self.replace(before.map(declared), after.map(declared));
        }
        let old: &[Endpoint] = before.map_or(&[], |s| &s.endpoints);
        let new: &[Endpoint] = after.map_or(&[], |s| &s.endpoints);
        let Some(key) = before.or(after).map(|s| &s.key) else { return };
        let of = |e: &Endpoint| hash(&(key, &Endpoint { left_at: None, ..e.clone() }));
        difference(old, new, Visit::Changed, |a, b| self.replace(a.map(of), b.map(of)));
    }

    /// Takes an owner's change into the sum. Settings that are all defaults count as nothing: an owner that has come
    /// to be by its first write is no other than one that said so.
    pub(crate) fn owner(&mut self, before: Option<&OwnerRecord>, after: Option<&OwnerRecord>) {
        let of = |record: &OwnerRecord| {
            let plain = Owner::new(record.owner.name.clone());
            if record.owner == plain { 0 } else { hash(&record.owner) }
        };
        self.replace(before.map(of), after.map(of));
    }

    fn replace(&mut self, before: Option<u64>, after: Option<u64>) {
        self.0 = self.0.wrapping_sub(before.unwrap_or(0)).wrapping_add(after.unwrap_or(0));
    }
}

fn declared(service: &Service) -> u64 {
    hash(&(&service.key, &*service.definition, &service.scheduler))
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = Fixed(0x9e37_79b9_7f4a_7c15);
    value.hash(&mut hasher);
    hasher.finish()
}

/// A hasher without a random key, the same on every machine: the std one promises neither.
struct Fixed(u64);

impl Fixed {
    fn word(&mut self, word: u64) {
        // A folded multiplication (as in wyhash): both halves of the product depend on every bit of both factors.
        let product = u128::from(self.0 ^ word) * u128::from(0xa076_1d64_78bd_642f_u64);
        self.0 = (product as u64) ^ ((product >> 64) as u64) ^ word.rotate_left(29);
    }
}

impl Hasher for Fixed {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }

    fn write_u8(&mut self, value: u8) {
        self.word(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.word(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.word(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.word(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.word(value as u64);
    }

    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.word(0xe703_7ed1_a0b4_28db);
        last.word(0x8ebc_6af0_9c88_c6e3);
        last.0
    }
}
