//! Planning is the difference object by object, which is already safe: a service before its doors, doors closed before
//! their service goes (`vipd_engine::Plan`). Here is what operations leave behind in the kernel's connection tracking.

use vipd_engine::{FlowFilter, Operation};
use vipd_model::{Family, Place, Protocol};

use crate::objects::{Door, Key, Value};

/// UDP flows that an operation makes stale. What the guard redirects to a port is remembered with each flow: when the
/// port is closed, or was not there yet when the flow began, the flow must be forgotten, or its sender never comes here.
pub(crate) fn stale_flows(operation: &Operation<Key, Value>) -> Option<FlowFilter> {
    let Key::Door(Door::CapturedUdp(place, port)) = operation.key() else { return None };
    if operation.before().is_some() && operation.after().is_some() {
        return None;
    }
    let (family, destination) = match place {
        Place::Address(address) => (Family::of(*address), Some(*address)),
        Place::Node(family) => (*family, None),
    };
    // A flow from before the capture was not translated: the frontend itself is what answers.
    let made = operation.after().is_some();
    let reply_source = destination.filter(|_| made).map(|address| (address, *port));
    Some(FlowFilter { family, protocol: Protocol::Udp, destination, port: *port, reply_source })
}
