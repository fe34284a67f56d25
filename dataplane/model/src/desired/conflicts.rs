//! What services may not do to one another: claim a frontend that another holds, or send traffic to a frontend of this
//! node (a loop).
//!
//! The drafts of a call are judged against the state that they lead to together. A draft that is refused leaves its
//! service as it was, which may refuse others in turn (whoever was to have its frontend); those that could be concerned
//! are judged again, until nobody is refused any more. When two drafts want what neither had, the better rank has it.
//! In this the cautious side is taken: a draft that lost to one that was refused itself later is not heard again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Desired;
use super::draft::Draft;
use super::proposal::Proposal;
use super::targets::{Targets, reaches};
use crate::command::Mode;
use crate::contest::{Claims, Found, precedes, spans};
use crate::endpoint::{Endpoint, EndpointKey};
use crate::frontend::{At, Frontend, Place, Span};
use crate::name::ServiceKey;
use crate::problem::{Problem, ProblemCode};
use crate::service::{Contest, Protocol, Service};

/// The drafts of a call, with what they claim.
struct Conflicts<'a> {
    desired: &'a Desired,
    drafts: &'a BTreeMap<ServiceKey, Draft<'a>>,
    /// Of drafts that change their claims and are not refused.
    fresh: Claims,
    refused: BTreeMap<ServiceKey, Vec<Problem>>,
    mode: Mode,
}

/// Refuses every draft that cannot stand beside the others and the rest of the state; returns the claims of those that
/// can. In mode ATOMIC each draft is judged once, as if the others stood: one refusal refuses all.
pub(crate) fn judge(desired: &Desired, proposal: &mut Proposal<'_>, mode: Mode) -> Claims {
    let mut fresh = Claims::default();
    for after in proposal.drafts.values().filter(|d| d.reclaims()).filter_map(|d| d.after.as_deref()) {
        fresh.insert(after);
    }
    let mut conflicts = Conflicts { desired, drafts: &proposal.drafts, fresh, refused: BTreeMap::new(), mode };
    conflicts.settle();
    let Conflicts { fresh, refused, .. } = conflicts;
    for (key, problems) in refused {
        proposal.refuse(&key, problems);
    }
    fresh
}

impl<'a> Conflicts<'a> {
    fn settle(&mut self) {
        let concerned = self.drafts.iter().filter(|(_, d)| d.changed() && d.after.is_some());
        let mut queue: BTreeSet<ServiceKey> = concerned.map(|(key, _)| key.clone()).collect();
        // Made when first needed: only a refusal asks for it.
        let mut targets: Option<Targets> = None;
        while let Some(key) = queue.pop_first() {
            let Some(draft) = self.drafts.get(&key).filter(|_| !self.refused.contains_key(&key)) else { continue };
            let mut problems = self.contested(draft);
            self.sends_to_frontends(draft, &mut problems);
            self.stands_where_others_send(draft, &mut problems);
            if problems.is_empty() {
                continue;
            }
            self.refused.insert(key, problems);
            if self.mode == Mode::Atomic {
                continue;
            }
            if let Some(after) = draft.after.as_ref().filter(|_| draft.reclaims()) {
                self.fresh.remove(after);
            }
            if let Some(before) = &draft.before {
                let targets = targets.get_or_insert_with(|| targets_of(self.drafts));
                self.in_the_way(before, targets, &mut queue);
            }
        }
    }

    /// Whether a draft is refused and so leaves its service as it was.
    fn reverted(&self, key: &ServiceKey) -> bool {
        self.mode == Mode::Each && self.refused.contains_key(key)
    }

