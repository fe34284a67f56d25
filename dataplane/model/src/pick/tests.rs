//! Every picker by the definition of its algorithm, and the laws that hold for all.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;

use proptest::prelude::*;

use super::probe::mix;
use super::*;

mod laws;
mod least;
mod sources;
mod turns;

fn members(weights: &[u16]) -> Vec<Member> {
    let key =
        |index: usize| EndpointKey { address: Ipv4Addr::from_bits(0x0a01_0000 + index as u32).into(), port: 8080 };
    let member = |(index, &weight)| Member { key: key(index), weight: NonZeroU16::new(weight).unwrap() };
    weights.iter().enumerate().map(member).collect()
}

fn picker(algorithm: Algorithm, weights: &[u16]) -> Picker {
    Picker::new(algorithm, false, &members(weights))
}

/// The draw of the n-th flow: its turn, a random number of its own, and a client of its own.
fn draw<L: Load>(n: u64, load: &L) -> Draw<'_, L> {
    let client = Ipv4Addr::from_bits(mix(n ^ 0xc11e) as u32);
    let source = SocketAddr::new(client.into(), 1024 + (n % 50_000) as u16);
    Draw { turn: n, random: mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)), source, destination: destination(), load }
}

fn destination() -> IpAddr {
    IpAddr::from([10, 96, 0, 10])
}

/// Picks for flows 0..flows while nobody carries anything.
fn counts(picker: &Picker, members: usize, flows: u64) -> Vec<u64> {
    let mut counts = vec![0; members];
    for n in 0..flows {
        counts[picker.pick(&draw(n, &Idle)).unwrap()] += 1;
    }
    counts
}

/// Whether counts fit the shares: chi-square with a threshold that a fair picker passes 999,999 times of a million
/// (Wilson and Hilferty's approximation, z = 4.75). The draws are fixed, so the answer is too.
fn fits(counts: &[u64], shares: &[f64]) -> Result<(), String> {
    let total: u64 = counts.iter().sum();
    let mut chi = 0.0;
    let mut categories = 0;
    for (&count, &share) in counts.iter().zip(shares) {
        let expected = share * total as f64;
        if expected == 0.0 {
            if count > 0 {
                return Err(format!("{count} picks where none may be"));
            }
            continue;
        }
        categories += 1;
        chi += (count as f64 - expected).powi(2) / expected;
    }
    let freedom = f64::from((categories - 1).max(1));
    let spread = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - spread + 4.75 * spread.sqrt()).powi(3);
    if chi <= limit { Ok(()) } else { Err(format!("chi-square {chi:.1} is over {limit:.1}: {counts:?}")) }
}
