//! Taking commands in: dispatch, store, and only then acceptance.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use vipd_model::{Command, Delta, Problem, ProblemCode, Rejection, Request, Revision, ServiceKey, Wait};

use super::control::{Accepted, CallError};
use super::core::{Core, Hold};
use super::describe::describe;
use super::journal::EventKind;
use super::persist::PersistError;
use super::run::{Done, Reconciler};
use vipd_model::desired::Mark;

type Reply = oneshot::Sender<Result<Accepted, CallError>>;

/// A command that was dispatched and is being stored.
pub(super) struct Taken {
    command: Box<Command>,
    wait: Wait,
    reply: Reply,
    outcome: Result<Arc<Delta>, Rejection>,
}

impl Reconciler {
    /// Dispatches commands in order and hands what they changed to the store, as one transaction.
    pub(super) fn accept(&mut self, commands: Vec<(Box<Command>, Wait, Reply)>) {
        let mut core = self.write();
        core.figures.commands += commands.len() as u64;
        let before = core.desired.mark();
        let mut taken = Vec::with_capacity(commands.len());
        for (command, wait, reply) in commands {
            let outcome = match &core.store_problem {
                Some(problem) if !matches!(command.request, Request::RenewLease(_)) => {
                    Err(Rejection::from(problem.clone()))
                }
                _ => core.desired.dispatch(&command).map(Arc::new),
            };
            taken.push(Taken { command, wait, reply, outcome });
        }
        drop(core);
        // What changed nothing is not written: a repeated call costs no disk.
        let deltas: Vec<_> =
            taken.iter().filter_map(|t| t.outcome.as_ref().ok()).filter(|d| stored(d)).cloned().collect();
        self.committing = Some((taken, before));
        if deltas.is_empty() {
            self.committed(Ok(()));
            return;
        }
        let persist = self.persist.clone();
        self.spawn(async move { Done::Committed(persist.call(move |persist| persist.commit(&deltas)).await) });
    }

    /// The store answered.
    pub(super) fn committed(&mut self, result: Result<(), PersistError>) {
        let Some((taken, before)) = self.committing.take() else { return };
        match result {
            Ok(()) => {
                for one in taken {
                    self.accepted(one);
                }
                self.announce();
            }
            Err(error) => self.not_stored(taken, before, &error),
        }
    }

    /// Undoes what was dispatched: nothing of it was stored, so nothing of it was accepted.
    fn not_stored(&mut self, taken: Vec<Taken>, before: Mark, error: &PersistError) {
        let mut core = self.write();
        let deltas = taken.iter().rev().filter_map(|one| one.outcome.as_deref().ok());
        core.desired.revert(deltas, before);
        if error.read_only {
            core.store_problem = Some(Problem::new(ProblemCode::NotProgrammed, "", error.message.clone()));
        }
        drop(core);
        tracing::error!(error = %error.message, calls = taken.len(), "changes were not stored and are refused");
        for one in taken {
            let _ = one.reply.send(Err(CallError::NotStored(error.clone())));
        }
    }

    fn accepted(&mut self, taken: Taken) {
        let Taken { command, wait, reply, outcome } = taken;
        let delta = match outcome {
            Ok(delta) => delta,
            Err(rejection) => {
                self.rejected(&command, &rejection);
                let _ = reply.send(Err(CallError::Rejected(rejection)));
                return;
            }
        };
        let mut core = self.write();
        if delta.changed() {
            note_changed(&mut core, &command, &delta);
        }
        let waits = wait_for(&core, &delta);
        let in_force = waits.is_empty();
        drop(core);
        self.make_due(&command, &delta, &waits);
        match wait {
            Wait::Accepted => {
                let _ = reply.send(Ok(Accepted { delta, in_force }));
            }
            Wait::Programmed => self.waiters.add(delta, waits, reply),
        }
    }

    fn make_due(&mut self, command: &Command, delta: &Delta, waits: &[(ServiceKey, Revision)]) {
        let now = Instant::now();
        for (key, _) in waits {
            self.accepted_at.entry(key.clone()).or_insert(now);
            self.due.insert(key.clone());
        }
        let network = |change: &vipd_model::OwnerChange| {
            let of = |record: &Option<Arc<vipd_model::OwnerRecord>>| record.as_ref().map(|r| r.owner.network.clone());
            of(&change.before).unwrap_or_default() != of(&change.after).unwrap_or_default()
        };
        if delta.owners.iter().any(network) {
            self.node_due = Some(now);
        }
        if delta.default_engine.is_some() {
            let core = self.core.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            let follow = core.desired.services().filter(|service| service.definition.engine.is_none());
            self.due.extend(follow.map(|service| service.key.clone()));
        }
        self.owner_is_back(command, delta);
    }

