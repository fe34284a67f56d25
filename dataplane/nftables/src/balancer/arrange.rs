//! From endpoints with weights to slots. Pure, and without memory: the same endpoints always stand in the same slots.

use std::{cmp::Ordering, collections::BTreeMap, num::NonZeroU16};

use vipd_model::{Algorithm, Endpoint, EndpointKey, pick::Member, pick::maglev_table};

use super::word::MAX_MEMBERS;

/// Most slots of weights: above, weights are rounded so that their sum keeps to it (or to one slot for each endpoint), and
/// no endpoint is left without a slot.
const MAX_SLOTS: u64 = 1024;

/// Table sizes of MH, prime so that every endpoint's order of preference visits every slot, and up to how many endpoints
/// each serves. Few sizes, because a set that grows from one into the next moves most clients.
const MAGLEV: [(u32, usize); 4] = [(251, 8), (2039, 64), (16_381, 512), (65_521, usize::MAX)];

/// The slots of these endpoints, each the index of one of them.
pub(super) fn slots(algorithm: Algorithm, endpoints: &[&Endpoint]) -> Vec<usize> {
    match algorithm {
        Algorithm::Mh => maglev(endpoints),
        Algorithm::Rr | Algorithm::Wrr => in_turn(&shares(endpoints)),
        _ => end_to_end(&shares(endpoints)),
    }
}

/// Weights divided by their greatest common divisor, and bounded.
fn shares(endpoints: &[&Endpoint]) -> Vec<u64> {
    let weights = || endpoints.iter().map(|endpoint| u64::from(endpoint.weight.max(1)));
    let divisor = weights().fold(0, gcd).max(1);
    let total: u64 = weights().map(|weight| weight / divisor).sum();
    let most = MAX_SLOTS.max(endpoints.len() as u64);
    if total <= most {
        return weights().map(|weight| weight / divisor).collect();
    }
    // One slot for each endpoint, and the rest by weight.
    let rest = most - endpoints.len() as u64;
    weights().map(|weight| 1 + (weight / divisor) * rest / total).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn end_to_end(shares: &[u64]) -> Vec<usize> {
    shares.iter().enumerate().flat_map(|(index, share)| (0..*share).map(move |_| index)).collect()
}

/// The k-th turn of a share of w is due at (k + ½) / w.
fn in_turn(shares: &[u64]) -> Vec<usize> {
    let mut turns: Vec<(u64, usize)> =
        shares.iter().enumerate().flat_map(|(index, share)| (0..*share).map(move |turn| (turn, index))).collect();
    let due = |(turn, _): &(u64, usize), other: usize| (2 * turn + 1) * shares[other];
    turns.sort_by(|a, b| match due(a, b.1).cmp(&due(b, a.1)) {
        Ordering::Equal => a.1.cmp(&b.1),
        order => order,
    });
    turns.into_iter().map(|(_, index)| index).collect()
}

fn maglev(endpoints: &[&Endpoint]) -> Vec<usize> {
    let size = MAGLEV.iter().find(|(_, most)| endpoints.len() <= *most).map_or(MAGLEV[3].0, |(size, _)| *size);
    let members: Vec<Member> = endpoints
        .iter()
        .map(|endpoint| Member {
            key: endpoint.key,
            weight: NonZeroU16::new(endpoint.weight).unwrap_or(NonZeroU16::MIN),
        })
        .collect();
    maglev_table(&members, size).iter().map(|&member| member as usize).collect()
}

/// An index for each endpoint, made from its key alone; of two that want the same, the later takes the next. So an endpoint
/// keeps its index, and its clients, whatever the others do, but for rare meetings.
pub(super) fn indices(endpoints: &[&Endpoint]) -> Vec<u16> {
    let mut taken = BTreeMap::new();
    endpoints
        .iter()
        .map(|endpoint| {
            let mut index = hash(&endpoint.key) as usize % MAX_MEMBERS;
            while taken.insert(index, ()).is_some() {
                index = (index + 1) % MAX_MEMBERS;
            }
            index as u16
        })
        .collect()
}

/// FNV-1a: the same in every version, for the kernel keeps what came of it.
pub(super) fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn hash(key: &EndpointKey) -> u64 {
    let port = key.port.to_be_bytes();
    let hash = match key.address {
        std::net::IpAddr::V4(address) => fnv(address.octets().into_iter().chain(port)),
        std::net::IpAddr::V6(address) => fnv(address.octets().into_iter().chain(port)),
    };
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(weights: &[u16]) -> Vec<Endpoint> {
        let endpoint = |(n, weight): (usize, &u16)| Endpoint {
            weight: *weight,
            ..Endpoint::new([10, 0, (n / 250) as u8, (n % 250) as u8].into(), 80)
        };
        weights.iter().enumerate().map(endpoint).collect()
    }

    fn of(algorithm: Algorithm, weights: &[u16]) -> Vec<usize> {
        slots(algorithm, &endpoints(weights).iter().collect::<Vec<_>>())
    }

    #[test]
    fn weights_are_slots() {
        assert_eq!(of(Algorithm::Random, &[10, 30]), [0, 1, 1, 1]);
        assert_eq!(of(Algorithm::Rr, &[2, 6]), [1, 0, 1, 1]);
        assert_eq!(of(Algorithm::Rr, &[7, 7, 7]), [0, 1, 2]);
    }

    #[test]
    fn coprime_weights_are_rounded_and_nobody_is_left_out() {
        let slots = of(Algorithm::Random, &[65_535, 65_534, 1]);
        assert!(slots.len() as u64 <= MAX_SLOTS);
        let count = |index| slots.iter().filter(|slot| **slot == index).count();
        assert!(count(2) >= 1 && count(0).abs_diff(count(1)) <= 1);
        let many = of(Algorithm::Random, &vec![1; 5000]);
        assert_eq!(many.len(), 5000, "equal weights are exact however many there are");
    }

    #[test]
    fn indices_are_distinct_and_stay() {
        let all = endpoints(&[1; 2000]);
        let before = indices(&all.iter().collect::<Vec<_>>());
        let distinct: std::collections::BTreeSet<_> = before.iter().collect();
        assert_eq!(distinct.len(), all.len());
        let after = indices(&all.iter().skip(1).collect::<Vec<_>>());
        let moved = before.iter().skip(1).zip(&after).filter(|(a, b)| a != b).count();
        assert!(moved <= 2, "{moved}");
    }
}
