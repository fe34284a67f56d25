//! UDP flows that a change made stale, as the kernel's connection tracking names them.
//!
//! Two ways to say which: a [`FlowFilter`] names what is to be forgotten, exactly; a [`Judge`] says what may stay where
//! several engines have made flows of one service: after a switch, and after a start.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use vipd_model::{Family, PortRange, Protocol};

/// Flows to forget. Every field that is given must match; the original port always is, so that a filter can never name
/// a flow that is not a service's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowFilter {
    /// Of both tuples.
    pub family: Family,
    /// Never TCP: established TCP flows end by drain.
    pub protocol: Protocol,
    /// Where the client sent it; absent: anywhere (a node port).
    pub destination: Option<IpAddr>,
    /// The port it sent it to.
    pub port: u16,
    /// Who answers, as address and port; absent: anybody.
    pub reply_source: Option<(IpAddr, u16)>,
}

/// Who may answer the flows of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answerers {
    /// Endpoints that may keep flows. Port 0: the port that the client sent it to.
    pub endpoints: Vec<(IpAddr, u16)>,
    /// Ports of a relay on this node that serves the service, or still carries flows of it.
    pub relays: Vec<u16>,
}

impl Answerers {
    fn allow(&self, source: IpAddr, port: u16, asked: u16) -> bool {
        let is = |(address, at): &(IpAddr, u16)| *address == source && (*at == port || (*at == 0 && asked == port));
        self.endpoints.iter().any(is) || self.relays.contains(&port)
    }
}

/// The one rule for the UDP flows of all engines: who answers must be an endpoint that may keep them, or a relay that
/// still runs. Flows to places that it does not know are none of its business.
#[derive(Clone, Debug, Default)]
pub struct Judge {
    places: HashMap<IpAddr, Vec<(PortRange, Arc<Answerers>)>>,
}

impl Judge {
    /// Flows to these ports of an address are judged from now on.
    pub fn add(&mut self, address: IpAddr, ports: PortRange, answerers: &Arc<Answerers>) {
        let known = self.places.entry(address).or_default();
        known.retain(|(other, _)| *other != ports);
        known.push((ports, Arc::clone(answerers)));
    }

    /// Takes over what another judges; it knows better where both do.
    pub fn merge(&mut self, other: Self) {
        for (address, known) in other.places {
            for (ports, answerers) in known {
                self.add(address, ports, &answerers);
            }
        }
    }

    /// Whether there is nothing to judge.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether a UDP flow that was sent `to` and is answered by `from` must be forgotten.
    #[must_use]
    pub fn is_stale(&self, to: (IpAddr, u16), from: (IpAddr, u16)) -> bool {
        let known = self.places.get(&to.0).into_iter().flatten();
        // A single port stands before a range that has it too, as in every engine.
        let of_port = known.filter(|(ports, _)| ports.contains(to.1)).min_by_key(|(ports, _)| !ports.is_one());
        of_port.is_some_and(|(_, answerers)| !answerers.allow(from.0, from.1, to.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIP: [u8; 4] = [10, 96, 0, 1];

    fn answerers(endpoints: &[([u8; 4], u16)], relays: &[u16]) -> Arc<Answerers> {
        let endpoints = endpoints.iter().map(|(address, port)| (IpAddr::from(*address), *port)).collect();
        Arc::new(Answerers { endpoints, relays: relays.to_vec() })
    }

    fn stale(judge: &Judge, port: u16, from: ([u8; 4], u16)) -> bool {
        judge.is_stale((VIP.into(), port), (from.0.into(), from.1))
    }

    #[test]
    fn who_answers_is_an_endpoint_or_a_relay_that_runs() {
        let mut judge = Judge::default();
        judge.add(VIP.into(), PortRange::one(53), &answerers(&[([10, 1, 0, 1], 5353)], &[20_001]));
        assert!(!stale(&judge, 53, ([10, 1, 0, 1], 5353)), "an endpoint");
        assert!(!stale(&judge, 53, ([192, 0, 2, 7], 20_001)), "the relay, whatever address the kernel gave it");
        assert!(stale(&judge, 53, ([10, 1, 0, 1], 5354)), "another port of the endpoint");
        assert!(stale(&judge, 53, ([10, 1, 0, 2], 5353)), "an endpoint that is gone");
        assert!(stale(&judge, 53, ([192, 0, 2, 7], 20_002)), "a relay's port of before");
        assert!(stale(&judge, 53, (VIP, 53)), "untranslated: from before the frontend was");
        assert!(!stale(&judge, 54, (VIP, 54)), "no frontend of ours");
        assert!(!judge.is_stale(([10, 96, 0, 2].into(), 53), ([10, 9, 9, 9].into(), 53)), "no frontend of ours");
    }

    #[test]
    fn a_range_keeps_the_port_and_a_single_port_stands_before_it() {
        let mut judge = Judge::default();
        judge.add(VIP.into(), PortRange { first: 1_000, last: 2_000 }, &answerers(&[([10, 1, 0, 1], 0)], &[]));
        judge.add(VIP.into(), PortRange::one(1_500), &answerers(&[([10, 1, 0, 2], 80)], &[]));
        assert!(!stale(&judge, 1_001, ([10, 1, 0, 1], 1_001)));
        assert!(stale(&judge, 1_001, ([10, 1, 0, 1], 1_002)));
        assert!(stale(&judge, 1_500, ([10, 1, 0, 1], 1_500)));
        assert!(!stale(&judge, 1_500, ([10, 1, 0, 2], 80)));
    }

    #[test]
    fn the_newer_judgement_of_a_place_holds() {
        let mut judge = Judge::default();
        judge.add(VIP.into(), PortRange::one(53), &answerers(&[([10, 1, 0, 1], 53)], &[]));
        let mut newer = Judge::default();
        newer.add(VIP.into(), PortRange::one(53), &answerers(&[([10, 1, 0, 2], 53)], &[]));
        judge.merge(newer);
        assert!(stale(&judge, 53, ([10, 1, 0, 1], 53)));
        assert!(!stale(&judge, 53, ([10, 1, 0, 2], 53)));
    }
}
