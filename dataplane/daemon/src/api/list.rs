//! GetService, ListServices, ListOwners.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message as _;
use tonic::Status;
use vipd_model::problem::Rejection;
use vipd_model::{OwnerName, Problem, ProblemCode, Service, ServiceKey};
use vipd_proto::v1;

use super::call::{Api, Call};
use super::change;
use super::convert::{Path, Problems, owner, scalar};
use super::limits::{PAGE_BYTES, PAGE_SERVICES, PAGE_SERVICES_MOST};
use crate::reconcile::{Core, ServiceState};

/// Services looked at with the state locked, before writers get a turn.
const CHUNK: usize = 512;

/// One service.
pub(super) fn get(api: &Api, call: &Call, key: &ServiceKey) -> Result<v1::GetServiceResponse, Status> {
    call.caller.may_read(&key.owner, "owner").map_err(|rejection| call.refused(Some(key.clone()), &rejection))?;
    let found = api.control.read(|core| {
        let service = core.desired.service(key)?;
        Some((Arc::clone(service), core.status(service)))
    });
    let Some((service, status)) = found else {
        return Err(super::status::rejected(&no_such_service(key)));
    };
    let v1::ServiceState { service, endpoints, status } = change::service_state(&service, &status, false);
    Ok(v1::GetServiceResponse { service, endpoints, status })
}

/// What a list selects by.
struct Filter {
    owner: Option<OwnerName>,
    labels: BTreeMap<String, String>,
    /// An address, perhaps with a port; empty: any.
    frontend: String,
    only_problems: bool,
}

impl Filter {
    fn matches(&self, service: &Service) -> bool {
        let labels = &service.definition.labels;
        self.owner.as_ref().is_none_or(|owner| service.key.owner == *owner)
            && self.labels.iter().all(|(name, value)| labels.get(name) == Some(value))
    }
}

/// A page token is the last key of the page before; names have no line ends.
pub(super) fn parse_token(text: &str, at: &Path<'_>, problems: &mut Problems) -> Option<Option<ServiceKey>> {
    if text.is_empty() {
        return Some(None);
    }
    match text.split_once('\n').and_then(|(owner, name)| ServiceKey::new(owner, name).ok()) {
        Some(key) => Some(Some(key)),
        None => problems.invalid(at, "is none that vipd gave; begin without one"),
    }
}

/// The token of a page that ends with this service.
pub(super) fn token_of(owner: &str, name: &str) -> String {
    format!("{owner}\n{name}")
}

/// A page of services.
pub(super) async fn list(
    api: &Api,
    call: &Call,
    message: v1::ListServicesRequest,
) -> Result<v1::ListServicesResponse, Status> {
    let (filter, mut after) = call.read(|default, at, problems| {
        let owner = match message.owner.as_str() {
            "" => Some(None),
            name => scalar::owner(name, default, &at.field("owner"), problems).map(Some),
        };
        let after = parse_token(&message.page_token, &at.field("page_token"), problems);
        let (labels, frontend, only_problems) = (message.labels, message.frontend, message.only_problems);
        Some((Filter { owner: owner?, labels, frontend, only_problems }, after?))
    })?;
    if let Some(owner) = &filter.owner {
        call.caller.may_read(owner, "owner").map_err(|rejection| call.refused(None, &rejection))?;
    }
    let size = match message.page_size as usize {
        0 => PAGE_SERVICES,
        size => size.min(PAGE_SERVICES_MOST),
    };
    let mut page =
        v1::ListServicesResponse { revision: api.control.read(|core| core.desired.revision().0), ..Default::default() };
    let mut bytes = 0;
    loop {
        let looked = api.control.read(|core| look(core, call, &filter, after.as_ref(), size));
        let Looked { found, last } = looked.map_err(|rejection| call.refused(None, &rejection))?;
        for (service, status) in found {
            let state = change::service_state(&service, &status, message.omit_endpoints);
            bytes += state.encoded_len();
            // One service may be larger than a page: then it is the page.
            if page.services.len() == size || (bytes > PAGE_BYTES && !page.services.is_empty()) {
                page.next_page_token = token(&page);
                return Ok(page);
            }
            page.services.push(state);
        }
        match last {
            Some(key) => after = Some(key),
            None => return Ok(page),
        }
        tokio::task::yield_now().await;
    }
}

fn token(page: &v1::ListServicesResponse) -> String {
    let last = page.services.last().and_then(|state| state.service.as_ref());
    last.map(|service| token_of(&service.owner, &service.name)).unwrap_or_default()
}

struct Looked {
    found: Vec<(Arc<Service>, crate::reconcile::core::Status)>,
    /// Where to go on; absent: that was all.
    last: Option<ServiceKey>,
}

/// Looks at the next services, in order.
fn look(
    core: &Core,
    call: &Call,
    filter: &Filter,
    after: Option<&ServiceKey>,
    most: usize,
) -> Result<Looked, Rejection> {
    let services: Box<dyn Iterator<Item = &Arc<Service>>> = match (filter.frontend.as_str(), &filter.owner) {
        ("", Some(owner)) if after.is_none_or(|key| key.owner < *owner) => Box::new(core.desired.services_of(owner)),
        ("", _) => Box::new(core.desired.services_after(after)),
        (frontend, _) => {
            let holders = core.desired.holders(&scalar::cut(frontend))?;
            Box::new(holders.into_iter().filter(|service| after.is_none_or(|after| service.key > *after)))
        }
    };
    let mut looked = Looked { found: Vec::new(), last: None };
    for (count, service) in services.enumerate() {
        if filter.owner.as_ref().is_some_and(|owner| service.key.owner > *owner) {
            break;
        }
        looked.last = Some(service.key.clone());
        if call.caller.reads(&service.key.owner) && filter.matches(service) {
            let status = core.status(service);
            if !filter.only_problems || !status.problems.is_empty() || status.state == ServiceState::Failed {
                looked.found.push((Arc::clone(service), status));
            }
        }
        if count + 1 == CHUNK || looked.found.len() > most {
            return Ok(looked);
        }
    }
    looked.last = None;
    Ok(looked)
}

/// The owners that the caller may read.
pub(super) fn owners(api: &Api, call: &Call) -> v1::ListOwnersResponse {
    api.control.read(|core| {
        let records = core.desired.owners().filter(|record| call.caller.reads(&record.owner.name));
        let owners = records.map(|record| {
            let tally = core.desired.tally(&record.owner.name);
            let failed = core.tracks.failed().iter().filter(|key| key.owner == record.owner.name).count();
            v1::OwnerStatus {
                owner: Some(owner::message(&record.owner)),
                services: tally.services as u64,
                endpoints: tally.endpoints as u64,
                session: record.session,
                session_holder: record.session_holder.clone(),
                last_write: Some(scalar::timestamp(record.last_write)),
                last_sync: record.last_sync.map(scalar::timestamp),
                lease_expires: core.lease_expires(record).map(scalar::timestamp),
                failed_services: failed as u64,
            }
        });
        v1::ListOwnersResponse { owners: owners.collect() }
    })
}

/// NO_SUCH_SERVICE.
pub(super) fn no_such_service(key: &ServiceKey) -> Rejection {
    Problem::new(
        ProblemCode::NoSuchService,
        "name",
        format!("there is no service {key}; ListServices shows what there is"),
    )
    .into()
}
