//! All slices of a Service as one list of endpoints for one of its ports.
//!
//! While the controller moves endpoints between slices one of them stands in two, perhaps with another state in each. Of
//! one pod the slice written last is right, whatever it says; two pods with one address (a ghost that still terminates)
//! are told apart by their UIDs, and the better state is right. So no order of events can matter.

use std::collections::BTreeMap;
use std::net::IpAddr;

use vipd_proto::v1;
use vipd_proto::v1::endpoint::State;

use crate::facts::{Endpoint, Protocol, SliceFacts, SliceVersion};

/// An endpoint at a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merged<'a> {
    /// What its slice says.
    pub(super) endpoint: &'a Endpoint,
    /// The number of the port in that slice.
    pub(super) port: u16,
}

impl Merged<'_> {
    /// READY counts before what a pod is about to do: publishNotReadyAddresses makes terminating pods ready.
    pub(super) fn state(&self) -> State {
        match self.endpoint {
            Endpoint { ready: true, .. } => State::Ready,
            Endpoint { serving: true, terminating: true, .. } => State::Draining,
            _ => State::NotReady,
        }
    }

    /// As vipd is told of it.
    pub(super) fn declare(&self, tier: u32) -> v1::Endpoint {
        v1::Endpoint {
            address: self.endpoint.address.to_string(),
            port: self.port.into(),
            state: self.state().into(),
            local: self.endpoint.local,
            tier,
            target: self.endpoint.target.as_ref().to_owned(),
            ..Default::default()
        }
    }

    /// The lower is the better of two with one address and port; the target makes it one order.
    fn rank(&self) -> (State, bool, &str, &str) {
        (self.state(), !self.endpoint.local, &self.endpoint.target, &self.endpoint.target_uid)
    }
}

/// The endpoints of the port, by address and port, each pair once.
pub(super) fn merge<'a>(slices: &[&'a SliceFacts], name: &str, protocol: Protocol) -> Vec<Merged<'a>> {
    let mut newest: BTreeMap<(IpAddr, u16, &str), (&SliceVersion, Merged<'a>)> = BTreeMap::new();
    let mut best: BTreeMap<(IpAddr, u16), Merged<'a>> = BTreeMap::new();
    for slice in slices {
        let ports = slice.ports.iter().filter(|port| &*port.name == name && port.protocol == protocol);
        for (port, endpoint) in ports.flat_map(|port| slice.endpoints.iter().map(move |endpoint| (port.port, endpoint)))
        {
            let merged = Merged { endpoint, port };
            if endpoint.target_uid.is_empty() {
                better(&mut best, merged);
                continue;
            }
            let kept = newest.entry((endpoint.address, port, &endpoint.target_uid)).or_insert((&slice.version, merged));
            if kept.0 < &slice.version || (kept.0 == &slice.version && merged.rank() < kept.1.rank()) {
                *kept = (&slice.version, merged);
            }
        }
    }
    for (_, merged) in newest.into_values() {
        better(&mut best, merged);
    }
    best.into_values().collect()
}

fn better<'a>(best: &mut BTreeMap<(IpAddr, u16), Merged<'a>>, merged: Merged<'a>) {
    let kept = best.entry((merged.endpoint.address, merged.port)).or_insert(merged);
    if merged.rank() < kept.rank() {
        *kept = merged;
    }
}
