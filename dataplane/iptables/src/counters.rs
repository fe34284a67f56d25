//! What rules have counted. In the nat table a rule sees a flow's first packet only, so its packets are flows.
//!
//! A chain that is written anew counts from zero. So what a rule had counted when it was last read is kept here and added;
//! flows between that reading and the writing are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vipd_engine::{Counters, ServiceCounters};
use vipd_model::{EndpointKey, ServiceKey};

use crate::flows::endpoint;
use crate::names::{self, Kind, Role, Table};
use crate::object::{Door, Leaf};
use crate::rule::{Rule, Target};
use crate::save::{Line, Saved};
use crate::tree::Tree;

/// A number that starts again from zero now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    before: u64,
    last: u64,
}

impl Count {
    fn read(&mut self, now: u64) {
        if now < self.last {
            self.restart();
        }
        self.last = now;
    }

    /// It starts again from zero.
    fn restart(&mut self) {
        self.before += std::mem::take(&mut self.last);
    }

    fn total(self) -> u64 {
        self.before + self.last
    }
}

/// What one service has counted, by its short name.
#[derive(Clone, Debug, Default)]
struct Of {
    endpoints: BTreeMap<EndpointKey, Count>,
    /// Of endpoints that are gone.
    gone: u64,
    refused: Count,
}

/// What all services have counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    services: BTreeMap<Arc<str>, Of>,
}

/// One reading of the kernel: packets by service.
#[derive(Default)]
pub(crate) struct Reading {
    endpoints: BTreeMap<(String, EndpointKey), u64>,
    refused: BTreeMap<String, u64>,
}

impl Reading {
    /// Adds what one family's dump says. `gates` tells whose a frontend's chain is.
    pub(crate) fn take<'a>(
        &mut self,
        role: Role,
        saved: &Saved,
        entries: impl Iterator<Item = (&'a Door, &'a Arc<Leaf>)>,
    ) {
        let mut gates: BTreeMap<String, &str> = BTreeMap::new();
        for (door, leaf) in entries {
            let name = names::short(&door.to_string());
            gates.insert(name, &leaf.service);
        }
        for ((table, chain), lines) in saved.chains.iter().filter(|((table, _), _)| *table == Table::Nat) {
            match Kind::parse(role, chain) {
                Some((Kind::All | Kind::Local, service)) => self.pool(service, lines),
                Some((_, gate)) => {
                    if let Some(service) = gates.get(gate) {
                        *self.refused.entry((*service).to_owned()).or_default() += refusals(role, lines.iter());
                    }
                }
                None if Tree::containing(role, chain).is_some_and(|tree| tree.table() == *table) => {
                    self.tree(role, lines)
                }
                None => {}
            }
        }
    }

    fn pool(&mut self, service: &str, lines: &[Line]) {
        for line in lines {
            if let Some(endpoint) = line.rule.as_ref().and_then(endpoint) {
                *self.endpoints.entry((service.to_owned(), endpoint)).or_default() += line.counts.0;
            }
        }
    }

    /// Entries that refuse by themselves; only those of the dispatch tree have comments.
    fn tree(&mut self, role: Role, lines: &[Line]) {
        for line in lines {
            let comment = line.rule.as_ref().and_then(|rule| rule.comment.as_deref());
            if let Some((_, _, service)) = comment.and_then(Leaf::parse_comment) {
                *self.refused.entry(service.to_owned()).or_default() += refusals(role, std::iter::once(line));
            }
        }
    }
}

fn refusals<'a>(role: Role, lines: impl Iterator<Item = &'a Line>) -> u64 {
    let refuses = |rule: &Rule| matches!(&rule.target, Some(Target::Goto(chain)) if *chain == role.chain("REJECT") || *chain == role.chain("DROP"));
    lines.filter(|line| line.rule.as_ref().is_some_and(refuses)).map(|line| line.counts.0).sum()
}

impl Counted {
    /// Takes a reading.
    pub(crate) fn update(&mut self, reading: Reading) {
        let seen: BTreeSet<(&str, EndpointKey)> =
            reading.endpoints.keys().map(|(service, endpoint)| (service.as_str(), *endpoint)).collect();
        for (service, of) in &mut self.services {
            let mut gone = 0;
            of.endpoints.retain(|endpoint, count| {
                let stays = seen.contains(&(service.as_ref(), *endpoint));
                gone += if stays { 0 } else { count.total() };
                stays
            });
            of.gone += gone;
        }
        for ((service, endpoint), packets) in &reading.endpoints {
            let of = self.services.entry(service.as_str().into()).or_default();
            of.endpoints.entry(*endpoint).or_default().read(*packets);
        }
        for (service, packets) in &reading.refused {
            self.services.entry(service.as_str().into()).or_default().refused.read(*packets);
        }
    }

    /// Chains of a service were written anew. Whether anything was counted there.
    pub(crate) fn rewritten(&mut self, service: &str) -> bool {
        let Some(of) = self.services.get_mut(service) else { return false };
        of.endpoints.values_mut().for_each(Count::restart);
        true
    }

    /// Forgets services that are gone.
    pub(crate) fn keep(&mut self, services: &BTreeSet<Arc<str>>) {
        self.services.retain(|service, _| services.contains(service));
    }

    /// What a service has counted.
    pub(crate) fn of(&self, key: &ServiceKey) -> Option<ServiceCounters> {
        let of = self.services.get(names::service(key).as_str())?;
        let connections = |count: u64| Counters { connections: Some(count), ..Counters::default() };
        let all = of.endpoints.values().map(|count| count.total()).sum::<u64>() + of.gone;
        Some(ServiceCounters {
            key: key.clone(),
            total: Counters { refused: Some(of.refused.total()), ..connections(all) },
            endpoints: of.endpoints.iter().map(|(key, count)| (*key, connections(count.total()))).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_is_written_anew_loses_nothing_that_was_read() {
        let endpoint = |n| EndpointKey { address: std::net::IpAddr::from([10, 2, 0, n]), port: 80 };
        let key = ServiceKey::new("k8s", "web").unwrap();
        let reading = |counts: &[(u8, u64)]| {
            let of = |(n, packets): &(u8, u64)| ((names::service(&key), endpoint(*n)), *packets);
            Reading { endpoints: counts.iter().map(of).collect(), refused: BTreeMap::new() }
        };
        let mut counted = Counted::default();
        counted.update(reading(&[(1, 5), (2, 7)]));
        counted.update(reading(&[(1, 2)]));
        let of = counted.of(&key).unwrap();
        assert_eq!(of.total.connections, Some(14));
        assert_eq!(of.endpoints[0].1.connections, Some(7));
        assert_eq!(of.endpoints.len(), 1);
    }
}
