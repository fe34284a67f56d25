//! Sync: one owner's whole state. What it had and did not send goes, in the same change.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::draft::Draft;
use super::proposal::Proposal;
use super::{Desired, group, owners};
use crate::command::{Command, Mode, Sync};
use crate::delta::{Delta, OwnerChange};
use crate::limits::REFUSED;
use crate::owner::{Owner, OwnerRecord};
use crate::problem::{Problem, ProblemCode, Rejection};

/// Commits a Sync.
pub(crate) fn sync(desired: &Desired, command: &Command, sync: &Sync) -> Result<Delta, Rejection> {
    let settings = allowed(desired, command, sync)?;
    let mode = if sync.all_or_nothing { Mode::Atomic } else { Mode::Each };
    let mut proposal = Proposal::new(desired, command);
    proposal.refused.clone_from(&sync.unconverted);
    let groups = group::declared(&sync.declares);
    let unreadable: BTreeSet<&str> = sync.unconverted.iter().map(|r| r.name.as_str()).collect();
    // What was sent and refused, for whatever reason, keeps its last good state; the rest goes.
    let unsent = desired
        .services_of(&sync.owner)
        .filter(|service| !groups.contains_key(&service.key) && !unreadable.contains(service.key.name.as_str()));
    proposal.drafts = unsent.map(|service| (service.key.clone(), Draft::removal(service))).collect();
    for (key, group) in groups {
        proposal.propose(key, group);
    }
    proposal.judge(mode)?;
    if !sync.allow_large_removal {
        small_removal(desired, sync, &proposal)?;
    }
    let mut delta = proposal.delta();
    delta.refused.truncate(REFUSED);
    mark(desired, command, sync, settings, &mut delta);
    Ok(delta)
}

/// Whether this Sync may commit at all, with the settings that it brings.
fn allowed(desired: &Desired, command: &Command, sync: &Sync) -> Result<Option<Owner>, Rejection> {
    let superseded = |message: String| Rejection::from(Problem::new(ProblemCode::Superseded, "begin", message));
    let owner = &sync.owner;
    let record = desired.owners.get(owner);
    if !sync.take_over {
        owners::fence(desired, command, std::iter::once(owner)).map_err(|r| r.under("begin"))?;
    } else if let Some(record) = record.filter(|r| r.session > sync.ticket) {
        return Err(superseded(format!(
            "a Sync of owner {owner} that began later has taken over (session {}, {}); stop writing, or begin again",
            record.session, record.session_holder
        )));
    }
    let now = record.map(|r| r.revision).unwrap_or_default();
    if now != sync.begun {
        return Err(superseded(format!(
            "another writer changed owner {owner} since this Sync began (revision {}, now {}); read what is there if you \
             must, and begin again",
            sync.begun.0, now.0
        )));
    }
    let sent = (sync.declares.len() + sync.unconverted.len()) as u64;
    if sync.declared != sent {
        let message = format!(
            "says {} services, but {sent} arrived; nothing was changed; send the whole state again",
            sync.declared
        );
        return Err(Problem::invalid("commit.declared", message).into());
    }
    sync.settings.as_ref().map(|settings| owners::settings(settings, "begin.settings")).transpose()
}

/// Refuses a commit that would take away more than the share that the node allows. Endpoints count where a service has
/// fewer than before, so that replacing all of them (every pod restarted while the adapter was away) is no removal.
fn small_removal(desired: &Desired, sync: &Sync, proposal: &Proposal<'_>) -> Result<(), Rejection> {
    let (had, limits) = (desired.tally(&sync.owner), &desired.limits);
    let services = proposal.drafts.values().filter(|d| d.before.is_some() && d.after.is_none()).count();
    let fewer = |d: &Draft<'_>| {
        let count = |s: &Option<Arc<crate::Service>>| s.as_ref().map_or(0, |s| s.endpoints.len());
        count(&d.before).saturating_sub(count(&d.after))
    };
    let endpoints: usize = proposal.drafts.values().map(fewer).sum();
    let percent = usize::from(limits.large_removal_percent);
    let large = |removed: usize, of: usize, small: usize| removed > small && removed * 100 > of * percent;
    let what = if large(services, had.services, limits.small_removal_services) {
        format!("{services} of {} services", had.services)
    } else if large(endpoints, had.endpoints, limits.small_removal_endpoints) {
        format!("{endpoints} of {} endpoints", had.endpoints)
    } else {
        return Ok(());
    };
    let message = format!(
        "this Sync would remove {what} of owner {}, more than {percent} %; if that is meant, begin with \
         allow_large_removal",
        sync.owner
    );
    Err(Problem::new(ProblemCode::LargeRemoval, "begin.allow_large_removal", message).into())
}

/// The owner's part of the change: its settings, its session, and when it synced.
fn mark(desired: &Desired, command: &Command, sync: &Sync, settings: Option<Owner>, delta: &mut Delta) {
    let accepted = delta.revision;
    let before = desired.owners.get(&sync.owner).map(Arc::clone);
    let mut after = before.as_deref().cloned().unwrap_or_else(|| OwnerRecord::new(Owner::new(sync.owner.clone())));
    let settings = settings.filter(|owner| *owner != after.owner);
    // Services of other owners may be in the Delta, by a frontend that they gain.
    let own = delta.services.iter().any(|c| c.key.owner == sync.owner);
    if own || settings.is_some() || before.is_none() {
        after.revision = desired.revision.next();
    }
    after.owner = settings.unwrap_or(after.owner);
    if sync.take_over {
        after.session = sync.ticket;
        after.session_holder.clone_from(&sync.holder);
    }
    after.last_write = command.at;
    after.last_sync = Some(command.at);
    let standing = after.revision;
    delta.owners = vec![OwnerChange { name: sync.owner.clone(), before, after: Some(Arc::new(after)) }];
    delta.revision = if delta.changed() { desired.revision.next() } else { accepted.max(standing) };
}
