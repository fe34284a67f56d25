//! Contested frontends: who holds a place and port that several services claim.
//!
//! The rule, for the whole state: go through the claims by [`Rank`]; each is held unless a better one that is held
//! overlaps it. REFUSE claims rank first: they came to be where nobody held anything, and nothing takes it from them.
//! Those that WAIT follow by precedence, then by name; without a precedence (0) by arrival, behind those that have one.
//! A frontend holds all of its places or none (a node port of both families waits for both).
//!
//! [`Claims`] keeps the answer and finds what overlaps; [`resolve`] finds what a change makes of it, looking only at
//! claims that the change meets, directly or through others that change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::Revision;
use crate::frontend::{Place, PortRange, Span};
use crate::name::ServiceKey;
use crate::service::{Contest, Protocol, Service};

/// Who goes first; the lower one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    standing: Standing,
    /// Ends every tie, in an order that every node agrees on.
    service: ServiceKey,
    frontend: u32,
}

/// What decides before names do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    waits: bool,
    precedence: u64,
    arrival: Revision,
}

impl Standing {
    fn of(service: &Service) -> Self {
        let waits = service.definition.on_contest == Contest::Wait;
        let created = service.revisions.created;
        match service.definition.precedence {
            precedence @ 1.. if waits => Self { waits, precedence, arrival: Revision::default() },
            _ => Self { waits, precedence: u64::MAX, arrival: created },
        }
    }
}

/// Where a claim stands in the index. Ranges are kept by the size of their width, so that those which reach into a port
/// from below are found without looking at all that begin there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    protocol: Protocol,
    place: Place,
    magnitude: u32,
    ports: PortRange,
    service: Option<ServiceKey>,
    frontend: u32,
}

/// The number of binary digits of (width − 1): 0 for one port, at most 16.
fn magnitude(ports: PortRange) -> u32 {
    u16::BITS - ports.last.saturating_sub(ports.first).leading_zeros()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    standing: Standing,
    held: bool,
}

/// A claim that overlaps what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    pub(crate) service: &'a ServiceKey,
    pub(crate) frontend: u32,
    pub(crate) held: bool,
    standing: Standing,
}

impl Found<'_> {
    pub(crate) fn waits(&self) -> bool {
        self.standing.waits
    }

    fn rank(&self) -> Rank {
        Rank { standing: self.standing, service: self.service.clone(), frontend: self.frontend }
    }
}

/// Every frontend of every service, by place and port, with who holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    slots: BTreeMap<Slot, Entry>,
    /// How many there are of each magnitude, to leave out the searches that would find none.
    magnitudes: [usize; 17],
}

impl Claims {
    /// Takes a service's change in; nothing is done where neither its claims nor who holds them changed.
    pub(crate) fn replace(&mut self, before: Option<&Service>, after: Option<&Service>) {
        if let (Some(before), Some(after)) = (before, after)
            && before.waiting == after.waiting
            && same_claims(before, after)
        {
            return;
        }
        if let Some(before) = before {
            self.remove(before);
        }
        if let Some(after) = after {
            self.insert(after);
        }
    }

    /// Takes in the claims of a service; those not in its `waiting` are held.
    pub(crate) fn insert(&mut self, service: &Service) {
        let standing = Standing::of(service);
        for (frontend, span) in spans(service) {
            let held = service.waiting.binary_search(&frontend).is_err();
            let slot = slot(service, frontend, span);
            let magnitude = slot.magnitude as usize;
            if self.slots.insert(slot, Entry { standing, held }).is_none() {
                self.magnitudes[magnitude] += 1;
            }
        }
    }

    pub(crate) fn remove(&mut self, service: &Service) {
        for (frontend, span) in spans(service) {
            let slot = slot(service, frontend, span);
            if self.slots.remove(&slot).is_some() {
                self.magnitudes[slot.magnitude as usize] -= 1;
            }
        }
    }

    /// What overlaps a span, in the order of the index. O(log n + what is found), since of one magnitude only few
    /// that do not overlap one another can end just before the span.
    pub(crate) fn overlapping(&self, protocol: Protocol, span: Span) -> impl Iterator<Item = Found<'_>> {
        let Span { place, ports } = span;
        let used = (0u32..17).filter(|m| self.magnitudes[*m as usize] > 0);
        used.flat_map(move |magnitude| {
            let reach = ((1u32 << magnitude) - 1).min(u16::MAX.into()) as u16;
            let bound = |first: u16, last: u16, frontend: u32| {
                let ports = PortRange { first, last };
                Slot { protocol, place, magnitude, ports, service: None, frontend }
            };
            let low = bound(ports.first.saturating_sub(reach), 0, 0);
            // One port above the last is beyond every claim that begins at or below it; at 65535 `last` ends it.
            let high = match ports.last.checked_add(1) {
                Some(next) => bound(next, 0, 0),
                None => Slot { protocol, place, magnitude: magnitude + 1, ..bound(0, 0, 0) },
            };
            self.slots.range(low..high)
        })
        .filter(move |(slot, _)| slot.ports.overlaps(ports))
        .filter_map(|(slot, entry)| {
            let service = slot.service.as_ref()?;
            Some(Found { service, frontend: slot.frontend, held: entry.held, standing: entry.standing })
        })
    }

    /// Who holds a port of a place; at most one.
    pub(crate) fn holder(&self, protocol: Protocol, place: Place, port: u16) -> Option<(&ServiceKey, u32)> {
        let span = Span { place, ports: PortRange::one(port) };
        self.overlapping(protocol, span).find(|f| f.held).map(|f| (f.service, f.frontend))
    }
}

