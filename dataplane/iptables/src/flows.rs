//! UDP flows that a change has made stale. Pure.
//!
//! Connection tracking asks the nat table once, at a flow's first packet. A client that keeps its socket keeps the answer
//! for as long as it sends. Established TCP flows end by drain.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use vipd_engine::{FlowFilter, Operation};
use vipd_model::{EndpointKey, Family, Protocol};

use crate::names::{Kind, Role};
use crate::object::{Door, Goal, Key, Place, Value};
use crate::rule::{self, Rule, Target};
use crate::side::Side;

/// What to forget now that these operations are in force; `side` is what a family has now.
pub(crate) fn stale<'a>(
    role: Role,
    side: impl Fn(Family) -> &'a Side,
    operations: &[Operation<Key, Value>],
) -> Vec<FlowFilter> {
    let mut filters = BTreeSet::new();
    for operation in operations {
        let side = side(operation.key().family());
        match operation.key() {
            Key::Entry(door) => match (operation.before(), operation.after()) {
                // A new frontend: flows that went past untranslated, answered by the address itself.
                (None, _) => filters.extend(of_door(door, |port| door.place.address().map(|address| (address, port)))),
                (_, None) => filters.extend(of_door(door, |_| None)),
                // At another port of the proxy nobody knows them.
                (Some(Value::Leaf(before)), Some(Value::Leaf(after)))
                    if before.goal != after.goal && matches!(before.goal, Goal::Redirect(_)) =>
                {
                    filters.extend(of_door(door, |_| None));
                }
                _ => {}
            },
            Key::Chain(_, chain) => match Kind::parse(role, chain) {
                Some((Kind::All | Kind::Local, service)) => {
                    filters.extend(of_pool(role, side, service, operation.before()));
                }
                // Others may come than before: each client is judged again.
                Some(_) if operation.after().is_some() => {
                    filters.extend(side.doors_through(chain).flat_map(|door| of_door(door, |_| None)));
                }
                _ => {}
            },
            _ => {}
        }
    }
    filters.into_iter().collect()
}

/// Flows to endpoints that were in a chain of a service, and now are in none.
fn of_pool(role: Role, side: &Side, service: &str, before: Option<&Value>) -> Vec<FlowFilter> {
    let Some(Value::Rules(before)) = before else { return Vec::new() };
    let mut gone: BTreeSet<EndpointKey> = udp_endpoints(before).collect();
    if gone.is_empty() {
        return Vec::new();
    }
    for kind in [Kind::All, Kind::Local] {
        for endpoint in side.chain(&kind.chain(role, service)).iter().flat_map(|rules| udp_endpoints(rules)) {
            gone.remove(&endpoint);
        }
    }
    let of = |(door, endpoint): (&Door, &EndpointKey)| {
        let (endpoint, own) = (*endpoint, endpoint.port);
        of_door(door, move |port| Some((endpoint.address, if own == 0 { port } else { own })))
    };
    side.doors_of(service).flat_map(|door| gone.iter().map(move |endpoint| (door, endpoint))).flat_map(of).collect()
}

/// The endpoints of a chain of a UDP service: those that it picks, and those that keep their flows.
fn udp_endpoints(rules: &Arc<str>) -> impl Iterator<Item = EndpointKey> {
    let rules = rules.lines().filter_map(|line| Rule::parse(&rule::words(line)));
    rules.filter(|rule| rule.protocol == Some(Protocol::Udp)).filter_map(|rule| endpoint(&rule))
}

/// Where a rule translates to.
pub(crate) fn endpoint(rule: &Rule) -> Option<EndpointKey> {
    match rule.target {
        Some(Target::Dnat(address, port)) => Some(EndpointKey { address, port: port.unwrap_or(0) }),
        _ => None,
    }
}

/// A filter for each port of a UDP frontend.
fn of_door(door: &Door, reply_source: impl Fn(u16) -> Option<(IpAddr, u16)>) -> Vec<FlowFilter> {
    if door.protocol != Protocol::Udp || matches!(door.place, Place::Proxy(_)) {
        return Vec::new();
    }
    let filter = |port| FlowFilter {
        family: door.place.family(),
        protocol: Protocol::Udp,
        destination: door.place.address(),
        port,
        reply_source: reply_source(port),
    };
    (door.ports.first..=door.ports.last).map(filter).collect()
}
