//! What commands do to the desired state.

mod writes;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Desired;
use crate::command::{Actor, Command, Mode, Operation, Request};
use crate::delta::Delta;
use crate::endpoint::{Endpoint, EndpointState};
use crate::frontend::Frontend;
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
        Self { desired: Desired::new(crate::Engines::default(), crate::Limits::default()), now: 1000 }
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
