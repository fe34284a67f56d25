//! UDP flows that a change made stale, as the kernel's connection tracking names them.
//!
//! Two ways to say which: a [`FlowFilter`] names what is to be forgotten, exactly; a [`Judge`] says what may stay where
//! several engines have made flows of one service: after a switch, and after a start.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
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
    /// Whether this source may answer what was sent to port `asked`.
    #[must_use]
    pub fn allow(&self, source: IpAddr, port: u16, asked: u16) -> bool {
        let is = |(address, at): &(IpAddr, u16)| *address == source && (*at == port || (*at == 0 && asked == port));
        self.endpoints.iter().any(is) || self.relays.contains(&port)
    }
}

/// Something for each port of addresses: what a flow was sent to.
#[derive(Clone, Debug)]
pub struct Places<T>(HashMap<(Protocol, IpAddr), Vec<(PortRange, T)>>);

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Places<T> {
    /// What stood there with the same ports does not any more.
    pub fn insert(&mut self, protocol: Protocol, address: IpAddr, ports: PortRange, value: T) {
        let known = self.0.entry((protocol, address)).or_default();
        known.retain(|(other, _)| *other != ports);
        known.push((ports, value));
    }

    /// What stands at a port: a single port before a range that has it too, as in every engine.
    pub fn find(&self, protocol: Protocol, address: IpAddr, port: u16) -> Option<&T> {
        let known = self.0.get(&(protocol, address))?.iter();
        let here = known.filter(|(ports, _)| ports.contains(port)).min_by_key(|(ports, _)| !ports.is_one());
        here.map(|(_, value)| value)
    }

    /// Whether nothing stands anywhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes over what stands in another; it holds where both have something.
    pub fn merge(&mut self, other: Self) {
        for ((protocol, address), known) in other.0 {
            for (ports, value) in known {
                self.insert(protocol, address, ports, value);
            }
        }
    }
}

/// The one rule for the UDP flows of all engines: who answers must be an endpoint that may keep them, or a relay that
/// still runs. Flows to places that it does not know are none of its business.
#[derive(Clone, Debug, Default)]
pub struct Judge {
    places: Places<Arc<Answerers>>,
    refused: Vec<IpNet>,
}

impl Judge {
    /// Flows to these ports of an address are judged from now on.
    pub fn add(&mut self, address: IpAddr, ports: PortRange, answerers: &Arc<Answerers>) {
        self.places.insert(Protocol::Udp, address, ports, Arc::clone(answerers));
    }

    /// Nobody may answer for addresses of these ranges that it does not know.
    pub fn refuse_unknown(&mut self, ranges: &[IpNet]) {
        self.refused.extend_from_slice(ranges);
    }

    /// Takes over what another judges; it knows better where both do.
    pub fn merge(&mut self, other: Self) {
        self.places.merge(other.places);
        self.refused.extend(other.refused);
    }

    /// Whether there is nothing to judge.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.refused.is_empty()
    }

    /// Whether a UDP flow that was sent `to` and is answered by `from` must be forgotten.
    #[must_use]
    pub fn is_stale(&self, to: (IpAddr, u16), from: (IpAddr, u16)) -> bool {
        let answerers = self.places.find(Protocol::Udp, to.0, to.1);
        match answerers {
            Some(answerers) => !answerers.allow(from.0, from.1, to.1),
            None => self.refused.iter().any(|range| range.contains(&to.0)),
        }
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
    fn nobody_answers_for_what_was_deleted_from_a_virtual_range() {
        let mut judge = Judge::default();
        judge.refuse_unknown(&["10.96.0.0/16".parse().unwrap()]);
        assert!(stale(&judge, 53, ([10, 1, 0, 1], 5353)));
        assert!(!judge.is_stale(([192, 0, 2, 1].into(), 53), ([10, 1, 0, 1].into(), 5353)), "elsewhere");
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
