//! Hashing with fixed seeds, and the search for a member that is not excluded.

use std::net::IpAddr;

use super::Load;

/// So many places are tried before the members are walked. With half of the weight excluded, one flow in 65,536 walks.
const PROBES: u64 = 16;

/// 2^64 / golden ratio, odd: multiples of it are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of 64 bits in which every bit of the input moves about half of the output: the finalizer of SplitMix64
/// (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hashes an address and a port. IPv4 and IPv6 have no value in common, so ::1.2.3.4 is not 1.2.3.4.
pub(super) fn hash(seed: u64, address: IpAddr, port: u16) -> u64 {
    let (high, low) = match address {
        IpAddr::V4(v4) => (0x04 << 56, u64::from(v4.to_bits())),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            ((bits >> 64) as u64, bits as u64)
        }
    };
    let seeded = mix(seed ^ high.wrapping_mul(GOLDEN));
    mix(mix(seeded.wrapping_add(low)).wrapping_add(u64::from(port).wrapping_mul(GOLDEN)))
}

/// The hash of the given attempt; the first is the hash itself.
pub(super) fn rehash(hash: u64, attempt: u64) -> u64 {
    if attempt == 0 { hash } else { mix(hash.wrapping_add(attempt.wrapping_mul(GOLDEN))) }
}

/// Scales a uniform 64-bit number to 0..below.
pub(super) fn scale(uniform: u64, below: u64) -> u64 {
    ((u128::from(uniform) * u128::from(below)) >> 64) as u64
}

/// The first member that is not excluded, of those that `at` gives for the hash of each attempt; then of all, from a
/// place that the hash gives. None only if there are none, or all are excluded.
pub(super) fn probe<L: Load>(members: usize, hash: u64, load: &L, at: impl Fn(u64) -> usize) -> Option<usize> {
    if members == 0 {
        return None;
    }
    let tried = (0..PROBES).map(|attempt| at(rehash(hash, attempt))).find(|&member| !load.excluded(member));
    tried.or_else(|| next_free(members, scale(hash, members as u64) as usize, load))
}

/// The first member that is not excluded, from `start` on and round.
pub(super) fn next_free<L: Load>(members: usize, start: usize, load: &L) -> Option<usize> {
    (start..members).chain(0..start.min(members)).find(|&member| !load.excluded(member))
}
