//! What a call makes of one service, checked as far as the service alone decides.

use std::sync::Arc;

use super::Desired;
use super::endpoints::{Settled, merge, patch, settle};
use super::group::{Group, Listing, Origin, Part};
use crate::choose::{Blame, admit, asks_no_more};
use crate::contest::same_claims;
use crate::endpoint::{Endpoint, EndpointKey};
use crate::name::ServiceKey;
use crate::problem::{Problem, ProblemCode};
use crate::service::{Definition, Revisions, Service};
use crate::{Millis, Revision, validate};

/// A service before and after a call.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) before: Option<Arc<Service>>,
    /// The very value of `before` if nothing changed; absent: removed.
    pub(crate) after: Option<Arc<Service>>,
    /// Where the definition was written, if it was.
    definition: Option<Origin>,
    /// Where the endpoints were written, if they were.
    endpoints: Option<(Origin, Listing<'a>)>,
    /// Where the scheduler was written, if it was: the path.
    scheduler: Option<String>,
    /// Every operation on the service.
    pub(crate) origins: Vec<Origin>,
    /// The revision at which what was asked for was accepted, if nothing changed.
    pub(crate) accepted: Revision,
    pub(crate) notes: Vec<Problem>,
}

impl Draft<'_> {
    /// A service that goes without being named, because a Sync did not declare it or its owner goes.
    pub(crate) fn removal(before: &Arc<Service>) -> Self {
        Self {
            before: Some(Arc::clone(before)),
            after: None,
            definition: None,
            endpoints: None,
            scheduler: None,
            origins: Vec::new(),
            accepted: before.revisions.newest(),
            notes: Vec::new(),
        }
    }

    /// Whether the declared state of the service changes.
    pub(crate) fn changed(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => !Arc::ptr_eq(before, after),
            (None, None) => false,
            _ => true,
        }
    }

    /// Whether it changes what the service claims, or with which standing.
    pub(crate) fn reclaims(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => !same_claims(before, after),
            (None, None) => false,
            _ => true,
        }
    }

    /// Whether the definition was sent.
    pub(crate) fn defines(&self) -> bool {
        self.definition.is_some()
    }

    /// The path of a field of the definition, or of the request if that has no definition.
    pub(crate) fn definition_path(&self, field: &str) -> String {
        match self.definition {
            Some(origin) => origin.path(&format!("service.{field}")),
            None => self.origins.first().map(|o| o.root()).unwrap_or_default(),
        }
    }

    /// The path of a field of the scheduler, or, if that was not sent, of the definition's field for what it needs.
    pub(crate) fn scheduler_path(&self, field: &str) -> String {
        match &self.scheduler {
            Some(path) => format!("{path}.{field}"),
            None => self.definition_path("engine"),
        }
    }

    /// The path of an endpoint, or of the request if the endpoint is not in it.
    pub(crate) fn endpoint_path(&self, key: EndpointKey, field: &str) -> String {
        let sent = self.endpoints.and_then(|(origin, listing)| {
            let (list, sent) = listing.sent();
            let index = sent.iter().position(|e| e.key == key)?;
            Some(origin.path(&format!("{list}[{index}].{field}")))
        });
        sent.unwrap_or_else(|| self.definition_path("engine"))
    }
}

/// Makes the draft of a group, to be accepted as `revision`.
pub(crate) fn draft<'a>(
    desired: &Desired,
    key: &ServiceKey,
    group: Group<'a>,
    at: Millis,
    revision: Revision,
) -> Result<Draft<'a>, Vec<Problem>> {
    let before = desired.service(key);
    let mut problems = Vec::new();
    expectations(before.map(|s| &**s), &group, &mut problems);
    if !group.problems.is_empty() || !problems.is_empty() {
        problems.splice(0..0, group.problems);
        return Err(problems);
    }
    let mut draft = Draft {
        before: before.map(Arc::clone),
        after: None,
        definition: group.definition.map(|(origin, _)| origin),
        endpoints: group.endpoints,
        scheduler: group.scheduler.map(|(origin, _)| scheduler_path(&group, origin)),
        accepted: accepted(before.map(|s| &**s), &group, desired.revision()),
        origins: group.origins.clone(),
        notes: Vec::new(),
    };
    if group.delete.is_some() {
        return Ok(draft);
    }
    let mut writing = Writing { desired, key, before, at, revision, problems, notes: Vec::new() };
    draft.after = writing.service(&group);
    let (mut problems, notes) = (writing.problems, writing.notes);
    draft.notes = notes;
    if problems.is_empty() {
        engine(desired, &mut draft, &mut problems);
    }
    if problems.is_empty() { Ok(draft) } else { Err(problems) }
}

/// Where a scheduler stands in the request that has it.
fn scheduler_path(group: &Group<'_>, origin: Origin) -> String {
    let within = group.definition.is_some_and(|(definition, _)| definition == origin);
    origin.path(if within { "service.scheduler" } else { "scheduler" })
}

