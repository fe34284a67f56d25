//! Owners: their settings, their sessions, their leases, and their end.

use std::sync::Arc;

use super::Desired;
use super::draft::Draft;
use super::proposal::Proposal;
use crate::command::{Command, Mode};
use crate::delta::{Delta, OwnerChange};
use crate::name::OwnerName;
use crate::owner::{Owner, OwnerRecord};
use crate::problem::{Problem, ProblemCode, Rejection};
use crate::validate;

/// Refuses a write whose session is not the newest of every owner that it writes for. Without a session nobody is
/// fenced.
pub(crate) fn fence<'a>(
    desired: &Desired,
    command: &Command,
    owners: impl Iterator<Item = &'a OwnerName>,
) -> Result<(), Rejection> {
    if command.session == 0 {
        return Ok(());
    }
    let mut last = None;
    for owner in owners {
        if last.replace(owner) == Some(owner) {
            continue;
        }
        let record = desired.owners.get(owner);
        let current = record.map_or(0, |r| r.session);
        if current != command.session {
            let message = match record.filter(|r| r.session > command.session) {
                Some(r) if r.session_holder.is_empty() => format!(
                    "session {} of owner {owner} has been superseded by session {current}; stop writing, or Sync with \
                     take_over",
                    command.session
                ),
                Some(r) => format!(
                    "session {} of owner {owner} has been superseded by session {current} of {}; stop writing, or Sync \
                     with take_over",
                    command.session, r.session_holder
                ),
                None => format!("owner {owner} has no session {}; Sync with take_over opens one", command.session),
            };
            return Err(Problem::new(ProblemCode::Superseded, "options.session", message).into());
        }
    }
    Ok(())
}

/// Settings with their lists in order, without duplicates; or what is wrong with them.
pub(crate) fn settings(sent: &Owner, path: &str) -> Result<Owner, Rejection> {
    let mut problems = Vec::new();
    validate::owner::owner(sent).report(path, &mut problems);
    if !problems.is_empty() {
        return Err(Rejection { problems });
    }
    let mut owner = sent.clone();
    owner.network = crate::owner::Network::default();
    owner.network.merge(&sent.network);
    Ok(owner)
}

/// Creates an owner or replaces its settings.
pub(crate) fn set(desired: &Desired, command: &Command, sent: &Owner) -> Result<Delta, Rejection> {
    fence(desired, command, std::iter::once(&sent.name))?;
    let owner = settings(sent, "owner")?;
    let before = desired.owners.get(&owner.name).map(Arc::clone);
    let mut after = before.as_deref().cloned().unwrap_or_else(|| OwnerRecord::new(Owner::new(owner.name.clone())));
    let accepted = after.revision;
    let changed = before.is_none() || after.owner != owner;
    if changed {
        after.revision = desired.revision.next();
    }
    after.last_write = command.at;
    after.owner = owner;
    let revision = if changed { after.revision } else { accepted };
    let change = OwnerChange { name: sent.name.clone(), before, after: Some(Arc::new(after)) };
    Ok(Delta { revision, owners: vec![change], ..Delta::default() })
}

/// Removes an owner with everything that it declared. One that is not there is no error.
pub(crate) fn delete(desired: &Desired, command: &Command, name: &OwnerName) -> Result<Delta, Rejection> {
    fence(desired, command, std::iter::once(name))?;
    let Some(record) = desired.owners.get(name) else {
        return Ok(Delta { revision: desired.revision, ..Delta::default() });
    };
    let mut proposal = Proposal::new(desired, command);
    proposal.drafts = desired.services_of(name).map(|s| (s.key.clone(), Draft::removal(s))).collect();
    proposal.judge(Mode::Atomic)?;
    let mut delta = proposal.delta();
    delta.owners = vec![OwnerChange { name: name.clone(), before: Some(Arc::clone(record)), after: None }];
    delta.revision = desired.revision.next();
    Ok(delta)
}

/// "Still here": a mark on the owner, no change of declared state.
pub(crate) fn renew(desired: &Desired, command: &Command, name: &OwnerName) -> Result<Delta, Rejection> {
    let Some(before) = desired.owners.get(name) else {
        let message = format!("there is no owner {name}; SetOwner or its first write makes it");
        return Err(Problem::new(ProblemCode::NoSuchService, "owner", message).into());
    };
    fence(desired, command, std::iter::once(name)).map_err(|mut rejection| {
        // RenewLease has its session beside the owner, not inside options.
        rejection.problems.iter_mut().for_each(|p| p.field = "session".into());
        rejection
    })?;
    let after = OwnerRecord { last_write: command.at, ..OwnerRecord::clone(before) };
    let change = OwnerChange { name: name.clone(), before: Some(Arc::clone(before)), after: Some(Arc::new(after)) };
    Ok(Delta { revision: before.revision, owners: vec![change], ..Delta::default() })
}
