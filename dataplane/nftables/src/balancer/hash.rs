//! What the kernel's hash picks: Bob Jenkins' lookup3 as include/linux/jhash.h has it, so that Explain can say which
//! endpoint a client meets before it has come.

use std::net::IpAddr;

use vipd_model::{Endpoint, EndpointKey, EndpointSet, Selected};

use super::{arrange, statements::SEED};

/// The member of a set that a client meets; none where the client's port decides and is not known.
pub(super) fn pinned(
    selected: &Selected,
    set: &EndpointSet,
    source: IpAddr,
    source_port: Option<u16>,
) -> Option<EndpointKey> {
    if !selected.algorithm.is_hash() {
        return None;
    }
    let service = &selected.service;
    let endpoints: Vec<&Endpoint> =
        set.members.iter().filter_map(|&index| service.endpoints.get(index as usize)).collect();
    let slots = arrange::slots(selected.algorithm, &endpoints);
    let mut key = match source {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    if service.scheduler.hash_source_port {
        key.extend(source_port?.to_be_bytes());
        key.extend([0; 2]);
    }
    // `reciprocal_scale`
    let slot = (u64::from(jhash(&key, SEED)) * slots.len() as u64) >> 32;
    slots.get(slot as usize).map(|member| endpoints[*member].key)
}

/// Of whole words only, which is all that a register has.
fn jhash(key: &[u8], seed: u32) -> u32 {
    /// `JHASH_INITVAL`
    const INITIAL: u32 = 0xdead_beef;
    let words: Vec<u32> =
        key.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect();
    let mut state = [INITIAL.wrapping_add(key.len() as u32).wrapping_add(seed); 3];
    let mut rest = &words[..];
    while rest.len() > 3 {
        add(&mut state, &rest[..3]);
        mix(&mut state);
        rest = &rest[3..];
    }
    add(&mut state, rest);
    last(&mut state)
}

fn add(state: &mut [u32; 3], words: &[u32]) {
    for (value, word) in state.iter_mut().zip(words) {
        *value = value.wrapping_add(*word);
    }
}

/// `__jhash_mix`
fn mix([a, b, c]: &mut [u32; 3]) {
    let round = |x: &mut u32, y: u32, z: &mut u32, by| {
        *x = x.wrapping_sub(*z) ^ z.rotate_left(by);
        *z = z.wrapping_add(y);
    };
    round(a, *b, c, 4);
    round(b, *c, a, 6);
    round(c, *a, b, 8);
    round(a, *b, c, 16);
    round(b, *c, a, 19);
    round(c, *a, b, 4);
}

/// `__jhash_final`
fn last([a, b, c]: &mut [u32; 3]) -> u32 {
    let round = |x: &mut u32, y: u32, by| *x = (*x ^ y).wrapping_sub(y.rotate_left(by));
    round(c, *b, 14);
    round(a, *c, 11);
    round(b, *a, 25);
    round(c, *b, 16);
    round(a, *c, 4);
    round(b, *a, 14);
    round(c, *b, 24);
    *c
}