    /// A service as the call leaves it, as far as is known.
    fn service(&self, key: &ServiceKey) -> Option<&'a Service> {
        match self.drafts.get(key).filter(|_| !self.reverted(key)) {
            Some(draft) => draft.after.as_deref(),
            None => self.desired.service(key).map(|s| &**s),
        }
    }

    /// Every claim on a span as the call leaves it, as far as is known; `held` means before the call.
    fn claims(&self, protocol: Protocol, span: Span) -> impl Iterator<Item = Found<'_>> {
        let replaced = |key: &ServiceKey| !self.reverted(key) && self.drafts.get(key).is_some_and(Draft::reclaims);
        let old = self.desired.claims.overlapping(protocol, span).filter(move |f| !replaced(f.service));
        old.chain(self.fresh.overlapping(protocol, span))
    }

    /// Frontends that do not wait and cannot be had.
    fn contested(&self, draft: &Draft<'_>) -> Vec<Problem> {
        let mut problems: Vec<Problem> = Vec::new();
        let refuses = |s: &&Arc<Service>| s.definition.on_contest == Contest::Refuse && draft.reclaims();
        let Some(after) = draft.after.as_ref().filter(refuses) else { return problems };
        let protocol = after.definition.protocol;
        for (index, span) in spans(after) {
            let taken = self.claims(protocol, span).find(|f| *f.service != after.key && self.prevails(f, after, span));
            let Some(taken) = taken else { continue };
            let field = draft.definition_path(&format!("frontends[{index}]"));
            if problems.last().is_some_and(|p| p.field == field) {
                continue; // The other family of the same node port.
            }
            let frontend = &after.definition.frontends[index as usize];
            let message = format!(
                "{frontend}/{protocol} is held by service {}; choose another, remove it there, or say on_contest: WAIT to \
                 have it once it is free",
                taken.service
            );
            problems.push(Problem::new(ProblemCode::FrontendTaken, field, message));
        }
        problems
    }

    /// Whether another service's claim stands against one that does not wait.
    fn prevails(&self, other: &Found<'_>, after: &Service, span: Span) -> bool {
        let protocol = after.definition.protocol;
        let theirs = held_before(self.desired.service(other.service), protocol, span);
        if other.waits() {
            return theirs;
        }
        // Neither waits: who held it already has it, otherwise the better rank.
        let Some(service) = self.service(other.service) else { return false };
        let Some(claim) = service.definition.frontends.get(other.frontend as usize) else { return false };
        let ours = claim.spans().any(|span| held_before(self.desired.service(&after.key), protocol, span));
        if ours == theirs { precedes(service, after) || self.mode == Mode::Atomic } else { theirs }
    }

    /// New endpoints that are frontends of this node.
    fn sends_to_frontends(&self, draft: &Draft<'_>, problems: &mut Vec<Problem>) {
        let Some(after) = &draft.after else { return };
        let protocol = after.definition.protocol;
        let known: &[Endpoint] = match &draft.before {
            Some(before) if Arc::ptr_eq(&before.endpoints, &after.endpoints) && !draft.reclaims() => return,
            Some(before) if before.definition.protocol == protocol => &before.endpoints,
            _ => &[],
        };
        for endpoint in after.endpoints.iter() {
            // With a port of 0 an endpoint that is known may reach further than before.
            if endpoint.key.port != 0 && known.binary_search_by_key(&endpoint.key, |e| e.key).is_ok() {
                continue;
            }
            let (key, place) = (endpoint.key, Place::Address(endpoint.key.address));
            let hit = reaches(after, key).find_map(|ports| self.claims(protocol, Span { place, ports }).next());
            if let Some(hit) = hit {
                let message = format!(
                    "{key} is frontends[{}] of service {}: traffic would loop; name the endpoints behind it instead",
                    hit.frontend, hit.service
                );
                problems.push(Problem::invalid(draft.endpoint_path(key, "address"), message));
            }
        }
    }

    /// New frontends that a service (this one, perhaps) sends to.
    fn stands_where_others_send(&self, draft: &Draft<'_>, problems: &mut Vec<Problem>) {
        let Some(after) = draft.after.as_ref().filter(|_| draft.reclaims()) else { return };
        let protocol = after.definition.protocol;
        let before = draft.before.as_ref().filter(|s| s.definition.protocol == protocol);
        for (index, frontend) in (0u32..).zip(&after.definition.frontends) {
            let At::Address(address) = frontend.at else { continue };
            let same = |f: &Frontend| f.at == frontend.at && f.ports == frontend.ports;
            if before.is_some_and(|s| s.definition.frontends.iter().any(same)) {
                continue;
            }
            let sends = |&(sender, endpoint): &(&ServiceKey, EndpointKey)| {
                let kept = |s: &Service| s.endpoints.binary_search_by_key(&endpoint, |e| e.key).is_ok();
                self.service(sender).is_some_and(|s| {
                    kept(s)
                        && s.definition.protocol == protocol
                        && reaches(s, endpoint).any(|ports| ports.overlaps(frontend.ports))
                })
            };
            if let Some((sender, endpoint)) = self.desired.targets.at(protocol, address, frontend.ports).find(sends) {
                let message = format!(
                    "service {sender} sends to {endpoint}, which this frontend would take: traffic would loop; take the \
                     endpoint out there, or choose another address or port"
                );
                problems.push(Problem::invalid(draft.definition_path(&format!("frontends[{index}]")), message));
            }
        }
    }

    /// Has the drafts judged again that a service which stays as it was may be in the way of.
    fn in_the_way(&self, before: &Service, targets: &Targets, queue: &mut BTreeSet<ServiceKey>) {
        let protocol = before.definition.protocol;
        for (_, span) in spans(before) {
            queue.extend(self.fresh.overlapping(protocol, span).map(|f| f.service.clone()));
            if let Place::Address(address) = span.place {
                queue.extend(targets.at(protocol, address, span.ports).map(|(sender, _)| sender.clone()));
            }
        }
        for endpoint in before.endpoints.iter() {
            let place = Place::Address(endpoint.key.address);
            for ports in reaches(before, endpoint.key) {
                queue.extend(self.fresh.overlapping(protocol, Span { place, ports }).map(|f| f.service.clone()));
            }
        }
    }
}

/// Whether a service, as it was, held something of a span.
fn held_before(service: Option<&Arc<Service>>, protocol: Protocol, span: Span) -> bool {
    service.is_some_and(|s| {
        let held = |index: u32| s.waiting.binary_search(&index).is_err();
        s.definition.protocol == protocol && spans(s).any(|(index, own)| own.overlaps(span) && held(index))
    })
}

/// Where the drafts send to.
fn targets_of(drafts: &BTreeMap<ServiceKey, Draft<'_>>) -> Targets {
    let mut targets = Targets::default();
    for after in drafts.values().filter(|d| d.changed()).filter_map(|d| d.after.as_deref()) {
        targets.replace(None, Some(after));
    }
    targets
}
