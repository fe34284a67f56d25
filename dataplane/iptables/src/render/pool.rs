//! The rules that pick an endpoint.
//!
//! Each takes its share of what the rules before it left over. With affinity, rules that know the client stand before
//! them; a list of clients belongs to one endpoint and goes with its last rule, so nobody is led to an endpoint that is
//! gone. Behind the last pick, where no packet comes, stand endpoints that take no new flows but keep their UDP flows:
//! so what an established flow may hang on can be read back from the kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use vipd_model::endpoint::{Endpoint, EndpointState};
use vipd_model::scheduler::Algorithm;
use vipd_model::select::EndpointSet;
use vipd_model::service::ClientAffinity;
use vipd_model::{EndpointKey, Family, Protocol, Selected, ServiceKey};

use crate::names;
use crate::rule::{CERTAIN, Chance, Recent, Rule, Target};

/// Turns of one round at most, where endpoints of RR have different weights: each is a rule.
const TURNS: u64 = 256;

/// The chain of one set of endpoints.
pub(super) fn rules(selected: &Selected, family: Family, set: &EndpointSet) -> Vec<Rule> {
    let service = &selected.service;
    let members: Vec<&Endpoint> =
        set.members.iter().filter_map(|index| service.endpoints.get(*index as usize)).collect();
    let protocol = service.definition.protocol;
    let affinity = service.definition.client_affinity;
    let to = |endpoint: &Endpoint| Rule { protocol: Some(protocol), ..Rule::always(dnat(endpoint)) };
    let record = |endpoint: &Endpoint, within| {
        affinity.map(|affinity| recent(list_of(&service.key, endpoint.key), &affinity, family, within))
    };

    let mut rules = Vec::new();
    if let Some(affinity) = affinity {
        let seconds = u32::try_from(affinity.timeout.as_secs().max(1)).unwrap_or(u32::MAX);
        rules.extend(members.iter().map(|e| Rule { recent: record(e, Some(seconds)), ..to(e) }));
    }
    let turns = match selected.algorithm {
        Algorithm::Rr => in_turn(&members),
        _ => by_chance(&members),
    };
    rules.extend(turns.into_iter().map(|(e, chance)| Rule { chance, recent: record(e, None), ..to(e) }));
    rules.extend(kept(selected, family, &members));
    rules
}

/// Rules that no packet comes to, of endpoints that are not `picked` and yet keep their UDP flows.
pub(super) fn kept(selected: &Selected, family: Family, picked: &[&Endpoint]) -> Vec<Rule> {
    let service = &selected.service;
    let protocol = service.definition.protocol;
    if protocol != Protocol::Udp {
        return Vec::new();
    }
    let picked: BTreeSet<_> = picked.iter().map(|endpoint| endpoint.key).collect();
    let keeps =
        |e: &&Endpoint| e.key.family() == family && e.state != EndpointState::NotReady && !picked.contains(&e.key);
    let rule = |e: &Endpoint| Rule { protocol: Some(protocol), ..Rule::always(dnat(e)) };
    service.endpoints.iter().filter(keeps).map(rule).collect()
}

fn dnat(endpoint: &Endpoint) -> Target {
    let port = endpoint.key.port;
    Target::Dnat(endpoint.key.address, (port != 0).then_some(port))
}

/// The list of an endpoint's clients.
pub(crate) fn list_of(service: &ServiceKey, endpoint: EndpointKey) -> String {
    format!("VIPD-{}", names::short(&format!("{service} {endpoint}")))
}

fn recent(name: String, affinity: &ClientAffinity, family: Family, within: Option<u32>) -> Recent {
    let mask = match family {
        Family::V4 => IpAddr::from(u32::MAX.checked_shl(32 - u32::from(affinity.prefix_v4)).unwrap_or(0).to_be_bytes()),
        Family::V6 => {
            IpAddr::from(u128::MAX.checked_shl(128 - u32::from(affinity.prefix_v6)).unwrap_or(0).to_be_bytes())
        }
    };
    Recent { name, mask, within }
}

