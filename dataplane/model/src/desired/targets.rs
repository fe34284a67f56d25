//! Where traffic is sent, by place: finds the endpoints that a new frontend would turn into a loop.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::endpoints::{Visit, difference};
use crate::endpoint::{Endpoint, EndpointKey};
use crate::frontend::PortRange;
use crate::name::ServiceKey;
use crate::service::{Protocol, Service};

/// Every endpoint with the services that have it. A port of 0 stands for the ports of the service's ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Targets {
    places: BTreeSet<(Protocol, IpAddr, u16, Option<ServiceKey>)>,
}

impl Targets {
    /// Takes a service's change in; costs what differs.
    pub(crate) fn replace(&mut self, before: Option<&Service>, after: Option<&Service>) {
        let Some(key) = before.or(after).map(|s| &s.key) else { return };
        let old: &[Endpoint] = before.map_or(&[], |s| &s.endpoints);
        let new: &[Endpoint] = after.map_or(&[], |s| &s.endpoints);
        let protocol = |s: Option<&Service>| s.map(|s| s.definition.protocol);
        let (from, to) = (protocol(before), protocol(after));
        let place = |protocol: Protocol, e: &Endpoint| (protocol, e.key.address, e.key.port, Some(key.clone()));
        let visit = if from == to { Visit::Changed } else { Visit::All };
        difference(old, new, visit, |a, b| {
            if from == to && a.is_some() && b.is_some() {
                return; // Only its weight, state or the like.
            }
            if let (Some(protocol), Some(a)) = (from, a) {
                self.places.remove(&place(protocol, a));
            }
            if let (Some(protocol), Some(b)) = (to, b) {
                self.places.insert(place(protocol, b));
            }
        });
    }

    /// The services that send to an address and one of the ports, with the endpoint; those that send to the client's
    /// destination port (0) come too, for the caller to look at their ranges.
    pub(crate) fn at(
        &self,
        protocol: Protocol,
        address: IpAddr,
        ports: PortRange,
    ) -> impl Iterator<Item = (&ServiceKey, EndpointKey)> {
        let low = |port: u16| (protocol, address, port, None);
        let any = self.places.range(low(0)..low(1));
        let named = self
            .places
            .range(low(ports.first.max(1))..)
            .take_while(move |(p, a, port, _)| (*p, *a) == (protocol, address) && *port <= ports.last);
        any.chain(named).filter_map(|(_, address, port, service)| {
            Some((service.as_ref()?, EndpointKey { address: *address, port: *port }))
        })
    }
}

/// Where an endpoint of a service sends to: its port, or for 0 the ports of the service's frontends.
pub(crate) fn reaches(service: &Service, endpoint: EndpointKey) -> impl Iterator<Item = PortRange> {
    let own = (endpoint.port != 0).then(|| PortRange::one(endpoint.port));
    let ranges = service.definition.frontends.iter().map(|f| f.ports).filter(move |_| endpoint.port == 0);
    own.into_iter().chain(ranges)
}
