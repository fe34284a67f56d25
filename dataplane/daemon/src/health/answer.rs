//! What a health port says.

use std::collections::BTreeSet;

use serde_json::json;
use vipd_model::{EndpointState, OwnerName, ServiceKey};

use crate::http::Page;
use crate::reconcile::{Core, ServiceState};

/// The services that share a health port: of one owner, and of one group or just one service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) owner: OwnerName,
    /// The group's name; a service without a group is one by itself, under its own name.
    pub(super) name: String,
}

/// 200 while this node has READY local endpoints among these services and all of them are in force.
pub(super) fn answer(core: &Core, group: &Group, services: &BTreeSet<ServiceKey>) -> Page {
    let mut addresses = BTreeSet::new();
    let mut in_force = true;
    for key in services {
        let Some(service) = core.desired.service(key) else { continue };
        let ready = service.endpoints.iter().filter(|e| e.local && e.state == EndpointState::Ready);
        addresses.extend(ready.map(|endpoint| endpoint.key.address));
        let track = core.tracks.get(key);
        in_force &= track.is_some_and(|track| {
            track.programmed.is_some() && !matches!(track.state(), ServiceState::Failed | ServiceState::Withdrawn)
        });
    }
    let healthy = in_force && !addresses.is_empty();
    let body = json!({
        "owner": group.owner.as_str(), "group": group.name, "localEndpoints": addresses.len(), "inForce": in_force,
    });
    let mut page =
        Page::new(if healthy { "200 OK" } else { "503 Service Unavailable" }, "application/json", format!("{body}\n"));
    page.headers = vec![
        ("X-Content-Type-Options", "nosniff".to_owned()),
        ("X-Load-Balancing-Endpoint-Weight", addresses.len().to_string()),
    ];
    page
}