/// Whether an engine of this node honours the service, and which. What could not be honoured before either (an engine
/// was lost after acceptance) is no reason to refuse another change of the service.
fn engine(desired: &Desired, draft: &mut Draft<'_>, problems: &mut Vec<Problem>) {
    let Some(after) = draft.after.as_ref() else { return };
    let unchanged = draft.before.as_ref().is_some_and(|before| Arc::ptr_eq(before, after));
    let default = desired.default_engine;
    match admit(&desired.engines, default, after) {
        Ok(choice) if choice.problems.is_empty() => {}
        Ok(choice) => {
            // Told where it is decided; a later endpoint list does not tell it again.
            let same = |before: &Arc<Service>| admit(&desired.engines, default, before).as_ref() == Ok(&choice);
            let decided = draft.definition.is_some() || draft.scheduler.is_some();
            if decided || !draft.before.as_ref().is_some_and(same) {
                draft.notes.extend(choice.problems);
            }
        }
        Err(_) if unchanged => {}
        Err(refusal) => {
            let as_before = draft
                .before
                .as_ref()
                .is_some_and(|before| asks_no_more(before, after) && admit(&desired.engines, default, before).is_err());
            if !as_before {
                problems.extend(refusal.problems(|blame| match blame {
                    Blame::Definition(field) => draft.definition_path(&field),
                    Blame::Scheduler(field) => draft.scheduler_path(field),
                    Blame::Endpoint(key, field) => draft.endpoint_path(key, field),
                }));
            }
        }
    }
}

/// The revision to tell a caller whose call changes nothing: that of the parts it wrote, or of the service's making for
/// a part that was never written, or, for a service that is not there, the state's.
fn accepted(before: Option<&Service>, group: &Group<'_>, state: Revision) -> Revision {
    let Some(before) = before else { return state };
    let of = &before.revisions;
    let written = [
        (group.definition.is_some(), of.definition),
        (group.endpoints.is_some(), of.endpoints),
        (group.scheduler.is_some(), of.scheduler),
    ];
    let newest = written.into_iter().filter(|(is, _)| *is).map(|(_, revision)| revision).max();
    newest.unwrap_or_default().max(of.created)
}

fn expectations(before: Option<&Service>, group: &Group<'_>, problems: &mut Vec<Problem>) {
    for &(origin, part, expected) in &group.expected {
        let of = before.map(|s| s.revisions);
        let (what, found) = match part {
            Part::Definition => ("definition", of.map(|r| r.definition)),
            Part::Endpoints => ("endpoint list", of.map(|r| r.endpoints)),
            Part::Scheduler => ("scheduler", of.map(|r| r.scheduler)),
            Part::Service => ("service", of.map(|r| r.newest())),
        };
        let found = found.unwrap_or_default();
        if found == expected {
            continue;
        }
        let message = match (expected.0, found.0) {
            (0, found) => {
                format!("the {what} was expected not to exist, but is at revision {found}; read it and decide")
            }
            (expected, 0) => format!("the {what} was expected at revision {expected}, but does not exist"),
            (expected, found) => format!("the {what} is at revision {found}, not {expected}; read it and decide again"),
        };
        problems.push(Problem::new(ProblemCode::StaleRevision, origin.path("expected_revision"), message));
    }
}

/// A definition with its source ranges in order, without duplicates.
fn sorted(sent: &Arc<Definition>) -> Arc<Definition> {
    if sent.frontends.iter().all(|f| f.source_ranges.is_sorted_by(|a, b| a < b)) {
        return Arc::clone(sent);
    }
    let mut definition = Definition::clone(sent);
    for frontend in &mut definition.frontends {
        frontend.source_ranges.sort_unstable();
        frontend.source_ranges.dedup();
    }
    Arc::new(definition)
}

/// One service being written.
struct Writing<'a> {
    desired: &'a Desired,
    key: &'a ServiceKey,
    before: Option<&'a Arc<Service>>,
    at: Millis,
    revision: Revision,
    problems: Vec<Problem>,
    notes: Vec<Problem>,
}

