//! What commands do to the desired state.

mod any;
mod contests;
mod engine_choice;
mod laws;
mod loops;
mod owners;
mod restore;
mod sync;
mod validation;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Desired;
use crate::command::{Actor, Command, Mode, Operation, Request};
use crate::delta::Delta;
use crate::endpoint::{Endpoint, EndpointState};
use crate::feature::{Ability, EngineKind, Engines, Feature};
use crate::frontend::Frontend;
use crate::limits::Limits;
use crate::name::ServiceKey;
use crate::problem::{Problem, ProblemCode, Rejection};
use crate::scheduler::{Algorithm, Scheduler};
use crate::service::Definition;
use crate::{Millis, Revision};

/// A node under test, with a clock.
struct Node {
    desired: Desired,
    now: u64,
}

impl Node {
    fn new() -> Self {
        Self { desired: Desired::new(engines(), Limits::default()), now: 1000 }
    }

    fn call(&mut self, request: Request) -> Result<Delta, Rejection> {
        let (actor, at) = (Actor::default(), Millis(self.now));
        self.desired.dispatch(&Command { actor, at, session: 0, note: String::new(), request })
    }

    fn one(&mut self, operation: Operation) -> Result<Delta, Rejection> {
        self.call(Request::One(operation))
    }

    fn apply(&mut self, mode: Mode, operations: Vec<Operation>) -> Result<Delta, Rejection> {
        self.call(Request::Apply { operations, mode })
    }
}

/// Userspace and nftables are usable, with what the others lack left to userspace; IPVS is not usable here.
fn engines() -> Engines {
    let all: BTreeSet<Feature> = Feature::ALL.iter().copied().collect();
    let without = |features: &[Feature]| all.iter().copied().filter(|f| !features.contains(f)).collect();
    let ability = |features, algorithms: &[Algorithm], reason: &str| Ability {
        usable: reason.is_empty(),
        reason: reason.into(),
        features,
        algorithms: algorithms.iter().copied().collect(),
    };
    let few = [Algorithm::Rr, Algorithm::Random, Algorithm::Sh];
    let proxy = without(&[Feature::ProxyProtocol, Feature::Sctp, Feature::AffinityPrefix]);
    let kernel = without(&[Feature::ProxyProtocol, Feature::Retry, Feature::LoopbackEndpoints, Feature::IdleTimeout]);
    let ipvs = without(&[Feature::AffinityExactTimeout, Feature::Retry]);
    let abilities = [
        (EngineKind::Nftables, ability(kernel, &few, "")),
        (EngineKind::Userspace, ability(proxy, &Algorithm::ALL[1..13], "")),
        (EngineKind::Ipvs, ability(ipvs, &Algorithm::ALL[1..15], "the kernel has no ip_vs")),
    ];
    let order = vec![EngineKind::Nftables, EngineKind::Ipvs, EngineKind::Userspace];
    Engines { abilities: BTreeMap::from(abilities), order, default_reason: "configured".into() }
}

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("ops", name).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn vip(text: &str, port: u16) -> Frontend {
    Frontend::vip(ip(text), port)
}

fn endpoint(text: &str, port: u16) -> Endpoint {
    Endpoint::new(ip(text), port)
}

fn serving(frontends: Vec<Frontend>) -> Definition {
    Definition { frontends, ..Definition::default() }
}

fn upsert(name: &str, definition: Definition) -> Operation {
    Operation::UpsertService { key: key(name), definition: Arc::new(definition), scheduler: None, expected: None }
}

fn set(name: &str, endpoints: Vec<Endpoint>) -> Operation {
    Operation::SetEndpoints { key: key(name), endpoints, expected: None }
}

fn delete(name: &str) -> Operation {
    Operation::DeleteService { key: key(name), expected: None }
}

fn schedule(name: &str, algorithm: Algorithm) -> Operation {
    let scheduler = Scheduler { algorithm, ..Scheduler::default() };
    Operation::SetScheduler { key: key(name), scheduler, expected: None }
}

fn fields(rejection: Result<Delta, Rejection>) -> Vec<(ProblemCode, String)> {
    rejection.unwrap_err().problems.into_iter().map(|p: Problem| (p.code, p.field)).collect()
}

fn state(endpoint: Endpoint, state: EndpointState) -> Endpoint {
    Endpoint { state, ..endpoint }
}

const SECOND: Duration = Duration::from_secs(1);

fn revision(number: u64) -> Revision {
    Revision(number)
}