fn slot(service: &Service, frontend: u32, span: Span) -> Slot {
    let Span { place, ports } = span;
    let (protocol, service) = (service.definition.protocol, Some(service.key.clone()));
    Slot { protocol, place, magnitude: magnitude(ports), ports, service, frontend }
}

/// The spans of a service with the index of their frontend.
pub(crate) fn spans(service: &Service) -> impl Iterator<Item = (u32, Span)> {
    (0u32..).zip(&service.definition.frontends).flat_map(|(index, f)| f.spans().map(move |span| (index, span)))
}

/// Whether two values of a service claim the same with the same standing.
pub(crate) fn same_claims(a: &Service, b: &Service) -> bool {
    if Arc::ptr_eq(&a.definition, &b.definition) {
        return true;
    }
    let claims = |s: &Service| (s.definition.protocol, Standing::of(s));
    claims(a) == claims(b) && spans(a).eq(spans(b))
}

/// Whether `a` goes before `b` where both want the same.
pub(crate) fn precedes(a: &Service, b: &Service) -> bool {
    (Standing::of(a), &a.key) < (Standing::of(b), &b.key)
}

/// The claims as a change leaves them: those that were, without those of changed services, and the new ones of those.
pub(crate) struct View<'a> {
    pub(crate) base: &'a Claims,
    /// The new claims of changed services; who holds them is not known yet.
    pub(crate) fresh: &'a Claims,
    /// Whether a service's claims in `base` are replaced by those in `fresh`.
    pub(crate) replaced: &'a dyn Fn(&ServiceKey) -> bool,
    /// A service as the change leaves it.
    pub(crate) service: &'a dyn Fn(&ServiceKey) -> Option<&'a Service>,
}

impl<'a> View<'a> {
    /// What overlaps a span.
    pub(crate) fn overlapping(&self, protocol: Protocol, span: Span) -> impl Iterator<Item = Found<'a>> {
        let replaced = self.replaced;
        let old = self.base.overlapping(protocol, span).filter(move |f| !replaced(f.service));
        old.chain(self.fresh.overlapping(protocol, span))
    }
}

/// Which frontends change hands when the claims of `changed` services (their values before) are replaced: for each
/// frontend of a fresh claim whether it is held, and for each other one that gains or loses.
///
/// Claims are looked at by rank, best first. A claim that changes has those behind it that it overlaps looked at; they
/// all rank lower, so what was decided stands.
pub(crate) fn resolve<'a>(
    view: &View<'a>,
    changed: impl Iterator<Item = &'a Service>,
) -> BTreeMap<(ServiceKey, u32), bool> {
    let mut queue: BTreeSet<Rank> = BTreeSet::new();
    for before in changed {
        for (_, span) in spans(before) {
            let met = view.overlapping(before.definition.protocol, span);
            queue.extend(met.map(|f| f.rank()));
        }
    }
    queue.extend(view.fresh.slots.iter().filter_map(|(slot, entry)| {
        let service = slot.service.clone()?;
        Some(Rank { standing: entry.standing, service, frontend: slot.frontend })
    }));
    let mut decided: BTreeMap<(ServiceKey, u32), bool> = BTreeMap::new();
    while let Some(rank) = queue.pop_first() {
        let Some(service) = (view.service)(&rank.service) else { continue };
        let Some(frontend) = service.definition.frontends.get(rank.frontend as usize) else { continue };
        let protocol = service.definition.protocol;
        let met = || {
            let all = frontend.spans().flat_map(|span| view.overlapping(protocol, span));
            all.filter(|f| *f.service != rank.service)
        };
        let holds = |f: &Found<'_>| {
            decided.get(&(f.service.clone(), f.frontend)).copied().unwrap_or(f.held && !(view.replaced)(f.service))
        };
        let held = !met().any(|f| f.rank() < rank && holds(&f));
        let fresh = (view.replaced)(&rank.service);
        let was = !fresh && service.waiting.binary_search(&rank.frontend).is_err();
        if held != was {
            queue.extend(met().map(|f| f.rank()).filter(|other| *other > rank));
        }
        if fresh || held != was {
            decided.insert((rank.service.clone(), rank.frontend), held);
        }
    }
    decided
}
