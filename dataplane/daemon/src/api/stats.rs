//! GetStats: what services have counted, in pages.

use std::collections::HashMap;
use std::sync::Arc;

use prost::Message as _;
use tonic::Status;
use vipd_engine::{Counters, ServiceCounters};
use vipd_model::{Service, ServiceKey};
use vipd_proto::v1;

use super::call::{Api, Call};
use super::convert::scalar;
use super::limits::{PAGE_BYTES, PAGE_SERVICES, PAGE_SERVICES_MOST};
use super::{list, status};

/// A page of counters, in (owner, name) order.
pub(super) async fn stats(
    api: &Api,
    call: &Call,
    message: v1::GetStatsRequest,
) -> Result<v1::GetStatsResponse, Status> {
    let one = api.one_or_all(call, &message.owner, &message.name)?;
    let size = match message.page_size as usize {
        0 => PAGE_SERVICES,
        size => size.min(PAGE_SERVICES_MOST),
    };
    let (services, mut more) = match one {
        Some(key) => (api.control.read(|core| core.desired.service(&key).cloned()).into_iter().collect(), false),
        None => several(api, call, &message, size)?,
    };
    let keys: Vec<ServiceKey> = services.iter().map(|service| service.key.clone()).collect();
    if keys.is_empty() {
        return Ok(v1::GetStatsResponse::default());
    }
    let counted = api.control.counters(keys).await.map_err(|error| status::status(&error))?;
    let counted: HashMap<_, _> = counted.into_iter().map(|counters| (counters.key.clone(), counters)).collect();
    let mut page = v1::GetStatsResponse::default();
    let mut bytes = 0;
    for service in &services {
        let stats = service_stats(api, service, counted.get(&service.key), message.per_endpoint);
        bytes += stats.encoded_len();
        if bytes > PAGE_BYTES && !page.services.is_empty() {
            more = true;
            break;
        }
        page.services.push(stats);
    }
    if more && let Some(last) = page.services.last() {
        page.next_page_token = list::token_of(&last.owner, &last.name);
    }
    Ok(page)
}

/// The services of a page, and whether there are more.
fn several(
    api: &Api,
    call: &Call,
    message: &v1::GetStatsRequest,
    size: usize,
) -> Result<(Vec<Arc<Service>>, bool), Status> {
    let (owner, after) = call.read(|default, at, problems| {
        let owner = match message.owner.as_str() {
            "" => Some(None),
            name => scalar::owner(name, default, &at.field("owner"), problems).map(Some),
        };
        let after = list::parse_token(&message.page_token, &at.field("page_token"), problems);
        Some((owner?, after?))
    })?;
    Ok(api.control.read(|core| {
        let wanted = |service: &&Arc<Service>| {
            owner.as_ref().is_none_or(|owner| service.key.owner == *owner) && call.caller.reads(&service.key.owner)
        };
        let mut found: Vec<_> =
            core.desired.services_after(after.as_ref()).filter(wanted).take(size + 1).cloned().collect();
        let more = found.len() > size;
        found.truncate(size);
        (found, more)
    }))
}

fn service_stats(
    api: &Api,
    service: &Service,
    counted: Option<&ServiceCounters>,
    per_endpoint: bool,
) -> v1::get_stats_response::ServiceStats {
    let target = |key| service.endpoints.iter().find(|endpoint| endpoint.key == key).and_then(|e| e.target.as_deref());
    let endpoints = counted.filter(|_| per_endpoint).map(|counted| counted.endpoints.as_slice()).unwrap_or_default();
    let since = api.control.read(|core| core.counted_since);
    v1::get_stats_response::ServiceStats {
        owner: service.key.owner.to_string(),
        name: service.key.name.to_string(),
        total: Some(counted.map(|counted| counters(&counted.total)).unwrap_or_default()),
        endpoints: endpoints
            .iter()
            .map(|(key, counted)| v1::get_stats_response::EndpointStats {
                address: key.address.to_string(),
                port: key.port.into(),
                target: target(*key).unwrap_or_default().to_owned(),
                counters: Some(counters(counted)),
            })
            .collect(),
        since: Some(scalar::timestamp(since)),
    }
}

fn counters(counted: &Counters) -> v1::get_stats_response::Counters {
    let Counters { connections, active, packets_in, packets_out, bytes_in, bytes_out, refused } = *counted;
    v1::get_stats_response::Counters { connections, active, packets_in, packets_out, bytes_in, bytes_out, refused }
}
