//! Endpoint lists, as sent.

use super::address::not_an_endpoint;
use super::{Violations, field};
use crate::endpoint::Endpoint;
use crate::limits::{LONGEST, TARGET_BYTES};
use crate::service::Definition;

/// Checks a list that is sent, for a service that is to have this definition. `list` is the field that holds it:
/// `endpoints`, or `upsert` in a patch.
pub(crate) fn endpoints(list: &str, sent: &[Endpoint], definition: &Definition) -> Violations {
    let mut found = Violations::default();
    let range = ranged(definition);
    for (i, endpoint) in sent.iter().enumerate() {
        if let Some(why) = not_an_endpoint(endpoint.key.address) {
            found.invalid(field!("{list}[{i}].address"), why);
        }
        if let Some(why) = wrong_port(endpoint.key.port, range) {
            found.invalid(field!("{list}[{i}].port"), why);
        }
        if endpoint.drain.is_some_and(|d| d.timeout.is_some_and(|t| t > LONGEST)) {
            found.invalid(field!("{list}[{i}].drain.timeout"), "longer than a year; leave it out for no limit");
        }
        if let Some(target) = endpoint.target.as_ref().filter(|t| t.len() > TARGET_BYTES) {
            let bytes = target.len();
            found.limit(
                field!("{list}[{i}].target"),
                format!("has {bytes} bytes; the most is {TARGET_BYTES}; shorten it"),
            );
        }
    }
    found
}

/// The first frontend that is a range, by its index.
fn ranged(definition: &Definition) -> Option<usize> {
    definition.frontends.iter().position(|f| !f.ports.is_one())
}

fn wrong_port(port: u16, range: Option<usize>) -> Option<String> {
    match (port, range) {
        (0, None) => Some("is 0 or missing; write 1 to 65535 (0 is for services with a port range)".into()),
        (0, Some(_)) | (_, None) => None,
        (port, Some(i)) => Some(format!(
            "is {port}, but frontends[{i}] is a port range, which keeps the client's destination port; leave the port out"
        )),
    }
}

/// Whether endpoints that are kept fit a definition that is new; the field is below `service`.
pub(crate) fn kept(endpoints: &[Endpoint], definition: &Definition) -> Violations {
    let mut found = Violations::default();
    let range = ranged(definition);
    if let Some(endpoint) = endpoints.iter().find(|e| wrong_port(e.key.port, range).is_some()) {
        let (field, message) = match range {
            Some(i) => (
                format!("frontends[{i}].port_end"),
                format!(
                    "a range keeps the client's destination port, but endpoint {} has one of its own; send the endpoints \
                     without ports in the same Apply",
                    endpoint.key
                ),
            ),
            None => (
                "frontends".to_owned(),
                format!(
                    "no frontend is a port range any more, but endpoint {} has no port; send the endpoints with their \
                     ports in the same Apply",
                    endpoint.key
                ),
            ),
        };
        found.invalid(|| field, message);
    }
    found
}
