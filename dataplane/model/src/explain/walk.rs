//! The stages, one function each.

use std::fmt::Write as _;
use std::net::SocketAddr;

use ipnet::IpNet;

use super::{Explanation, Held, Packet, Stage, Step, Verdict, View, chances};
use crate::feature::EngineKind;
use crate::frontend::{At, Family, Frontend, Place, Policy, Scope};
use crate::select::{Rule, Serve, policy_for};
use crate::service::NoEndpoints;
use crate::source::{NatReason, SourceClass, source_nat};

/// Explains what happens to a packet.
#[must_use]
pub fn explain<V: View + ?Sized>(view: &V, packet: &Packet<'_>) -> Explanation {
    let mut told = Explanation::default();
    let Some(held) = find_frontend(view, packet, &mut told) else {
        told.verdict = without_frontend(view, packet, &mut told);
        return told;
    };
    told.held = Some(held.clone());
    let Some(frontend) = held.selected.service.definition.frontends.get(held.frontend as usize) else {
        return told;
    };
    told.engine = Some(engine(packet, frontend, &held));
    if !is_admitted(packet, frontend, &mut told) {
        told.verdict = Verdict::Dropped;
        return told;
    }
    let class = SourceClass::of(packet.source, packet.arrival, view.network(), |a| view.is_node_address(a));
    say_class(class, frontend, &mut told);
    choose_set(view, packet, frontend, class, &held, &mut told);
    told
}

impl Explanation {
    pub(super) fn say(&mut self, stage: Stage, outcome: impl Into<String>) {
        self.steps.push(Step { stage, outcome: outcome.into() });
    }
}

/// A VIP before a node port: where the two meet on one address, the VIP wins.
fn find_frontend<V: View + ?Sized>(view: &V, packet: &Packet<'_>, told: &mut Explanation) -> Option<Held> {
    let (destination, port) = (packet.destination, packet.destination_port);
    let held = view.holder(Place::Address(destination), packet.protocol, port).or_else(|| {
        let held = view.holder(Place::Node(Family::of(destination)), packet.protocol, port)?;
        let frontend = held.selected.service.definition.frontends.get(held.frontend as usize)?;
        serves_node_port(view, packet, frontend).then_some(held)
    })?;
    let frontend = held.selected.service.definition.frontends.get(held.frontend as usize)?;
    let (scope, policy) = (frontend.scope, frontend.policy);
    let (key, index) = (&held.selected.service.key, held.frontend);
    let rules = format!("{scope:?} + {policy:?}").to_uppercase();
    told.say(Stage::Frontend, format!("{frontend}/{} is frontends[{index}] of {key}, {rules}", packet.protocol));
    Some(held)
}

/// Whether a node port is served on the address that the packet is for.
fn serves_node_port<V: View + ?Sized>(view: &V, packet: &Packet<'_>, frontend: &Frontend) -> bool {
    let At::NodePort(node_port) = &frontend.at else { return false };
    let destination = packet.destination;
    let selectors: &[IpNet] =
        if node_port.addresses.is_empty() { view.node_port_addresses() } else { &node_port.addresses };
    let is_selected = selectors.is_empty() || selectors.iter().any(|net| net.contains(&destination));
    let is_here = if destination.is_loopback() { view.serves_loopback() } else { view.is_node_address(destination) };
    is_selected && is_here
}

/// A packet for no frontend is refused inside a virtual range and left alone elsewhere. The node's own addresses are no
/// exception, for a VIP may be bound to an interface, and no daemon of the host may answer on it.
fn without_frontend<V: View + ?Sized>(view: &V, packet: &Packet<'_>, told: &mut Explanation) -> Verdict {
    let destination = packet.destination;
    let at = format!("{}/{}", SocketAddr::new(destination, packet.destination_port), packet.protocol);
    let range = view.network().virtual_ranges.iter().find(|range| range.contains(&destination));
    let (verdict, outcome) = match range {
        None => (Verdict::NotOurs, format!("none at {at}: left alone")),
        Some(range) if !view.has_guard() => {
            (Verdict::NotOurs, format!("none at {at}; in virtual range {range}, but there is no guard to refuse it"))
        }
        Some(range) => (Verdict::Rejected, format!("none at {at}, in virtual range {range}: refused")),
    };
    told.say(Stage::Frontend, outcome);
    verdict
}