impl Writing<'_> {
    fn service(&mut self, group: &Group<'_>) -> Option<Arc<Service>> {
        let Some(definition) = self.definition(group) else {
            let message = format!("there is no service {}; declare it first, or in the same Apply", self.key);
            let field = group.first_origin().name();
            self.problems.push(Problem::new(ProblemCode::NoSuchService, field, message));
            return None;
        };
        let scheduler = match group.scheduler {
            Some((origin, scheduler)) => {
                let path = scheduler_path(group, origin);
                validate::definition::scheduler(&scheduler).report(&path, &mut self.problems);
                scheduler
            }
            None => self.before.map(|s| s.scheduler).unwrap_or_default(),
        };
        let settled = self.endpoints(group, &definition);
        self.sizes(group, &definition, &settled.endpoints);

        let revisions =
            self.before.map_or(Revisions { created: self.revision, ..Revisions::default() }, |s| s.revisions);
        let mut after = Service {
            key: self.key.clone(),
            definition,
            scheduler,
            endpoints: settled.endpoints,
            leaving: settled.leaving,
            revisions,
            waiting: self.before.map(|s| s.waiting.clone()).unwrap_or_default(),
        };
        let Some(before) = self.before else {
            after.revisions.definition = self.revision;
            after.revisions.endpoints = group.endpoints.map_or(Revision::default(), |_| self.revision);
            after.revisions.scheduler = group.scheduler.map_or(Revision::default(), |_| self.revision);
            return Some(Arc::new(after));
        };
        let definition_changed = before.definition != after.definition;
        let scheduler_changed = before.scheduler != after.scheduler;
        if !definition_changed && !scheduler_changed && !settled.changed {
            return Some(Arc::clone(before));
        }
        if before.definition.protocol != after.definition.protocol {
            // The flows of the old protocol end as those of a removed service do.
            after.leaving = Arc::from([]);
        }
        let mark = |part: &mut Revision, changed: bool| {
            if changed {
                *part = self.revision;
            }
        };
        mark(&mut after.revisions.definition, definition_changed);
        mark(&mut after.revisions.scheduler, scheduler_changed);
        mark(&mut after.revisions.endpoints, settled.changed);
        Some(Arc::new(after))
    }

    /// What the service is to be: as sent, sorted where order has no meaning, or as it was. Absent: there is none.
    fn definition(&mut self, group: &Group<'_>) -> Option<Arc<Definition>> {
        let Some((origin, sent)) = group.definition else {
            return self.before.map(|s| Arc::clone(&s.definition));
        };
        if let Some(before) = self.before.filter(|s| s.definition == *sent) {
            return Some(Arc::clone(&before.definition));
        }
        validate::definition::definition(sent, &self.desired.limits)
            .report(&origin.path("service"), &mut self.problems);
        let definition = sorted(sent);
        match self.before.filter(|s| s.definition == definition) {
            Some(before) => Some(Arc::clone(&before.definition)),
            None => Some(definition),
        }
    }

    fn endpoints(&mut self, group: &Group<'_>, definition: &Definition) -> Settled {
        let kept: &[Endpoint] = self.before.map_or(&[], |s| &s.endpoints);
        let Some((origin, listing)) = group.endpoints else {
            if let Some((origin, _)) = group.definition {
                validate::endpoints::kept(kept, definition).report(&origin.path("service"), &mut self.problems);
            }
            return match self.before {
                Some(s) => {
                    Settled { endpoints: Arc::clone(&s.endpoints), leaving: Arc::clone(&s.leaving), changed: false }
                }
                None => settle(None, Vec::new(), definition.drain, self.at),
            };
        };
        let (field, sent) = listing.sent();
        validate::endpoints::endpoints(field, sent, definition).report(&origin.root(), &mut self.problems);
        let (mut list, dropped) = merge(sent.to_vec());
        if dropped > 0 {
            let message = format!(
                "{dropped} of {} endpoints repeat an (address, port) of the list; READY went before DRAINING before \
                 NOT_READY, then local first, then the higher weight",
                sent.len()
            );
            self.notes.push(Problem::new(ProblemCode::DuplicatesMerged, origin.path(field), message));
        }
        if let Listing::Patch(_, remove) = listing {
            self.removed_and_sent(origin, &list, remove);
            list = patch(kept, &list, remove);
        }
        let most = self.desired.limits.endpoints_per_service;
        if list.len() > most {
            let message = format!("{} endpoints; the most is {most}; split the service", list.len());
            self.problems.push(Problem::new(ProblemCode::Limit, origin.path(field), message));
        }
        settle(self.before.map(|s| &**s), list, definition.drain, self.at)
    }

    /// One key in both lists of a patch: the call does not say which is meant.
    fn removed_and_sent(&mut self, origin: Origin, list: &[Endpoint], remove: &[EndpointKey]) {
        let both = remove.iter().position(|key| list.binary_search_by_key(key, |e| e.key).is_ok());
        if let Some(i) = both {
            let message = format!("{} stands in `upsert` too; leave it out of one of the two", remove[i]);
            self.problems.push(Problem::invalid(origin.path(&format!("remove[{i}]")), message));
        }
    }

    fn sizes(&mut self, group: &Group<'_>, definition: &Definition, endpoints: &[Endpoint]) {
        let bytes = validate::size::of_definition(definition) + validate::size::of_endpoints(endpoints);
        let most = self.desired.limits.service_bytes;
        if bytes > most {
            let field = match (group.endpoints, group.definition) {
                (Some((origin, listing)), _) => origin.path(listing.sent().0),
                (None, Some((origin, _))) => origin.path("service"),
                (None, None) => String::new(),
            };
            let message =
                format!("the service with its endpoints takes up to {bytes} bytes; the most is {most}; split it");
            self.problems.push(Problem::new(ProblemCode::Limit, field, message));
        }
    }
}
