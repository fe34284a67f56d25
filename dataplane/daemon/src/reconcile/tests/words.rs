//! What tests declare, in few words.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use vipd_model::{
    Actor, Algorithm, Command, Contest, Definition, Desired, Endpoint, Frontend, Limits, Mode, Operation, Protocol,
    Request, Revision, Scheduler, ServiceKey,
};

use super::kit::{BEGIN, Setup, engines};
use crate::reconcile::{Accepted, CallError, Target};

pub(super) fn key(name: &str) -> ServiceKey {
    ServiceKey::new("ops", name).unwrap()
}

pub(super) fn vip(n: u8) -> Frontend {
    Frontend::vip(IpAddr::from([10, 96, 0, n]), 80)
}

pub(super) fn serving(vips: &[u8]) -> Definition {
    Definition { frontends: vips.iter().map(|n| vip(*n)).collect(), ..Definition::default() }
}

pub(super) fn upsert_as(key: ServiceKey, definition: Definition) -> Operation {
    Operation::UpsertService { key, definition: Arc::new(definition), scheduler: None, expected: None }
}

pub(super) fn upsert(name: &str, vips: &[u8]) -> Operation {
    upsert_as(key(name), serving(vips))
}

pub(super) fn upsert_udp(name: &str, vips: &[u8]) -> Operation {
    upsert_as(key(name), Definition { protocol: Protocol::Udp, ..serving(vips) })
}

/// One that waits for frontends that others hold.
pub(super) fn upsert_waiting(name: &str, vips: &[u8], precedence: u64) -> Operation {
    upsert_as(key(name), Definition { on_contest: Contest::Wait, precedence, ..serving(vips) })
}

pub(super) fn endpoints(hosts: &[u8]) -> Vec<Endpoint> {
    hosts.iter().map(|n| Endpoint::new(IpAddr::from([10, 1, 0, *n]), 8080)).collect()
}

pub(super) fn set(name: &str, hosts: &[u8]) -> Operation {
    Operation::SetEndpoints { key: key(name), endpoints: endpoints(hosts), expected: None }
}

pub(super) fn schedule(name: &str, algorithm: Algorithm) -> Operation {
    let scheduler = Scheduler { algorithm, ..Scheduler::default() };
    Operation::SetScheduler { key: key(name), scheduler, expected: None }
}

pub(super) fn delete(name: &str) -> Operation {
    Operation::DeleteService { key: key(name), expected: None }
}

/// The services that a call failed for.
pub(super) fn not_programmed(result: Result<Accepted, CallError>) -> BTreeSet<String> {
    match result {
        Err(CallError::NotProgrammed { problems, .. }) => {
            let names = problems.into_iter().map(|(target, _)| match target {
                Target::Service(key) => key.name.to_string(),
                Target::Node => "node".to_owned(),
            });
            names.collect()
        }
        other => panic!("expected NotProgrammed, got {other:?}"),
    }
}

/// A state with so many services of two endpoints each.
pub(super) fn declared(services: u32) -> Desired {
    let mut desired = Desired::new(engines(&Setup::default().engines, &BTreeMap::new()), Limits::default());
    for n in 0..services {
        let name = format!("s{n}");
        let [_, b, c, d] = n.to_be_bytes();
        let definition = Definition {
            frontends: vec![Frontend::vip(IpAddr::from([100, b | 64, c, d]), 80)],
            ..Definition::default()
        };
        let operations = vec![upsert_as(key(&name), definition), set(&name, &[1, 2])];
        let request = Request::Apply { operations, mode: Mode::Atomic };
        let command = Command { actor: Actor::default(), at: BEGIN, session: 0, note: String::new(), request };
        desired.dispatch(&command).unwrap();
    }
    desired
}

pub(super) fn revision(result: &Result<Accepted, CallError>) -> Revision {
    result.as_ref().unwrap().delta.revision
}
