//! What engines have counted for services that they do not have any more. With what is counted now it makes the totals
//! of `GetStats`, which do not go back when a service moves.

use std::collections::{BTreeMap, HashMap};

use vipd_engine::{Counters, ServiceCounters};
use vipd_model::{EndpointKey, EngineKind, ServiceKey};

/// By service.
#[derive(Debug, Default)]
pub struct Totals(HashMap<ServiceKey, Past>);

#[derive(Debug, Default)]
struct Past {
    total: Counters,
    endpoints: BTreeMap<EndpointKey, Counters>,
}

impl Totals {
    /// What was counted before this start, of services that are still known.
    #[must_use]
    pub fn restored(kept: Vec<ServiceCounters>, known: impl Fn(&ServiceKey) -> bool) -> Self {
        let mut totals = Self::default();
        totals.keep(kept.into_iter().filter(|one| known(&one.key)).collect());
        totals
    }

    /// Adds what an engine counted until it gave the services up.
    pub fn keep(&mut self, counted: Vec<ServiceCounters>) {
        for one in counted {
            if one.total.is_nothing() {
                continue;
            }
            let past = self.0.entry(one.key).or_default();
            past.total = past.total.plus(&one.total.ended());
            for (key, counters) in one.endpoints {
                let of_endpoint = past.endpoints.entry(key).or_default();
                *of_endpoint = of_endpoint.plus(&counters.ended());
            }
        }
    }

    /// What is to be kept over a restart: this, and what engines count that forget it with the process.
    #[must_use]
    pub fn with(&self, now: Vec<ServiceCounters>) -> Vec<ServiceCounters> {
        let mut all = Self(HashMap::new());
        let past = self.0.iter().map(|(key, past)| ServiceCounters {
            key: key.clone(),
            total: past.total,
            endpoints: past.endpoints.iter().map(|(key, counters)| (*key, *counters)).collect(),
        });
        all.keep(past.chain(now).collect());
        let kept = all.0.into_iter().map(|(key, past)| ServiceCounters {
            key,
            total: past.total,
            endpoints: past.endpoints.into_iter().collect(),
        });
        kept.collect()
    }

    /// The service is gone.
    pub fn forget(&mut self, service: &ServiceKey) {
        self.0.remove(service);
    }

    /// Makes one answer for each service of what several engines count now: what the serving one can count, with what
    /// others did, before or beside it.
    #[must_use]
    pub fn sum(
        &self,
        now: Vec<(EngineKind, ServiceCounters)>,
        serves: impl Fn(&ServiceKey) -> Option<EngineKind>,
    ) -> Vec<ServiceCounters> {
        let mut by_service: BTreeMap<ServiceKey, Vec<(EngineKind, ServiceCounters)>> = BTreeMap::new();
        for (engine, counted) in now {
            by_service.entry(counted.key.clone()).or_default().push((engine, counted));
        }
        let sums = by_service.into_iter().map(|(key, mut counted)| {
            let serving = serves(&key);
            let at = counted.iter().position(|(engine, _)| Some(*engine) == serving).unwrap_or(0);
            let (_, main) = counted.swap_remove(at);
            self.sum_one(main, counted.into_iter().map(|(_, counted)| counted))
        });
        sums.collect()
    }

    fn sum_one(&self, main: ServiceCounters, beside: impl Iterator<Item = ServiceCounters>) -> ServiceCounters {
        let mut others = Past::default();
        for one in beside {
            others.total = others.total.plus(&one.total);
            for (key, counters) in one.endpoints {
                let of_endpoint = others.endpoints.entry(key).or_default();
                *of_endpoint = of_endpoint.plus(&counters);
            }
        }
        if let Some(past) = self.0.get(&main.key) {
            others.total = others.total.plus(&past.total);
            for (key, counters) in &past.endpoints {
                let of_endpoint = others.endpoints.entry(*key).or_default();
                *of_endpoint = of_endpoint.plus(counters);
            }
        }
        let endpoints = main.endpoints.into_iter().map(|(key, counters)| {
            let other = others.endpoints.get(&key).copied().unwrap_or_default();
            (key, counters.with(&other))
        });
        ServiceCounters { endpoints: endpoints.collect(), total: main.total.with(&others.total), key: main.key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(connections: u64, active: Option<u64>) -> ServiceCounters {
        let total = Counters { connections: Some(connections), active, ..Counters::default() };
        let endpoint = EndpointKey { address: [10, 1, 0, 1].into(), port: 80 };
        let key = ServiceKey::new("ops", "web").unwrap();
        ServiceCounters { key, total, endpoints: vec![(endpoint, total)] }
    }

    #[test]
    fn totals_never_go_back_when_a_service_moves() {
        let mut totals = Totals::default();
        let serves = |engine| move |_: &ServiceKey| Some(engine);
        totals.keep(vec![counted(10, None)]);
        totals.keep(vec![counted(5, Some(3))]);
        let now = vec![(EngineKind::Userspace, counted(1, Some(2))), (EngineKind::Nftables, counted(7, None))];
        let sum = totals.sum(now.clone(), serves(EngineKind::Nftables)).remove(0);
        assert_eq!((sum.total.connections, sum.total.active), (Some(23), None), "nftables cannot count what is active");
        assert_eq!(sum.endpoints[0].1.connections, Some(23));
        let sum = totals.sum(now, serves(EngineKind::Userspace)).remove(0);
        assert_eq!((sum.total.connections, sum.total.active), (Some(23), Some(2)), "what has ended is not active");
        totals.forget(&ServiceKey::new("ops", "web").unwrap());
        let sum = totals.sum(vec![(EngineKind::Nftables, counted(7, None))], serves(EngineKind::Nftables)).remove(0);
        assert_eq!(sum.total.connections, Some(7));
    }
}
