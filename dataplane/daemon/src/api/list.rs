//! GetService, ListServices, ListOwners.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use prost::Message as _;
use tonic::Status;
use vipd_model::problem::Rejection;
use vipd_model::{At, Frontend, OwnerName, Problem, ProblemCode, Service, ServiceKey};
use vipd_proto::v1;

use super::call::{Api, Call};
use super::change;
use super::convert::{owner, scalar};
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
    labels: HashMap<String, String>,
    frontend: Option<(IpAddr, Option<u16>)>,
    only_problems: bool,
}

impl Filter {
    fn matches(&self, service: &Service) -> bool {
        let labels = &service.definition.labels;
        self.labels.iter().all(|(name, value)| labels.get(name) == Some(value))
            && self.frontend.is_none_or(|wanted| service.held_frontends().any(|(_, frontend)| is_at(frontend, wanted)))
    }
}

fn is_at(frontend: &Frontend, (address, port): (IpAddr, Option<u16>)) -> bool {
    matches!(frontend.at, At::Address(at) if at == address) && port.is_none_or(|port| frontend.ports.contains(port))
}

/// `10.96.0.10`, `10.96.0.10:80`, `fd00::1` or `[fd00::1]:80`.
fn parse_frontend(text: &str) -> Result<Option<(IpAddr, Option<u16>)>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return scalar::address(&socket.ip().to_string()).map(|address| Some((address, Some(socket.port()))));
    }
    scalar::address(text).map(|address| Some((address, None)))
}

/// A page token is the last key of the page before; names have no line ends.
fn parse_token(text: &str) -> Option<ServiceKey> {
    let (owner, name) = text.split_once('\n')?;
    ServiceKey::new(owner, name).ok()
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
        let frontend = match parse_frontend(&message.frontend) {
            Ok(frontend) => Some(frontend),
            Err(why) => problems.invalid(&at.field("frontend"), why),
        };
        let after = match message.page_token.as_str() {
            "" => Some(None),
            token => match parse_token(token) {
                Some(key) => Some(Some(key)),
                None => problems.invalid(&at.field("page_token"), "is none that vipd gave; begin without one"),
            },
        };
        let (labels, only_problems) = (message.labels, message.only_problems);
        Some((Filter { owner: owner?, labels, frontend: frontend?, only_problems }, after?))
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
        let Looked { found, last } = api.control.read(|core| look(core, call, &filter, after.as_ref(), size));
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
    last.map(|service| format!("{}\n{}", service.owner, service.name)).unwrap_or_default()
}

struct Looked {
    found: Vec<(Arc<Service>, crate::reconcile::core::Status)>,
    /// Where to go on; absent: that was all.
    last: Option<ServiceKey>,
}

/// Looks at the next services, in order.
fn look(core: &Core, call: &Call, filter: &Filter, after: Option<&ServiceKey>, most: usize) -> Looked {
    let mut looked = Looked { found: Vec::new(), last: None };
    let first_of_owner = filter.owner.as_ref().filter(|owner| after.is_none_or(|key| key.owner < **owner));
    let services: Box<dyn Iterator<Item = &Arc<Service>>> = match (first_of_owner, after) {
        (Some(owner), _) => Box::new(core.desired.services_of(owner)),
        (None, after) => Box::new(core.desired.services_after(after)),
    };
    for (count, service) in services.enumerate() {
        if filter.owner.as_ref().is_some_and(|owner| service.key.owner != *owner) {
            return Looked { last: None, ..looked };
        }
        looked.last = Some(service.key.clone());
        if call.caller.reads(&service.key.owner) && filter.matches(service) {
            let status = core.status(service);
            if !filter.only_problems || !status.problems.is_empty() || status.state == ServiceState::Failed {
                looked.found.push((Arc::clone(service), status));
            }
        }
        if count + 1 == CHUNK || looked.found.len() > most {
            return looked;
        }
    }
    Looked { last: None, ..looked }
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
