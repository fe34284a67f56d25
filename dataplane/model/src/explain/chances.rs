//! How likely each endpoint is, and why the others are out.

use super::{Candidate, Explanation, Held, Packet, Stage, View};
use crate::endpoint::Endpoint;
use crate::frontend::Family;
use crate::pick::{Picker, one};
use crate::scheduler::Algorithm;
use crate::select::{EndpointSet, Rule, Selected};
use crate::service::Service;
use crate::source::affinity_client;

/// Every endpoint, none of them likely yet, with what keeps it out of the set.
pub(super) fn candidates(service: &Service, rule: &Rule, packet: &Packet<'_>) -> Vec<Candidate> {
    let candidate = |endpoint: &Endpoint| Candidate {
        endpoint: endpoint.clone(),
        probability: 0.0,
        why_not: rule.why_not(endpoint).map(|why| why.to_string()),
        pinned: false,
        hairpin: endpoint.key.address == packet.source,
    };
    service.endpoints.iter().map(candidate).collect()
}

/// What decides among the members of a set.
enum Decision {
    /// One of them, by affinity or a hash.
    Pinned(usize, String),
    /// Chance, turn or load, with these shares.
    Shared(Vec<f64>, String),
}

/// Gives each member of the set its probability, and says what decides.
pub(super) fn weigh<V: View + ?Sized>(
    view: &V,
    packet: &Packet<'_>,
    held: &Held,
    set: &EndpointSet,
    told: &mut Explanation,
) {
    let decision = match by_affinity(view, packet, held, set, told) {
        Some(pinned) => pinned,
        None => by_scheduler(view, packet, held, set, told),
    };
    let (why_not, shares, pinned) = match decision {
        Decision::Pinned(member, why_not) => (why_not, one(Some(member), set.members.len()), true),
        Decision::Shared(shares, why_not) => (why_not, shares, false),
    };
    for (&index, probability) in set.members.iter().zip(shares) {
        let Some(candidate) = told.candidates.get_mut(index as usize) else { continue };
        candidate.probability = probability;
        candidate.pinned = pinned && probability > 0.0;
        candidate.why_not = (probability == 0.0).then(|| why_not.clone());
    }
}

fn by_affinity<V: View + ?Sized>(
    view: &V,
    packet: &Packet<'_>,
    held: &Held,
    set: &EndpointSet,
    told: &mut Explanation,
) -> Option<Decision> {
    let service = &held.selected.service;
    let affinity = service.definition.client_affinity.as_ref()?;
    let client = affinity_client(affinity, packet.source);
    let prefix = match Family::of(client) {
        Family::V4 => affinity.prefix_v4,
        Family::V6 => affinity.prefix_v6,
    };
    let Some(key) = view.affinity(&service.key, client) else {
        told.say(Stage::Affinity, format!("no record of client {client}/{prefix}: it is picked anew and remembered"));
        return None;
    };
    let remembered = |&index: &u32| service.endpoints.get(index as usize).is_some_and(|e| e.key == key);
    let Some(member) = set.members.iter().position(remembered) else {
        told.say(Stage::Affinity, format!("client {client}/{prefix} had {key}, which takes no new flow: picked anew"));
        return None;
    };
    told.say(Stage::Affinity, format!("client {client}/{prefix} stays with {key}"));
    Some(Decision::Pinned(member, format!("affinity: the client stays with {key}")))
}

fn by_scheduler<V: View + ?Sized>(
    view: &V,
    packet: &Packet<'_>,
    held: &Held,
    set: &EndpointSet,
    told: &mut Explanation,
) -> Decision {
    let selected = &held.selected;
    let name = selected.algorithm.to_string();
    // Only an engine that relays hashes as the model does; the kernel has its own hash functions.
    let is_ours = told.engine.is_some_and(|engine| view.relays(engine));
    let picker = Picker::of(selected, set);
    let pinned = if is_ours {
        picker.pinned(packet.source, packet.source_port, packet.destination)
    } else {
        let hashed = told.serve.and_then(|serve| view.hashed(selected, serve));
        let is_it =
            |key| move |&index: &u32| selected.service.endpoints.get(index as usize).is_some_and(|e| e.key == key);
        hashed.and_then(|key| set.members.iter().position(is_it(key)))
    };
    if let Some(member) = pinned {
        told.say(Stage::Scheduler, format!("{name}: the hash decides"));
        return Decision::Pinned(member, format!("{name}: the hash gives this flow to another"));
    }
    use Algorithm::{Dh, Lblc, Lblcr, Lc, Mh, Nq, Ovf, P2c, Sed, Sh, Wlc};
    let note = match selected.algorithm {
        Sh | Mh => ": one client always gets the same; over all clients",
        Dh | Lblc | Lblcr if !is_ours => ": one destination always gets the same; over all destinations",
        Lblc | Lblcr => ": the destination's own, until it is overloaded",
        Lc | Wlc | Sed | Nq | P2c | Ovf => ", while nobody carries anything; flows that last move it",
        _ => "",
    };
    told.say(Stage::Scheduler, format!("{name}{note}"));
    let shares = match selected.algorithm {
        Dh | Lblc | Lblcr if !is_ours => by_weight(selected, set),
        _ => picker.shares(packet.destination),
    };
    Decision::Shared(shares, format!("{name}: another takes the flow first"))
}

/// Shares by weight, where only the engine knows its hash.
fn by_weight(selected: &Selected, set: &EndpointSet) -> Vec<f64> {
    let weight = |&index: &u32| selected.service.endpoints.get(index as usize).map_or(0.0, |e| f64::from(e.weight));
    let total: f64 = set.members.iter().map(weight).sum();
    set.members.iter().map(|index| weight(index) / total).collect()
}
