//! `vipd.v1.Dataplane`: each call read, asked for, answered.

use std::pin::Pin;

use futures::Stream;
use tonic::{Request, Response, Status, Streaming};
use vipd_model::command::{Mode, Request as Asked};
use vipd_model::problem::Refused;
use vipd_proto::v1;
use vipd_proto::v1::dataplane_server::Dataplane;

use super::call::Api;
use super::convert::{operation, owner, problem, scalar};

/// All refusals of an Apply together; the reply has its change beside them.
const REFUSALS_BYTES: usize = super::limits::REPLY_BYTES - 256 * 1024;

/// Answers of a stream.
pub type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Dataplane for Api {
    async fn upsert_service(
        &self,
        request: Request<v1::UpsertServiceRequest>,
    ) -> Result<Response<v1::UpsertServiceResponse>, Status> {
        let (call, mut message) = self.enter(request)?;
        let options = message.options.take();
        let (options, operation) = call.read(|default, at, problems| {
            let options = operation::parse_options(options, at, problems);
            let operation = operation::parse_upsert(message, default, at, problems);
            Some((options?, operation?))
        })?;
        let accepted = call.write(Asked::One(operation), options).await?;
        Ok(Response::new(v1::UpsertServiceResponse { change: call.change(&accepted) }))
    }

    async fn delete_service(
        &self,
        request: Request<v1::DeleteServiceRequest>,
    ) -> Result<Response<v1::DeleteServiceResponse>, Status> {
        let (call, mut message) = self.enter(request)?;
        let options = message.options.take();
        let (options, operation) = call.read(|default, at, problems| {
            let options = operation::parse_options(options, at, problems);
            let operation = operation::parse_delete(&message, default, at, problems);
            Some((options?, operation?))
        })?;
        let key = operation.key().clone();
        let accepted = call.write(Asked::One(operation), options).await?;
        let existed = accepted.delta.services.iter().any(|change| change.key == key && change.before.is_some());
        Ok(Response::new(v1::DeleteServiceResponse { change: call.change(&accepted), existed: Some(existed) }))
    }

    async fn set_endpoints(
        &self,
        request: Request<v1::SetEndpointsRequest>,
    ) -> Result<Response<v1::SetEndpointsResponse>, Status> {
        let (call, mut message) = self.enter(request)?;
        let options = message.options.take();
        let (options, operation) = call.read(|default, at, problems| {
            let options = operation::parse_options(options, at, problems);
            let operation = operation::parse_set_endpoints(&message, default, at, problems);
            Some((options?, operation?))
        })?;
        let accepted = call.write(Asked::One(operation), options).await?;
        Ok(Response::new(v1::SetEndpointsResponse { change: call.change(&accepted) }))
    }

    async fn patch_endpoints(
        &self,
        request: Request<v1::PatchEndpointsRequest>,
    ) -> Result<Response<v1::PatchEndpointsResponse>, Status> {
        let (call, mut message) = self.enter(request)?;
        let options = message.options.take();
        let (options, operation) = call.read(|default, at, problems| {
            let options = operation::parse_options(options, at, problems);
            let operation = operation::parse_patch(&message, default, at, problems);
            Some((options?, operation?))
        })?;
        let accepted = call.write(Asked::One(operation), options).await?;
        Ok(Response::new(v1::PatchEndpointsResponse { change: call.change(&accepted) }))
    }

    async fn set_scheduler(
        &self,
        request: Request<v1::SetSchedulerRequest>,
    ) -> Result<Response<v1::SetSchedulerResponse>, Status> {
        let (call, mut message) = self.enter(request)?;
        let options = message.options.take();
        let (options, operation) = call.read(|default, at, problems| {
            let options = operation::parse_options(options, at, problems);
            let operation = operation::parse_set_scheduler(&message, default, at, problems);
            Some((options?, operation?))
        })?;
        let accepted = call.write(Asked::One(operation), options).await?;
        Ok(Response::new(v1::SetSchedulerResponse { change: call.change(&accepted) }))
    }

    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Result<Response<v1::ApplyResponse>, Status> {
        let (call, message) = self.enter(request)?;
        let (options, mode, mut operations) = call.read(|default, at, problems| {
            let options = operation::parse_options(message.options, at, problems);
            let mode = operation::parse_mode(message.mode, problems)?;
            let operations = operation::parse_operations(message.operations, mode, default, problems);
            Some((options?, mode, operations?))
        })?;
        if mode == Mode::Each {
            operations.refuse_where(|operation, root| call.caller.may_do(operation, root));
        }
        let asked = Asked::Apply { operations: operations.converted, mode };
        let accepted = call.write(asked, options).await?;
        let mut refused = operations.refused;
        refused.extend(accepted.delta.refused.iter().map(|one| in_request(one, &operations.indices)));
        refused.sort_by_key(|one| one.index);
        Ok(Response::new(v1::ApplyResponse { change: call.change(&accepted), refused: bounded(&refused) }))
    }

    async fn sync(&self, request: Request<Streaming<v1::SyncRequest>>) -> Result<Response<v1::SyncResponse>, Status> {
        let (call, messages) = self.enter(request)?;
        super::sync::sync(self, &call, messages).await.map(Response::new)
    }

    async fn get_service(
        &self,
        request: Request<v1::GetServiceRequest>,
    ) -> Result<Response<v1::GetServiceResponse>, Status> {
        let (call, message) = self.enter(request)?;
        let key =
            call.read(|default, at, problems| scalar::key(&message.owner, &message.name, default, at, problems))?;
        super::list::get(self, &call, &key).map(Response::new)
    }

    async fn list_services(
        &self,
        request: Request<v1::ListServicesRequest>,
    ) -> Result<Response<v1::ListServicesResponse>, Status> {
        let (call, message) = self.enter(request)?;
        super::list::list(self, &call, message).await.map(Response::new)
    }

    type WatchStream = Answers<v1::WatchResponse>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (call, message) = self.enter(request)?;
        super::watch::watch(self, &call, message).map(Response::new)
    }

    async fn set_owner(&self, request: Request<v1::SetOwnerRequest>) -> Result<Response<v1::SetOwnerResponse>, Status> {
        let (call, message) = self.enter(request)?;
        let (options, owner) = call.read(|default, at, problems| {
            let options = operation::parse_options(message.options, at, problems);
            let at = at.field("owner");
            match message.owner {
                Some(owner) => Some((owner::parse(owner, default, &at, problems)?, options?)),
                None => problems.invalid(&at, "is missing; give at least its name"),
            }
            .map(|(owner, options)| (options, owner))
        })?;
        let accepted = call.write(Asked::SetOwner(owner), options).await?;
        Ok(Response::new(v1::SetOwnerResponse { change: call.change(&accepted) }))
    }

    async fn delete_owner(
        &self,
        request: Request<v1::DeleteOwnerRequest>,
    ) -> Result<Response<v1::DeleteOwnerResponse>, Status> {
        let (call, message) = self.enter(request)?;
        let (options, name) = call.read(|default, at, problems| {
            let options = operation::parse_options(message.options, at, problems);
            // Deleting is about somebody: nobody's default.
            let named = match message.name.as_str() {
                "" => problems.invalid(&at.field("name"), "is empty; name the owner to be deleted"),
                name => scalar::owner(name, default, &at.field("name"), problems),
            };
            Some((options?, named?))
        })?;
        let accepted = call.write(Asked::DeleteOwner(name), options).await?;
        let services_removed = accepted.delta.counts.removed;
        Ok(Response::new(v1::DeleteOwnerResponse { change: call.change(&accepted), services_removed }))
    }

    async fn list_owners(
        &self,
        request: Request<v1::ListOwnersRequest>,
    ) -> Result<Response<v1::ListOwnersResponse>, Status> {
        let (call, _) = self.enter(request)?;
        Ok(Response::new(super::list::owners(self, &call)))
    }

    async fn renew_lease(
        &self,
        request: Request<v1::RenewLeaseRequest>,
    ) -> Result<Response<v1::RenewLeaseResponse>, Status> {
        let (call, message) = self.enter(request)?;
        let name =
            call.read(|default, at, problems| scalar::owner(&message.owner, default, &at.field("owner"), problems))?;
        let options = operation::Options { session: message.session, ..super::call::only_note(String::new()) };
        call.write(Asked::RenewLease(name.clone()), options).await?;
        let expires = self.control.read(|core| core.desired.owner(&name).and_then(|record| core.lease_expires(record)));
        Ok(Response::new(v1::RenewLeaseResponse { expires: expires.map(scalar::timestamp) }))
    }
}

