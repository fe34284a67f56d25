//! Who is told of a service beside the engine that serves it.
//!
//! - An engine that served it before and still carries established flows of it (the proxy's sockets): it follows every
//!   change, so that endpoints that go take their flows with them, and nothing leads new flows there any more.
//! - The proxy, for node ports on loopback, which an engine of the kernel cannot serve without `route_localnet`: it has the
//!   service with frontends of just those addresses, and the guard captures them.
//!
//! Both at once are one service to the proxy, since it knows services by their key.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vipd_engine::{GuardEntry, Node, Place};
use vipd_model::{
    At, Definition, Drain, Endpoint, EngineKind, Family, Frontend, OnExpiry, Protocol, Selected, Service, select,
};
use vipd_userspace::RANGE_PORTS_MAX;

use super::core::Core;
use super::lanes::Lanes;
use super::track::Track;

/// One that is told.
#[derive(Clone, Debug)]
pub struct Beside {
    /// What it is told.
    pub selected: Selected,
    /// It carries flows from before.
    pub carries: bool,
    /// It is told once more, to end the flows that it still has, and then gives the service up.
    pub last: bool,
}

/// Loopback, as clients of the node itself use it.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Those who are told of a service that `to` serves.
pub(super) fn beside(core: &Core, lanes: &Lanes, track: Option<&Track>, to: &Selected) -> Vec<Beside> {
    let mut told = Vec::new();
    for engine in lanes.carriers.iter().copied().filter(|engine| *engine != to.engine) {
        let drain = track.and_then(|track| track.draining.iter().find(|draining| draining.engine == engine));
        let carries = drain.is_some() || track.is_some_and(|track| track.engine == Some(engine));
        let guarded = engine == EngineKind::Userspace && lanes.guard.is_some();
        let loopback = if guarded { on_loopback(&core.node, &to.service) } else { Vec::new() };
        if !carries && loopback.is_empty() {
            continue;
        }
        let last = drain.is_some_and(|draining| draining.cut_at.is_some_and(|at| at <= Instant::now()));
        let service = as_told(&to.service, carries, loopback, last);
        told.push(Beside { selected: select(&service, engine, to.algorithm), carries, last });
    }
    told
}

/// The service with the frontends that the other engine has.
fn as_told(service: &Arc<Service>, carries: bool, loopback: Vec<Frontend>, last: bool) -> Arc<Service> {
    let mut told = Service::clone(service);
    let mut definition = Definition::clone(&service.definition);
    if !carries {
        definition.frontends.clear();
        told.waiting.clear();
    }
    definition.frontends.extend(loopback);
    if last {
        definition.drain = Drain { timeout: Some(Duration::ZERO), on_expiry: OnExpiry::Reset };
        told.endpoints = service.endpoints.iter().map(|e| Endpoint { drain: None, ..e.clone() }).collect();
    }
    told.definition = Arc::new(definition);
    Arc::new(told)
}

/// The loopback addresses of a service's node ports, as frontends of their own.
fn on_loopback(node: &Node, service: &Service) -> Vec<Frontend> {
    if service.definition.protocol == Protocol::Sctp {
        return Vec::new();
    }
    let mut frontends = Vec::new();
    for (_, frontend) in service.held_frontends() {
        let At::NodePort(at) = &frontend.at else { continue };
        // Each port of a UDP range would need a socket of its own.
        if service.definition.protocol == Protocol::Udp && frontend.ports.last - frontend.ports.first >= RANGE_PORTS_MAX
        {
            continue;
        }
        let served = |address: &IpAddr| node.node_port_addresses(at, Family::of(*address)).any(|one| one == *address);
        let of = |address: IpAddr| Frontend { at: At::Address(address), ..frontend.clone() };
        frontends.extend(LOOPBACK.into_iter().filter(served).map(of));
    }
    frontends
}

/// Whether the guard does what this entry says for an engine that only stands beside.
pub(super) fn is_on_loopback(entry: &GuardEntry) -> bool {
    matches!(entry.spot().place, Place::Vip(address) if LOOPBACK.contains(&address))
}
