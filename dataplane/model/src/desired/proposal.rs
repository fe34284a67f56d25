//! The drafts of a call, judged together, and the Delta that is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Desired;
use super::conflicts;
use super::draft::{Draft, draft};
use super::group::{Group, Origin};
use crate::Revision;
use crate::command::{Command, Mode};
use crate::contest::{Claims, Found, View, resolve};
use crate::delta::{Delta, OwnerChange, ServiceChange};
use crate::frontend::Span;
use crate::limits::{PROBLEMS, REFUSED};
use crate::name::{OwnerName, ServiceKey};
use crate::owner::{Owner, OwnerRecord};
use crate::problem::{Problem, ProblemCode, Refused, Rejection};
use crate::service::{Protocol, Service};
use crate::validate::bounded;

/// Problems told of one operation where others are accepted.
const PROBLEMS_OF_MANY: usize = 8;

/// The drafts of a call, and what is refused of it.
pub(crate) struct Proposal<'a> {
    desired: &'a Desired,
    command: &'a Command,
    pub(crate) drafts: BTreeMap<ServiceKey, Draft<'a>>,
    pub(crate) refused: Vec<Refused>,
    /// Services whose only change is a frontend that they gain or lose.
    promoted: BTreeMap<ServiceKey, Arc<Service>>,
}

impl<'a> Proposal<'a> {
    pub(crate) fn new(desired: &'a Desired, command: &'a Command) -> Self {
        Self { desired, command, drafts: BTreeMap::new(), refused: Vec::new(), promoted: BTreeMap::new() }
    }

    /// Drafts what a group says of a service.
    pub(crate) fn propose(&mut self, key: &ServiceKey, group: Group<'a>) {
        let origins = group.origins.clone();
        match draft(self.desired, key, group, self.command.at, self.desired.revision.next()) {
            Ok(draft) => {
                self.drafts.insert(key.clone(), draft);
            }
            Err(problems) => self.push_refused(key, &origins, problems),
        }
    }

    /// Drops a draft: every operation on the service is refused.
    pub(crate) fn refuse(&mut self, key: &ServiceKey, problems: Vec<Problem>) {
        if let Some(draft) = self.drafts.remove(key) {
            self.push_refused(key, &draft.origins, problems);
        }
    }

    fn push_refused(&mut self, key: &ServiceKey, origins: &[Origin], problems: Vec<Problem>) {
        let mut problems = bounded(problems);
        if self.refused.len() >= PROBLEMS {
            // No answer has room for more, so a call full of mistakes must not pile them up.
            problems.truncate(PROBLEMS_OF_MANY);
        }
        self.refused.extend(origins.iter().map(|origin| Refused {
            index: origin.index(),
            owner: key.owner.to_string(),
            name: key.name.to_string(),
            problems: problems.clone(),
        }));
    }

    /// Judges the drafts beside one another and the rest of the state, and finds who holds contested frontends then.
    /// In mode ATOMIC one refusal refuses all.
    pub(crate) fn judge(&mut self, mode: Mode) -> Result<(), Rejection> {
        self.within_node(mode);
        let fresh = conflicts::judge(self.desired, self, mode);
        if mode == Mode::Atomic && !self.refused.is_empty() {
            return Err(self.rejection());
        }
        if self.drafts.values().any(Draft::reclaims) {
            self.settle_claims(&fresh);
        }
        self.note_waiting(&fresh);
        Ok(())
    }

    /// As many services as the node takes; beyond that new ones are refused, the last in key order first.
    fn within_node(&mut self, mode: Mode) {
        let most = self.desired.limits.services;
        let gone = self.drafts.values().filter(|d| d.before.is_some() && d.after.is_none()).count();
        let room = (most + gone).saturating_sub(self.desired.len());
        let new = self.drafts.iter().filter(|(_, d)| d.before.is_none() && d.after.is_some());
        let beyond: Vec<ServiceKey> = new.skip(room).map(|(key, _)| key.clone()).collect();
        let told = if mode == Mode::Atomic { 1 } else { beyond.len() };
        for key in &beyond[..told.min(beyond.len())] {
            let field = self.drafts.get(key).map(|d| d.definition_path("name")).unwrap_or_default();
            let message = format!("the node has {most} services, which is the most; remove some first");
            self.refuse(key, vec![Problem::new(ProblemCode::Limit, field, message)]);
        }
    }

    /// Everything that is refused, as the refusal of the whole.
    fn rejection(&self) -> Rejection {
        let mut problems: Vec<Problem> = Vec::new();
        for problem in self.refused.iter().flat_map(|r| &r.problems) {
            // Several operations on one service carry the same problems.
            if !problems.contains(problem) {
                problems.push(problem.clone());
            }
            if problems.len() > PROBLEMS {
                break;
            }
        }
        Rejection { problems: bounded(problems) }
    }

    fn settle_claims(&mut self, fresh: &Claims) {
        let replaced = |key: &ServiceKey| self.drafts.get(key).is_some_and(Draft::reclaims);
        let service = |key: &ServiceKey| self.service(key);
        let view = View { base: &self.desired.claims, fresh, replaced: &replaced, service: &service };
        let changed = self.drafts.values().filter(|d| d.reclaims()).filter_map(|d| d.before.as_deref());
        let decided = resolve(&view, changed);

        let mut waiting: BTreeMap<ServiceKey, Vec<u32>> = BTreeMap::new();
        for ((key, frontend), held) in decided {
            // A service that does not replace its claims keeps those of its frontends that are not decided anew.
            let known = self.service(&key).filter(|_| !replaced(&key)).map(|s| s.waiting.clone());
            let list = waiting.entry(key).or_insert_with(|| known.unwrap_or_default());
            match (list.binary_search(&frontend), held) {
                (Ok(index), true) => drop(list.remove(index)),
                (Err(index), false) => list.insert(index, frontend),
                _ => {}
            }
        }
        for (key, draft) in self.drafts.iter_mut().filter(|(_, d)| d.changed()) {
            let now = waiting.remove(key).or_else(|| draft.reclaims().then(Vec::new));
            if let (Some(after), Some(now)) = (&mut draft.after, now) {
                Arc::make_mut(after).waiting = now;
            }
        }
        for (key, waiting) in waiting {
            let service = self.service(&key).map(|s| Service { waiting, ..s.clone() });
            self.promoted.extend(service.map(|s| (key, Arc::new(s))));
        }
    }

