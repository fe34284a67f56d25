//! What a write did, as its caller is told.

use vipd_model::{Problem, Revision};
use vipd_proto::v1;

use super::convert::{engine, problem, scalar, scheduler, service};
use crate::reconcile::core::Status;
use crate::reconcile::{Accepted, ServiceState};

/// The change of a write.
#[must_use]
pub fn change(accepted: &Accepted, epoch: &str) -> v1::Change {
    v1::Change {
        revision: accepted.delta.revision.0,
        changed: Some(accepted.delta.changed()),
        in_force: Some(accepted.in_force),
        epoch: epoch.to_owned(),
        notes: problem::messages(&accepted.delta.notes),
    }
}

/// A service's status.
#[must_use]
pub fn status(status: &Status) -> v1::Status {
    let state = match status.state {
        ServiceState::InForce => v1::status::State::InForce,
        ServiceState::Pending => v1::status::State::Pending,
        ServiceState::Failed => v1::status::State::Failed,
        ServiceState::Withdrawn => v1::status::State::Withdrawn,
    };
    let Revision(newest) = status.revisions.newest();
    v1::Status {
        state: state.into(),
        revision: newest,
        definition_revision: status.revisions.definition.0,
        endpoints_revision: status.revisions.endpoints.0,
        scheduler_revision: status.revisions.scheduler.0,
        programmed_revision: status.programmed_revision.0,
        programmed_at: status.programmed_at.map(scalar::timestamp),
        engine: engine::message(status.engine).into(),
        draining_engine: engine::message(status.draining_engine).into(),
        algorithm: status.algorithm.map(scheduler::algorithm).unwrap_or_default().into(),
        problems: bounded(&status.problems),
        usable_endpoints: status.usable_endpoints,
        local_ready_endpoints: status.local_ready_endpoints,
        waiting_frontends: status.waiting.clone(),
    }
}

/// A status is sent with its service, which may have a thousand frontends that wait.
fn bounded(problems: &[Problem]) -> Vec<v1::Problem> {
    problem::messages(&problems[..problems.len().min(vipd_model::limits::PROBLEMS)])
}

/// A service with everything known of it.
#[must_use]
pub fn service_state(declared: &vipd_model::Service, known: &Status, omit_endpoints: bool) -> v1::ServiceState {
    let endpoints = if omit_endpoints { &[] } else { declared.endpoints.as_ref() };
    v1::ServiceState {
        service: Some(service::message(declared)),
        endpoints: endpoints.iter().map(super::convert::endpoint::message).collect(),
        status: Some(status(known)),
    }
}