/// Node ports on loopback are the userspace engine's, whatever serves the rest.
fn engine(packet: &Packet<'_>, frontend: &Frontend, held: &Held) -> EngineKind {
    match frontend.at {
        At::NodePort(_) if packet.destination.is_loopback() => EngineKind::Userspace,
        _ => held.selected.engine,
    }
}

fn is_admitted(packet: &Packet<'_>, frontend: &Frontend, told: &mut Explanation) -> bool {
    let (source, ranges) = (packet.source, &frontend.source_ranges);
    let admitting = ranges.iter().find(|range| range.contains(&source));
    let outcome = match admitting {
        Some(range) => format!("{range} admits {source}"),
        None if ranges.is_empty() => "none: everybody may come in".to_owned(),
        None => format!("{source} is in none of the {}: dropped", ranges.len()),
    };
    told.say(Stage::SourceRanges, outcome);
    ranges.is_empty() || admitting.is_some()
}

fn say_class(class: SourceClass, frontend: &Frontend, told: &mut Explanation) {
    let mut outcome = class.to_string();
    if class.is_inside() && (frontend.scope, frontend.policy) == (Scope::External, Policy::Local) {
        outcome.push_str(": inside, so EXTERNAL + LOCAL gives it the endpoints of ALL");
    }
    told.say(Stage::LocalSource, outcome);
}

fn choose_set<V: View + ?Sized>(
    view: &V,
    packet: &Packet<'_>,
    frontend: &Frontend,
    class: SourceClass,
    held: &Held,
    told: &mut Explanation,
) {
    let selected = &held.selected;
    let family = Family::of(packet.destination);
    let Some(selection) = selected.frontend(held.frontend, family) else { return };
    let serve = selection.serve(class);
    told.serve = Some(serve);
    let policy = policy_for(frontend, class.is_inside());
    let rule = Rule::of(&selected.service, family, policy);
    told.candidates = chances::candidates(&selected.service, &rule, packet);
    match (serve, selected.set(serve, family)) {
        (_, Some(set)) => {
            let (members, all) = (set.members.len(), selected.service.endpoints.len());
            let which = if set.draining { "DRAINING, since nothing READY is usable" } else { "READY" };
            told.say(Stage::Tiers, format!("policy {}: {members} of {all} endpoints, {which}", name(policy)));
            told.verdict = Verdict::Forwarded;
            chances::weigh(view, packet, held, set, told);
            translate(view, packet, frontend, class, told);
        }
        (Serve::Refuse(how), None) => {
            let elsewhere = selected.all.get(family as usize).map_or(0, |set| set.members.len());
            let (verdict, word) = match how {
                NoEndpoints::Reject => (Verdict::Rejected, "rejected"),
                NoEndpoints::Drop => (Verdict::Dropped, "dropped"),
            };
            let mut outcome = format!("policy {}: no usable endpoint", name(policy));
            if elsewhere > 0 {
                // Writing to a String cannot fail.
                let _ = write!(outcome, " on this node, {elsewhere} elsewhere");
            }
            told.say(Stage::Tiers, format!("{outcome}: {word}"));
            told.verdict = verdict;
        }
        (Serve::All | Serve::Local, None) => {}
    }
}

fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::All => "ALL",
        Policy::Local => "LOCAL",
    }
}

/// Source NAT follows from the endpoint too, where one of them reaches itself.
fn translate<V: View + ?Sized>(
    view: &V,
    packet: &Packet<'_>,
    frontend: &Frontend,
    class: SourceClass,
    told: &mut Explanation,
) {
    let likely = || told.candidates.iter().filter(|candidate| candidate.probability > 0.0);
    let only_hairpins = likely().all(|candidate| candidate.hairpin);
    let itself = likely().find(|candidate| candidate.hairpin).map(|candidate| candidate.endpoint.key);
    let relayed = told.engine.is_some_and(|engine| view.relays(engine));
    let decide = |hairpin| source_nat(frontend, Family::of(packet.destination), class, view.network(), hairpin);
    let reason = if relayed { NatReason::Relayed } else { decide(only_hairpins) };
    let mut outcome = format!("{}: {reason}", if reason.translates() { "translated" } else { "kept" });
    if let (Some(itself), false) = (itself, reason.translates()) {
        let _ = write!(outcome, "; translated if {itself} itself is picked");
    }
    told.source_nat = Some(reason);
    told.say(Stage::SourceNat, outcome);
}
