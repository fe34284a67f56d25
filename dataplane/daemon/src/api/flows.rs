//! How many flows a change concerns, as far as the engines count them.

use std::collections::{BTreeMap, BTreeSet};

use vipd_model::command::{Mode, Request};
use vipd_model::{Command, Delta, EndpointKey, EndpointState, Operation, Protocol, Service, ServiceKey};

use super::call::Api;

/// UDP flows that these operations would cut: those of endpoints that go, or take nothing any more. Flows of TCP and SCTP
/// stay until their drain ends.
pub(super) async fn cut(api: &Api, operations: Vec<Operation>) -> u64 {
    let request = Request::Apply { operations, mode: Mode::Atomic };
    let command = Command { request, at: (api.clock)(), actor: Default::default(), session: 0, note: String::new() };
    // What is refused cuts nothing.
    let Ok(delta) = api.control.read(|core| core.desired.plan(&command)) else { return 0 };
    let gone = gone(&delta);
    if gone.is_empty() {
        return 0;
    }
    let counted = api.control.counters(gone.keys().cloned().collect()).await.unwrap_or_default();
    let active = |counters: &vipd_engine::ServiceCounters| {
        let endpoints = gone.get(&counters.key);
        let of_gone = counters.endpoints.iter().filter(|(key, _)| endpoints.is_some_and(|gone| gone.contains(key)));
        of_gone.filter_map(|(_, counters)| counters.active).sum::<u64>()
    };
    counted.iter().map(active).sum()
}

/// By service: endpoints that had UDP flows and may keep none.
fn gone(delta: &Delta) -> BTreeMap<ServiceKey, BTreeSet<EndpointKey>> {
    let keeps = |service: &Service| -> BTreeSet<EndpointKey> {
        let kept = service.endpoints.iter().filter(|endpoint| endpoint.state != EndpointState::NotReady);
        kept.map(|endpoint| endpoint.key).collect()
    };
    let mut gone = BTreeMap::new();
    for change in &delta.services {
        let Some(before) = change.before.as_ref().filter(|s| s.definition.protocol == Protocol::Udp) else { continue };
        let after = change.after.as_ref().filter(|s| s.definition.protocol == Protocol::Udp);
        let kept = after.map(|service| keeps(service)).unwrap_or_default();
        let lost: BTreeSet<_> = keeps(before).difference(&kept).copied().collect();
        if !lost.is_empty() {
            gone.insert(change.key.clone(), lost);
        }
    }
    gone
}