/// Every refusal, each with as many of its problems as leave room for all in one reply.
fn bounded(refused: &[Refused]) -> Vec<v1::Refused> {
    let all: Vec<_> = refused.iter().map(problem::refused).collect();
    let bytes: usize = all.iter().map(prost::Message::encoded_len).sum();
    if bytes < REFUSALS_BYTES {
        return all;
    }
    let most = REFUSALS_BYTES / all.len();
    let shorter = |mut one: v1::Refused| {
        one.problems.truncate(1);
        for problem in &mut one.problems {
            // Names and path take up to three names' length.
            let room = most.saturating_sub(problem.field.len() + one.owner.len() + one.name.len() + 16);
            let end = problem.message.char_indices().map(|(at, _)| at).take_while(|at| *at <= room).last();
            problem.message.truncate(end.unwrap_or_default());
        }
        one
    };
    all.into_iter().map(shorter).collect()
}

/// A refusal of the `n`th operation that was converted, told of the operation of the request that it was.
fn in_request(refused: &Refused, indices: &[u32]) -> Refused {
    let index = indices.get(refused.index as usize).copied().unwrap_or(refused.index);
    let mut refused = refused.clone();
    let before = format!("operations[{}]", refused.index);
    for problem in &mut refused.problems {
        if let Some(rest) = problem.field.strip_prefix(&before) {
            problem.field = format!("operations[{index}]{rest}");
        }
    }
    refused.index = index;
    refused
}
