//! `vipd.v1.Node`: inspect and operate the node.

use tonic::{Request, Response, Status};
use vipd_model::command::{Mode, Request as Asked};
use vipd_model::{Drain, ServiceKey};
use vipd_proto::v1;
use vipd_proto::v1::node_server::Node;

use super::call::{Api, only_note};
use super::convert::{endpoint, engine, operation, problem, scalar};
use super::dataplane::Answers;
use super::status;
use crate::reconcile::Core;
use crate::reconcile::lanes::{Action, KernelChange};

/// Kernel changes listed by a Plan.
const CHANGES: usize = 1_000;

#[tonic::async_trait]
impl Node for Api {
    async fn get_info(&self, request: Request<v1::GetInfoRequest>) -> Result<Response<v1::GetInfoResponse>, Status> {
        let _ = self.enter(request)?;
        let live = self.control.findings().await.map_err(|error| status::status(&error))?;
        Ok(Response::new(self.control.read(|core| super::info::info(core, &live))))
    }

    async fn set_default_engine(
        &self,
        request: Request<v1::SetDefaultEngineRequest>,
    ) -> Result<Response<v1::SetDefaultEngineResponse>, Status> {
        let (call, message) = self.enter(request)?;
        let (asked, note) = call.read(|_, at, problems| {
            let engine = engine::parse(message.engine, &at.field("engine"), problems);
            let drain = match &message.drain {
                None => Some(Drain::default()),
                Some(drain) => endpoint::parse_drain(drain, &at.field("drain"), problems),
            };
            let note = operation::parse_note(message.note, problems);
            let allow_degraded = message.allow_degraded;
            Some((Asked::SetDefaultEngine { engine: engine?, allow_degraded, drain: drain? }, note?))
        })?;
        let default = || {
            self.control
                .read(|core| vipd_model::choose::default_engine(core.desired.engines(), core.desired.default_engine()))
        };
        let (from, before) = (default(), self.control.read(Core::engines_of_followers));
        let accepted = call.write(asked, only_note(note)).await?;
        let (to, after) = (default(), self.control.read(Core::engines_of_followers));
        let moved = after.iter().filter(|(key, engine)| before.get(key).is_some_and(|before| before != *engine));
        Ok(Response::new(v1::SetDefaultEngineResponse {
            from: engine::message(from).into(),
            to: engine::message(to).into(),
            services_moved: moved.count() as u64,
            flows_left: self.control.flows_left().await.map_err(|error| status::status(&error))?,
            degraded: accepted.delta.refused.iter().map(problem::refused).collect(),
        }))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        let (call, message) = self.enter(request)?;
        super::explain::serve(self, &call, message).await.map(Response::new)
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        let (call, message) = self.enter(request)?;
        let (operations, engine) = call.read(|default, at, problems| {
            let operations = operation::parse_operations(message.operations, Mode::Atomic, default, problems);
            let engine = engine::parse(message.engine, &at.field("engine"), problems);
            Some((operations?, engine?))
        })?;
        let asked = Asked::Apply { operations: operations.converted.clone(), mode: Mode::Atomic };
        call.caller.may_ask(&asked).map_err(|rejection| call.refused(None, &rejection))?;
        let flows_cut = super::flows::cut(self, operations.converted.clone()).await;
        let planned = self.control.plan(operations.converted, engine).await.map_err(|error| status::status(&error))?;
        Ok(Response::new(v1::PlanResponse {
            changes: planned.changes.iter().take(CHANGES).map(kernel_change).collect(),
            changes_total: planned.changes.len() as u64,
            refused: planned.refused.iter().map(problem::refused).collect(),
            flows_cut,
        }))
    }

    async fn verify(&self, request: Request<v1::VerifyRequest>) -> Result<Response<v1::VerifyResponse>, Status> {
        let (call, message) = self.enter(request)?;
        let service = self.one_or_all(&call, &message.owner, &message.name)?;
        let verified = self.control.verify(service).await.map_err(|error| status::status(&error))?;
        Ok(Response::new(v1::VerifyResponse {
            drift: verified.drift.iter().take(CHANGES).map(|drift| problem::message(&drift.problem())).collect(),
            objects: verified.objects,
            revision: verified.revision.0,
        }))
    }

    async fn get_stats(&self, request: Request<v1::GetStatsRequest>) -> Result<Response<v1::GetStatsResponse>, Status> {
        let (call, message) = self.enter(request)?;
        super::stats::stats(self, &call, message).await.map(Response::new)
    }

    async fn release_hold(
        &self,
        request: Request<v1::ReleaseHoldRequest>,
    ) -> Result<Response<v1::ReleaseHoldResponse>, Status> {
        let (call, message) = self.enter(request)?;
        let note = call.read(|_, _, problems| operation::parse_note(message.note, problems))?;
        call.caller.may_operate().map_err(|rejection| call.refused(None, &rejection))?;
        let released = self.control.release_hold(call.caller.peer.to_string(), note).await;
        let objects_removed = released.map_err(|error| status::status(&error))?;
        Ok(Response::new(v1::ReleaseHoldResponse { objects_removed }))
    }

    type EventsStream = Answers<v1::EventsResponse>;

    async fn events(&self, request: Request<v1::EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        let (call, message) = self.enter(request)?;
        super::events::events(self, &call, message).map(Response::new)
    }
}

impl Api {
    /// The service that a request names, if it names one; it must exist.
    pub(super) fn one_or_all(
        &self,
        call: &super::call::Call,
        owner: &str,
        name: &str,
    ) -> Result<Option<ServiceKey>, Status> {
        if name.is_empty() {
            return Ok(None);
        }
        let key = call.read(|default, at, problems| scalar::key(owner, name, default, at, problems))?;
        call.caller.may_read(&key.owner, "owner").map_err(|rejection| call.refused(Some(key.clone()), &rejection))?;
        if self.control.read(|core| core.desired.service(&key).is_none()) {
            return Err(status::rejected(&super::list::no_such_service(&key)));
        }
        Ok(Some(key))
    }
}

fn kernel_change(change: &KernelChange) -> v1::plan_response::KernelChange {
    use v1::plan_response::kernel_change::Action as Told;
    let action = match change.action {
        Action::Add => Told::Add,
        Action::Change => Told::Change,
        Action::Remove => Told::Remove,
    };
    v1::plan_response::KernelChange { action: action.into(), object: change.object.clone() }
}