/// Each takes its weight of what is left: the last takes all.
fn by_chance<'a>(members: &[&'a Endpoint]) -> Vec<(&'a Endpoint, Option<Chance>)> {
    let mut left: u64 = members.iter().map(|e| u64::from(e.weight)).sum();
    let mut turns = Vec::with_capacity(members.len());
    for endpoint in members {
        let weight = u64::from(endpoint.weight);
        let chance = (weight < left).then(|| {
            // Rounded; below CERTAIN, since weight is below what is left.
            let share = (weight * u64::from(CERTAIN) + left / 2) / left;
            Chance::Random(u32::try_from(share).unwrap_or(CERTAIN))
        });
        turns.push((*endpoint, chance));
        left -= weight;
    }
    turns
}

/// A round has a turn for each unit of weight. A rule takes every n-th packet that reaches it, where n turns are left, so
/// that every turn comes once in a round.
fn in_turn<'a>(members: &[&'a Endpoint]) -> Vec<(&'a Endpoint, Option<Chance>)> {
    let round = round(members);
    let left = (1..=round.len()).rev().map(|left| u32::try_from(left).unwrap_or(u32::MAX));
    round.into_iter().zip(left).map(|(endpoint, left)| (endpoint, (left > 1).then_some(Chance::Nth(left)))).collect()
}

/// One round: each endpoint as often as its weight says, spread over the round (the earliest deadline first).
fn round<'a>(members: &[&'a Endpoint]) -> Vec<&'a Endpoint> {
    let divisor = members.iter().fold(0, |divisor, e| gcd(divisor, u64::from(e.weight))).max(1);
    let weights: Vec<u64> = members.iter().map(|e| u64::from(e.weight) / divisor).collect();
    let total: u64 = weights.iter().sum();
    let most = TURNS.max(members.len() as u64);
    let turns = |weight: u64| if total <= most { weight } else { (weight * most / total).max(1) };
    let mut round: Vec<(u64, usize)> = Vec::new();
    for (index, weight) in weights.iter().enumerate() {
        let turns = turns(*weight);
        // Turn k of n is due in the middle of its n-th part of the round; in millionths.
        round.extend((0..turns).map(|turn| ((2 * turn + 1) * 1_000_000 / (2 * turns), index)));
    }
    round.sort_unstable();
    round.into_iter().filter_map(|(_, index)| members.get(index).copied()).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(weights: &[u16]) -> Vec<Endpoint> {
        let endpoint = |(n, weight): (usize, &u16)| {
            let address = IpAddr::from([10, 2, 0, u8::try_from(n).unwrap()]);
            Endpoint { weight: *weight, ..Endpoint::new(address, 80) }
        };
        weights.iter().enumerate().map(endpoint).collect()
    }

    #[test]
    fn shares_are_the_weights() {
        let endpoints = endpoints(&[1, 5, 0xffff, 3]);
        let members: Vec<&Endpoint> = endpoints.iter().collect();
        let total: f64 = endpoints.iter().map(|e| f64::from(e.weight)).sum();
        let mut left = 1.0;
        for (endpoint, chance) in by_chance(&members) {
            let share = match chance {
                Some(Chance::Random(chance)) => left * f64::from(chance) / f64::from(CERTAIN),
                _ => left,
            };
            assert!((share - f64::from(endpoint.weight) / total).abs() < 1e-9, "{endpoint:?} gets {share}");
            left -= share;
        }
    }

    /// What `xt_statistic` does with its counters.
    #[test]
    fn a_round_gives_each_its_turns() {
        let endpoints = endpoints(&[2, 1, 6]);
        let members: Vec<&Endpoint> = endpoints.iter().collect();
        let rules = in_turn(&members);
        let mut counters = vec![0; rules.len()];
        let mut got = [0; 3];
        for _ in 0..2 * rules.len() {
            for ((endpoint, chance), counter) in rules.iter().zip(&mut counters) {
                let Some(Chance::Nth(every)) = chance else {
                    got[members.iter().position(|e| e.key == endpoint.key).unwrap()] += 1;
                    break;
                };
                *counter = (*counter + 1) % every;
                if *counter == 0 {
                    got[members.iter().position(|e| e.key == endpoint.key).unwrap()] += 1;
                    break;
                }
            }
        }
        assert_eq!(got, [4, 2, 12]);
    }
}
