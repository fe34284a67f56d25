//! `vipctl delete`, `set-endpoints`, `set-scheduler`: one part of a service, or all of it.

use std::process::ExitCode;

use vipd_client::v1::operation::Operation as Op;
use vipd_client::v1::{
    ApplyRequest, DeleteServiceRequest, Operation, PatchEndpointsRequest, Scheduler, SetEndpointsRequest,
    SetSchedulerRequest, scheduler::Fallback,
};

use crate::cli::{Delete, FallbackWord, SetEndpoints, SetScheduler};
use crate::failure::Failure;
use crate::output;
use crate::session::Session;
use crate::text;

pub(super) async fn delete(session: &Session, delete: &Delete) -> Result<ExitCode, Failure> {
    let mut dataplane = session.client.dataplane();
    if let [name] = delete.names.as_slice() {
        let request = DeleteServiceRequest {
            owner: delete.owner.clone(),
            name: name.clone(),
            options: delete.write.options(),
            expected_revision: None,
        };
        let reply = dataplane.delete_service(session.ask(request)).await?.into_inner();
        let subject = if reply.existed() { format!("{name} deleted") } else { format!("{name} was not there") };
        output::reply(session.format, &reply, || text::change(&subject, reply.change.as_ref()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let operation = |name: &String| Operation {
        operation: Some(Op::DeleteService(DeleteServiceRequest {
            owner: delete.owner.clone(),
            name: name.clone(),
            ..Default::default()
        })),
    };
    let operations = delete.names.iter().map(operation).collect();
    let request = ApplyRequest { operations, options: delete.write.options(), ..Default::default() };
    let reply = dataplane.apply(session.ask(request)).await?.into_inner();
    let subject = format!("{} deleted", text::count(delete.names.len(), "service"));
    output::reply(session.format, &reply, || text::change(&subject, reply.change.as_ref()))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn endpoints(session: &Session, set: &SetEndpoints) -> Result<ExitCode, Failure> {
    let mut dataplane = session.client.dataplane();
    let (owner, name) = (set.owner.clone(), set.name.clone());
    let options = set.write.options();
    if set.add.is_empty() && set.remove.is_empty() {
        let endpoints = set.endpoints.clone();
        let subject = format!("{name}: {}", text::count(endpoints.len(), "endpoint"));
        let request = SetEndpointsRequest { owner, name, endpoints, options, expected_revision: None };
        let reply = dataplane.set_endpoints(session.ask(request)).await?.into_inner();
        output::reply(session.format, &reply, || text::change(&subject, reply.change.as_ref()))?;
    } else {
        let (upsert, remove) = (set.add.clone(), set.remove.clone());
        let subject = format!("{name}: {} set, {} removed", text::count(upsert.len(), "endpoint"), remove.len());
        let request = PatchEndpointsRequest { owner, name, upsert, remove, options, expected_revision: None };
        let reply = dataplane.patch_endpoints(session.ask(request)).await?.into_inner();
        output::reply(session.format, &reply, || text::change(&subject, reply.change.as_ref()))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn scheduler(session: &Session, set: &SetScheduler) -> Result<ExitCode, Failure> {
    let fallback = match set.fallback {
        None => Fallback::Unspecified,
        Some(FallbackWord::Refused) => Fallback::Refused,
        Some(FallbackWord::Nearest) => Fallback::Nearest,
    };
    let scheduler = Scheduler {
        algorithm: set.algorithm.into(),
        hash_source_port: set.hash_source_port,
        fallback: fallback.into(),
    };
    let request = SetSchedulerRequest {
        owner: set.owner.clone(),
        name: set.name.clone(),
        scheduler: Some(scheduler),
        options: set.write.options(),
        expected_revision: None,
    };
    let reply = session.client.dataplane().set_scheduler(session.ask(request)).await?.into_inner();
    let subject = format!("{}: scheduler {}", set.name, text::algorithm(set.algorithm));
    output::reply(session.format, &reply, || text::change(&subject, reply.change.as_ref()))?;
    Ok(ExitCode::SUCCESS)
}