    /// A service as the call leaves it.
    fn service(&self, key: &ServiceKey) -> Option<&Service> {
        match (self.promoted.get(key), self.drafts.get(key)) {
            (Some(promoted), _) => Some(promoted),
            (None, Some(draft)) => draft.after.as_deref(),
            (None, None) => self.desired.service(key).map(|s| &**s),
        }
    }

    /// Tells the caller which frontends of the definitions that it sent wait, and for whom.
    fn note_waiting(&mut self, fresh: &Claims) {
        let mut notes: Vec<(ServiceKey, Problem)> = Vec::new();
        for (key, draft) in self.drafts.iter().filter(|(_, d)| d.defines()) {
            let Some(service) = self.service(key) else { continue };
            for &index in &service.waiting {
                let Some(frontend) = service.definition.frontends.get(index as usize) else { continue };
                let protocol = service.definition.protocol;
                let holder = frontend.spans().find_map(|span| self.holder(fresh, key, protocol, span));
                let holder = holder.map_or_else(|| "another service".to_owned(), |h| format!("service {h}"));
                let message = format!("{frontend}/{protocol} is held by {holder}; this service has it once it is free");
                let field = draft.definition_path(&format!("frontends[{index}]"));
                notes.push((key.clone(), Problem::new(ProblemCode::FrontendTaken, field, message)));
            }
        }
        for (key, note) in notes {
            if let Some(draft) = self.drafts.get_mut(&key) {
                draft.notes.push(note);
            }
        }
    }

    /// Another service that holds something of a span as the call leaves it.
    fn holder<'s>(
        &'s self,
        fresh: &'s Claims,
        own: &ServiceKey,
        protocol: Protocol,
        span: Span,
    ) -> Option<&'s ServiceKey> {
        let replaced = |key: &ServiceKey| self.drafts.get(key).is_some_and(Draft::reclaims);
        let old = self.desired.claims.overlapping(protocol, span).filter(|f| !replaced(f.service));
        let holds = |f: &Found<'_>| {
            f.service != own && self.service(f.service).is_some_and(|s| s.waiting.binary_search(&f.frontend).is_err())
        };
        old.chain(fresh.overlapping(protocol, span)).find(holds).map(|f| f.service)
    }

    /// The Delta of what is left.
    pub(crate) fn delta(self) -> Delta {
        let Self { desired, command, drafts, mut refused, promoted } = self;
        refused.sort_by_key(|r| r.index);
        for (count, refused) in refused.iter_mut().enumerate() {
            // Of many the first problem must do, or the reply would not fit into a message.
            refused.problems.truncate(if count < REFUSED { PROBLEMS_OF_MANY } else { 1 });
        }
        // Of nothing at all, the state is as old as itself.
        let mut accepted = if drafts.is_empty() { desired.revision } else { Revision::default() };
        let mut delta = Delta { refused_total: refused.len() as u64, refused, ..Delta::default() };
        let mut owners: BTreeMap<OwnerName, bool> = BTreeMap::new();
        for (key, draft) in drafts {
            *owners.entry(key.owner.clone()).or_default() |= draft.changed();
            accepted = accepted.max(draft.accepted);
            let room = PROBLEMS.saturating_sub(delta.notes.len());
            delta.notes.extend(draft.notes.iter().take(room).cloned());
            if !draft.changed() {
                delta.counts.unchanged += u64::from(draft.after.is_some());
                delta.unchanged.push(key);
                continue;
            }
            let Draft { before, after, .. } = draft;
            match (&before, &after) {
                (None, _) => delta.counts.created += 1,
                (Some(_), Some(_)) => delta.counts.updated += 1,
                (Some(_), None) => delta.counts.removed += 1,
            }
            delta.services.push(ServiceChange { key, before, after });
        }
        let promoted = promoted.into_iter().map(|(key, after)| {
            let before = desired.service(&key).map(Arc::clone);
            ServiceChange { key, before, after: Some(after) }
        });
        delta.services.extend(promoted);
        delta.services.sort_by(|a, b| a.key.cmp(&b.key));
        delta.owners = owners.into_iter().filter_map(|(name, changed)| mark(desired, command, name, changed)).collect();
        delta.revision = if delta.changed() { desired.revision.next() } else { accepted };
        delta
    }
}

/// A write's mark on its owner, which first use makes.
fn mark(desired: &Desired, command: &Command, name: OwnerName, changed: bool) -> Option<OwnerChange> {
    let before = desired.owners.get(&name).map(Arc::clone);
    let mut after = match &before {
        Some(record) => OwnerRecord::clone(record),
        None if changed => OwnerRecord::new(Owner::new(name.clone())),
        None => return None,
    };
    after.last_write = command.at;
    if changed {
        after.revision = desired.revision.next();
    }
    Some(OwnerChange { name, before, after: Some(Arc::new(after)) })
}