    /// A write or a renewal ends an expired lease; a Sync ends a hold for its owner.
    fn owner_is_back(&mut self, command: &Command, delta: &Delta) {
        let now = self.now();
        let mut back = Vec::new();
        let mut core = self.write();
        for change in &delta.owners {
            let mut serve_again = core.expired.remove(&change.name);
            if serve_again {
                let text = "the owner is back; its lease runs again".to_owned();
                core.log_node(now, EventKind::Lease, &command.actor.name, Some(&change.name), text);
            }
            if matches!(command.request, Request::Sync(_)) {
                serve_again |= core.holds.remove(&Hold::Owner(change.name.clone()));
            }
            if serve_again {
                back.extend(core.desired.services_of(&change.name).map(|service| service.key.clone()));
            }
        }
        drop(core);
        self.due.extend(back);
    }

    fn rejected(&self, command: &Command, rejection: &Rejection) {
        let key = match &command.request {
            Request::One(operation) => Some(operation.key().clone()),
            _ => None,
        };
        self.journal_refused(&command.actor.name, key.as_ref(), rejection.to_string());
        self.write().figures.refused += 1;
    }

    pub(super) fn journal_refused(&self, actor: &str, service: Option<&ServiceKey>, text: String) {
        let now = self.now();
        let mut core = self.write();
        match service {
            Some(key) => core.log(now, EventKind::RefusedCall, actor, key, Revision(0), text),
            None => core.log_node(now, EventKind::RefusedCall, actor, None, text),
        }
    }
}

/// Whether a Delta goes to the store: it changed something, or it renewed a lease whose age a restart asks for.
fn stored(delta: &Delta) -> bool {
    let aged = |change: &vipd_model::OwnerChange| {
        change.after.as_ref().is_some_and(|record| record.owner.restore_max_age.is_some())
    };
    delta.changed() || delta.owners.iter().any(aged)
}

fn note_changed(core: &mut Core, command: &Command, delta: &Delta) {
    if delta.changed() {
        core.changes.advance(delta.revision);
    }
    for change in &delta.services {
        core.tracks.update(&change.key, |track| {
            track.wanted = delta.revision;
            track.pending_since.get_or_insert(delta.revision);
        });
        match &change.after {
            Some(_) => core.changes.touch(&change.key),
            None => core.changes.delete(&change.key, delta.revision),
        }
        let mut text = describe(change.before.as_deref(), change.after.as_deref());
        if !command.note.is_empty() {
            text = format!("{text} ({})", command.note);
        }
        core.log(command.at, EventKind::Changed, &command.actor.name, &change.key, delta.revision, text);
    }
    for change in &delta.owners {
        let settings = |r: &Option<Arc<vipd_model::OwnerRecord>>| r.as_ref().map(|r| r.owner.clone());
        if settings(&change.before) != settings(&change.after) {
            let text = match (&change.before, &change.after) {
                (None, _) => "owner created".to_owned(),
                (_, None) => "owner deleted".to_owned(),
                _ => "owner settings changed".to_owned(),
            };
            core.log_node(command.at, EventKind::Changed, &command.actor.name, Some(&change.name), text);
        }
    }
    if let Some(engine) = &delta.default_engine {
        let text = engine.map_or_else(|| "back to the configuration".to_owned(), |engine| engine.to_string());
        core.log_node(command.at, EventKind::Engine, &command.actor.name, None, format!("default engine: {text}"));
    }
}

/// The services that a caller waits for, and up to which change.
fn wait_for(core: &Core, delta: &Delta) -> Vec<(ServiceKey, Revision)> {
    let mut waits: Vec<(ServiceKey, Revision)> =
        delta.services.iter().map(|change| (change.key.clone(), delta.revision)).collect();
    if delta.default_engine.is_some() {
        let follow = core.desired.services().filter(|service| service.definition.engine.is_none());
        let wanted = |key| core.tracks.get(key).map_or(Revision(0), |track| track.wanted);
        waits.extend(follow.map(|service| (service.key.clone(), wanted(&service.key))));
    }
    for key in &delta.unchanged {
        if let Some(track) = core.tracks.get(key)
            && (track.pending_since.is_some() || track.failure.is_some())
        {
            waits.push((key.clone(), track.wanted));
        }
    }
    waits.sort();
    waits.dedup_by(|a, b| a.0 == b.0);
    waits
}
