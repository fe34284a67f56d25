//! What a service needs of the engine that serves it.
//!
//! One function stands behind acceptance, engine choice, Plan, GetInfo's documentation and the conformance suite's
//! excuses: an engine honours a service if it has every [`Feature`] of [`Needs::features`] and its algorithm.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::endpoint::{Drain, EndpointKey, OnExpiry};
use crate::feature::Feature;
use crate::frontend::{At, Family, Policy, SourceNat};
use crate::scheduler::{Algorithm, Fallback};
use crate::service::{Protocol, ProxyProtocol, Service};

/// What a service needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Every one of these.
    pub features: BTreeSet<Feature>,
    /// This algorithm; `Default` is had by every engine.
    pub algorithm: Algorithm,
    /// Where the engine does not have it, its nearest one will do.
    pub nearest: bool,
    /// Active health checks, which no engine of this version has.
    pub health_check: bool,
}

/// What a service needs of an engine; linear in its frontends and endpoints.
#[must_use]
pub fn needs(service: &Service) -> Needs {
    let features = Feature::ALL.iter().copied().filter(|feature| wants(service, *feature).is_some()).collect();
    Needs {
        features,
        algorithm: service.scheduler.algorithm,
        nearest: service.scheduler.fallback == Fallback::Nearest,
        health_check: service.definition.health_check.is_some(),
    }
}

/// The field of a service that asks for a Feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blame {
    /// A field of the definition, as its path below `service`.
    Definition(Cow<'static, str>),
    /// A field of the scheduler.
    Scheduler(&'static str),
    /// A field of an endpoint.
    Endpoint(EndpointKey, &'static str),
}

/// The first field that asks for a Feature; absent: the service does not need it.
///
/// Features that say how good an engine is, and that no field asks for (flows survive a restart, retry, counters), are
/// needed by none.
#[must_use]
pub fn wants(service: &Service, feature: Feature) -> Option<Blame> {
    let definition = &service.definition;
    let field = |name: &'static str| Some(Blame::Definition(name.into()));
    let frontend = |wants: &dyn Fn(&crate::Frontend) -> bool, name: &str| {
        let index = definition.frontends.iter().position(wants)?;
        Some(Blame::Definition(format!("frontends[{index}].{name}").into()))
    };
    let protocol = |wanted: Protocol| if definition.protocol == wanted { field("protocol") } else { None };
    let endpoint = |wants: &dyn Fn(&crate::Endpoint) -> bool, name: &'static str| {
        service.endpoints.iter().find(|e| wants(e)).map(|e| Blame::Endpoint(e.key, name))
    };
    match feature {
        Feature::Tcp => protocol(Protocol::Tcp),
        Feature::Udp => protocol(Protocol::Udp),
        Feature::Sctp => protocol(Protocol::Sctp),
        Feature::Ipv6 => frontend(&|f| f.at.has_family(Family::V6), "address"),
        Feature::NodePort => frontend(&|f| matches!(f.at, At::NodePort(_)), "node_port"),
        Feature::PortRange => frontend(&|f| !f.ports.is_one(), "port_end"),
        Feature::SourceRanges => frontend(&|f| !f.source_ranges.is_empty(), "source_ranges"),
        Feature::PolicyLocal => frontend(&|f| f.policy == Policy::Local, "policy"),
        Feature::KeepsSource => frontend(&|f| f.source_nat == SourceNat::Never, "source_nat"),
        Feature::Weight => weights(service),
        Feature::Affinity => definition.client_affinity.and_then(|_| field("client_affinity")),
        Feature::AffinityExactTimeout => definition.client_affinity.and_then(|_| field("client_affinity.timeout")),
        Feature::AffinityPrefix => {
            let affinity = definition.client_affinity?;
            match (affinity.prefix_v4 < 32, affinity.prefix_v6 < 128) {
                (true, _) if service.has_family(Family::V4) => field("client_affinity.prefix_v4"),
                (_, true) if service.has_family(Family::V6) => field("client_affinity.prefix_v6"),
                _ => None,
            }
        }
        Feature::DrainReset if resets(&definition.drain) => field("drain.on_expiry"),
        Feature::DrainReset => endpoint(&|e| e.drain.as_ref().is_some_and(resets), "drain.on_expiry"),
        Feature::MaxConnections => endpoint(&|e| e.max_connections > 0, "max_connections"),
        Feature::IdleTimeout => definition.idle_timeout.and_then(|_| field("idle_timeout")),
        Feature::ProxyProtocol if definition.proxy_protocol != ProxyProtocol::None => field("proxy_protocol"),
        Feature::ProxyProtocol => None,
        Feature::HashSourcePort => service.scheduler.hash_source_port.then_some(Blame::Scheduler("hash_source_port")),
        Feature::LoopbackEndpoints => endpoint(&|e| e.key.address.is_loopback(), "address"),
        Feature::AffinitySurvivesRestart
        | Feature::FlowsSurviveRestart
        | Feature::Retry
        | Feature::CountConnections
        | Feature::CountActive
        | Feature::CountBytes => None,
    }
}

/// Weights matter where two endpoints that take flows differ in them, and the algorithm looks: LC does not.
fn weights(service: &Service) -> Option<Blame> {
    if service.scheduler.algorithm == Algorithm::Lc {
        return None;
    }
    let mut taking = service.endpoints.iter().filter(|e| e.weight > 0);
    let first = taking.next()?;
    let other = taking.find(|e| e.weight != first.weight)?;
    // The one whose weight was said: 1 is what an endpoint has without.
    let said = if first.weight == 1 { other } else { first };
    Some(Blame::Endpoint(said.key, "weight"))
}

/// RESET without a time-out never happens.
fn resets(drain: &Drain) -> bool {
    drain.on_expiry == OnExpiry::Reset && drain.timeout.is_some()
}
