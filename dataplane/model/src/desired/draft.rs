//! What a call makes of one service: its value before and after, and where in the request each part was written. How
//! the parts are written is in `writing`; what other services have against it in `conflicts`.

use std::sync::Arc;

use super::Desired;
use super::group::{Group, Listing, Origin, Part};
use super::writing::Writing;
use crate::choose::{Blame, admit, asks_no_more};
use crate::contest::same_claims;
use crate::endpoint::EndpointKey;
use crate::name::ServiceKey;
use crate::problem::{Problem, ProblemCode};
use crate::service::Service;
use crate::{Millis, Revision};

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
    let written = Writing::new(desired, key, at, revision).service(&group);
    (draft.after, draft.notes, problems) = (written.service, written.notes, written.problems);
    if problems.is_empty() {
        engine(desired, &mut draft, &mut problems);
    }
    if problems.is_empty() { Ok(draft) } else { Err(problems) }
}

/// Where a scheduler stands in the request that has it.
pub(crate) fn scheduler_path(group: &Group<'_>, origin: Origin) -> String {
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
