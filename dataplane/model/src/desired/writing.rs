//! Writing the parts that a call says into a service, each checked as far as the service alone decides.

use std::sync::Arc;

use super::Desired;
use super::draft::scheduler_path;
use super::endpoints::{Settled, merge, patch, settle};
use super::group::{Group, Listing, Origin};
use crate::endpoint::{Endpoint, EndpointKey};
use crate::name::ServiceKey;
use crate::problem::{Problem, ProblemCode};
use crate::scheduler::Scheduler;
use crate::service::{Definition, Revisions, Service};
use crate::{Millis, Revision, validate};

/// A service as a call writes it, with what is wrong with it and what there is to say.
pub(crate) struct Written {
    /// The very value of before if nothing changed; absent: there is nothing that the call could write a part of.
    pub(crate) service: Option<Arc<Service>>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) notes: Vec<Problem>,
}

/// One service being written.
pub(crate) struct Writing<'a> {
    desired: &'a Desired,
    key: &'a ServiceKey,
    before: Option<&'a Arc<Service>>,
    at: Millis,
    revision: Revision,
    problems: Vec<Problem>,
    notes: Vec<Problem>,
}

impl<'a> Writing<'a> {
    /// To be accepted as `revision`.
    pub(crate) fn new(desired: &'a Desired, key: &'a ServiceKey, at: Millis, revision: Revision) -> Self {
        let before = desired.service(key);
        Self { desired, key, before, at, revision, problems: Vec::new(), notes: Vec::new() }
    }

    /// Writes what a group says.
    pub(crate) fn service(mut self, group: &Group<'_>) -> Written {
        let service = self.parts(group).map(|(definition, scheduler, settled)| match self.before {
            None => self.new_one(group, definition, scheduler, settled),
            Some(before) => self.changed_one(before, definition, scheduler, settled),
        });
        Written { service, problems: self.problems, notes: self.notes }
    }

    /// The three parts as they are to be. Absent: there is no service, and none is made.
    fn parts(&mut self, group: &Group<'_>) -> Option<(Arc<Definition>, Scheduler, Settled)> {
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
        Some((definition, scheduler, settled))
    }

    fn new_one(
        &self,
        group: &Group<'_>,
        definition: Arc<Definition>,
        scheduler: Scheduler,
        settled: Settled,
    ) -> Arc<Service> {
        let Settled { endpoints, leaving, .. } = settled;
        let said = |part: bool| if part { self.revision } else { Revision::default() };
        let revisions = Revisions {
            created: self.revision,
            definition: self.revision,
            endpoints: said(group.endpoints.is_some()),
            scheduler: said(group.scheduler.is_some()),
        };
        let key = self.key.clone();
        Arc::new(Service { key, definition, scheduler, endpoints, leaving, revisions, waiting: Vec::new() })
    }

    fn changed_one(
        &self,
        before: &Arc<Service>,
        definition: Arc<Definition>,
        scheduler: Scheduler,
        settled: Settled,
    ) -> Arc<Service> {
        let mut revisions = before.revisions;
        let changes = [
            (&mut revisions.definition, before.definition != definition),
            (&mut revisions.scheduler, before.scheduler != scheduler),
            (&mut revisions.endpoints, settled.changed),
        ];
        let mut changed = false;
        for (part, _) in changes.into_iter().filter(|(_, differs)| *differs) {
            *part = self.revision;
            changed = true;
        }
        if !changed {
            return Arc::clone(before);
        }
        let leaving = if before.definition.protocol == definition.protocol {
            settled.leaving
        } else {
            Arc::from([]) // The flows of the old protocol end as those of a removed service do.
        };
        let (key, waiting) = (self.key.clone(), before.waiting.clone());
        Arc::new(Service { key, definition, scheduler, endpoints: settled.endpoints, leaving, revisions, waiting })
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
