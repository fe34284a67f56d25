//! The calls that write services: one operation, or several as an Apply.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Desired;
use super::draft::{Draft, draft};
use super::group::{self, Groups, Origin};
use crate::command::{Command, Mode, Operation};
use crate::delta::{Delta, OwnerChange, ServiceChange};
use crate::limits::{PROBLEMS, REFUSED};
use crate::name::{OwnerName, ServiceKey};
use crate::owner::{Owner, OwnerRecord};
use crate::problem::{Problem, ProblemCode, Refused, Rejection};
use crate::validate::bounded;

/// A call of its own.
pub(crate) fn one(desired: &Desired, command: &Command, operation: &Operation) -> Result<Delta, Rejection> {
    write(desired, command, group::single(operation), Mode::Atomic)
}

/// An Apply.
pub(crate) fn apply(
    desired: &Desired,
    command: &Command,
    operations: &[Operation],
    mode: Mode,
) -> Result<Delta, Rejection> {
    let (given, most) = (operations.len(), desired.limits.operations_per_apply);
    if given > most {
        let message = format!("{given} operations; the most is {most}; send several calls");
        return Err(Problem::new(ProblemCode::Limit, "operations", message).into());
    }
    write(desired, command, group::several(operations), mode)
}

fn write(desired: &Desired, command: &Command, groups: Groups<'_>, mode: Mode) -> Result<Delta, Rejection> {
    let mut proposal = Proposal::default();
    for (key, group) in groups {
        proposal.propose(desired, command, key, group);
    }
    proposal.judge(mode)?;
    Ok(proposal.delta(desired, command))
}

/// The drafts of a call, and what is refused of it.
#[derive(Debug, Default)]
pub(crate) struct Proposal {
    pub(crate) drafts: BTreeMap<ServiceKey, Draft>,
    pub(crate) refused: Vec<Refused>,
}

impl Proposal {
    /// Drafts what a group says of a service.
    pub(crate) fn propose(&mut self, desired: &Desired, command: &Command, key: &ServiceKey, group: group::Group<'_>) {
        let origins = group.origins.clone();
        match draft(desired, key, group, command.at, desired.revision.next()) {
            Ok(draft) => {
                self.drafts.insert(key.clone(), draft);
            }
            Err(problems) => self.refuse(key, &origins, problems),
        }
    }

    /// Every operation on a service is refused with it.
    pub(crate) fn refuse(&mut self, key: &ServiceKey, origins: &[Origin], problems: Vec<Problem>) {
        self.drafts.remove(key);
        let problems = bounded(problems);
        self.refused.extend(origins.iter().map(|origin| Refused {
            index: origin.index(),
            owner: key.owner.to_string(),
            name: key.name.to_string(),
            problems: problems.clone(),
        }));
    }

    /// In mode ATOMIC one refusal refuses all.
    pub(crate) fn judge(&self, mode: Mode) -> Result<(), Rejection> {
        if mode == Mode::Each || self.refused.is_empty() {
            return Ok(());
        }
        let mut problems: Vec<Problem> = Vec::new();
        for problem in self.refused.iter().flat_map(|r| &r.problems) {
            // Several operations on one service carry the same problems.
            if problems.last() != Some(problem) && problems.len() <= PROBLEMS {
                problems.push(problem.clone());
            }
        }
        Err(Rejection { problems: bounded(problems) })
    }

    /// The Delta of what is left.
    pub(crate) fn delta(self, desired: &Desired, command: &Command) -> Delta {
        let mut delta = Delta { refused_total: self.refused.len() as u64, refused: self.refused, ..Delta::default() };
        delta.refused.sort_by_key(|r| r.index);
        delta.refused.truncate(REFUSED);
        let mut accepted = crate::Revision::default();
        let mut owners: BTreeMap<OwnerName, bool> = BTreeMap::new();
        for (key, draft) in self.drafts {
            let touched = owners.entry(key.owner.clone()).or_default();
            *touched |= draft.changed();
            accepted = accepted.max(draft.accepted);
            delta.notes.extend(draft.notes.iter().take(PROBLEMS.saturating_sub(delta.notes.len())).cloned());
            if draft.changed() {
                let Draft { before, after, .. } = draft;
                let count = match (&before, &after) {
                    (None, _) => &mut delta.counts.created,
                    (Some(_), Some(_)) => &mut delta.counts.updated,
                    (Some(_), None) => &mut delta.counts.removed,
                };
                *count += 1;
                delta.services.push(ServiceChange { key, before, after });
            } else {
                delta.counts.unchanged += u64::from(draft.after.is_some());
                delta.unchanged.push(key);
            }
        }
        delta.owners = owners.into_iter().filter_map(|(name, touched)| mark(desired, command, name, touched)).collect();
        delta.revision = if delta.changed() { desired.revision.next() } else { accepted };
        delta
    }
}

/// A write's mark on its owner, which first use makes.
fn mark(desired: &Desired, command: &Command, name: OwnerName, changed: bool) -> Option<OwnerChange> {
    let before = desired.owners.get(&name).cloned();
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
