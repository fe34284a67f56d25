//! Taking commands in: dispatch, store, and only then acceptance.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use vipd_model::desired::Mark;
use vipd_model::{
    Command, Delta, Millis, OwnerRecord, Problem, ProblemCode, Rejection, Request, Revision, ServiceKey, Wait,
};

use super::apply::that_depend_on_the_node;
use super::control::{Accepted, CallError};
use super::core::{Core, Hold};
use super::describe::describe;
use super::journal::EventKind;
use super::persist::PersistError;
use super::run::{Done, Reconciler};
use super::waiters::{Target, Waits};

type Reply = oneshot::Sender<Result<Accepted, CallError>>;

/// A command that was dispatched and is being stored.
pub(super) struct Taken {
    command: Box<Command>,
    wait: Wait,
    reply: Reply,
    outcome: Result<Arc<Delta>, Rejection>,
}

/// Commands that become accepted together, or not at all.
pub(super) struct Committing {
    taken: Vec<Taken>,
    /// Of the state ahead, to come back to.
    before: Mark,
}

impl Reconciler {
    /// Dispatches commands in order and hands what they changed to the store, as one transaction.
    pub(super) fn accept(&mut self, commands: Vec<(Box<Command>, Wait, Reply)>) {
        let mut core = self.write();
        core.figures.commands += commands.len() as u64;
        let store_problem = core.store_problem.clone();
        drop(core);
        let before = self.ahead.mark();
        let mut taken = Vec::with_capacity(commands.len());
        for (command, wait, reply) in commands {
            let outcome = match &store_problem {
                Some(problem) if !matches!(command.request, Request::RenewLease(_)) => {
                    Err(Rejection::from(problem.clone()))
                }
                _ => self.ahead.dispatch(&command).map(Arc::new),
            };
            taken.push(Taken { command, wait, reply, outcome });
        }
        // What changed nothing is not written: a repeated call costs no disk.
        let changed = taken.iter().filter_map(|one| one.outcome.as_ref().ok()).filter(|delta| stored(delta));
        let deltas: Vec<_> = changed.filter(|_| store_problem.is_none()).cloned().collect();
        self.committing = Some(Committing { taken, before });
        if deltas.is_empty() {
            self.committed(Ok(()));
            return;
        }
        self.write().figures.commits += 1;
        self.busy.begin("storing");
        let persist = self.persist.clone();
        self.spawn(async move { Done::Committed(persist.call(move |persist| persist.commit(&deltas)).await) });
    }

    /// The store answered.
    pub(super) fn committed(&mut self, result: Result<(), PersistError>) {
        self.busy.end("storing");
        let Some(Committing { taken, before }) = self.committing.take() else { return };
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
        let deltas = taken.iter().rev().filter_map(|one| one.outcome.as_deref().ok());
        self.ahead.revert(deltas, before);
        if error.read_only {
            self.write().store_problem = Some(Problem::new(ProblemCode::Host, "", error.message.clone()));
        }
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
        if let Request::SetDefaultEngine { drain, .. } = &command.request {
            self.drains.set(*drain);
        }
        let mut core = self.write();
        core.desired.apply(&delta);
        if delta.changed() {
            note_changed(&mut core, &command, &delta);
        }
        let back = owner_is_back(&mut core, &command, &delta, self.now());
        let waits = wait_for(&core, &command, &delta, &back);
        drop(core);
        self.make_due(&waits, back);
        match wait {
            Wait::Accepted => {
                let _ = reply.send(Ok(Accepted { delta, in_force: waits.is_empty() }));
            }
            Wait::Programmed => self.waiters.add(delta, waits, reply),
        }
    }

    fn make_due(&mut self, waits: &Waits, back: Vec<ServiceKey>) {
        let now = Instant::now();
        for (target, _) in waits {
            match target {
                Target::Service(key) => {
                    self.accepted_at.entry(key.clone()).or_insert(now);
                    self.due.insert(key.clone());
                }
                // Of a failed attempt too: a caller who repeats the call need not wait for the pause to end.
                Target::Node => self.node_due = Some(now),
            }
        }
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

/// A write or a renewal ends an expired lease; a Sync ends a hold for its owner. Returns the services that are to be
/// served again.
fn owner_is_back(core: &mut Core, command: &Command, delta: &Delta, now: Millis) -> Vec<ServiceKey> {
    let mut owners = Vec::new();
    for change in &delta.owners {
        if core.expired.remove(&change.name) && change.after.is_some() {
            let text = "the owner is back; its lease runs again".to_owned();
            core.log_node(now, EventKind::Lease, &command.actor.name, Some(&change.name), text);
            owners.push(&change.name);
        }
    }
    if let Request::Sync(sync) = &command.request
        && core.holds.remove(&Hold::Owner(sync.owner.clone()))
    {
        owners.push(&sync.owner);
    }
    let mut back = Vec::new();
    for owner in owners {
        let withheld = core.desired.services_of(owner).filter(|service| {
            core.tracks
                .get(&service.key)
                .is_some_and(|track| track.withdrawn.is_some() || track.pending_since.is_some())
        });
        back.extend(withheld.map(|service| service.key.clone()));
    }
    for key in &back {
        core.tracks.update(key, |track| {
            track.pending_since.get_or_insert(track.wanted);
        });
    }
    back
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
    if changes_network(delta) {
        core.node_track.wanted = delta.revision;
        core.node_track.pending_since.get_or_insert(delta.revision);
        for key in that_depend_on_the_node(core) {
            core.tracks.update(&key, |track| {
                track.wanted = delta.revision;
                track.pending_since.get_or_insert(delta.revision);
            });
        }
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
        for key in followers(core) {
            core.tracks.update(&key, |track| {
                track.wanted = delta.revision;
                track.pending_since.get_or_insert(delta.revision);
            });
        }
        let text = engine.map_or_else(|| "back to the configuration".to_owned(), |engine| engine.to_string());
        core.log_node(command.at, EventKind::Engine, &command.actor.name, None, format!("default engine: {text}"));
    }
}

/// Services that name no engine.
fn followers(core: &Core) -> Vec<ServiceKey> {
    let follow = core.desired.services().filter(|service| service.definition.engine.is_none());
    follow.map(|service| service.key.clone()).collect()
}

/// Whether the node's own rules depend on what changed about an owner.
fn changes_network(delta: &Delta) -> bool {
    let of = |record: &Option<Arc<OwnerRecord>>| record.as_ref().map(|r| r.owner.network.clone()).unwrap_or_default();
    delta.owners.iter().any(|change| of(&change.before) != of(&change.after))
}

/// What a caller waits for, and up to which change.
fn wait_for(core: &Core, command: &Command, delta: &Delta, back: &[ServiceKey]) -> Waits {
    let wanted = |key: &ServiceKey| core.tracks.get(key).map_or(Revision(0), |track| track.wanted);
    let mut keys: BTreeSet<&ServiceKey> = delta.services.iter().map(|change| &change.key).collect();
    let mut followers = match command.request {
        Request::SetDefaultEngine { .. } => followers(core),
        _ => Vec::new(),
    };
    if changes_network(delta) {
        followers.extend(that_depend_on_the_node(core));
    }
    if matches!(command.request, Request::RenewLease(_)) {
        keys.extend(back);
    }
    // A no-op never answers early: what it asks for may still be on its way.
    let on_their_way = delta.unchanged.iter().chain(&followers).filter(|key| {
        core.tracks.get(key).is_some_and(|track| track.pending_since.is_some() || track.failure.is_some())
    });
    keys.extend(on_their_way);
    let mut waits: Waits = keys.into_iter().map(|key| (Target::Service(key.clone()), wanted(key))).collect();
    let of_owner = matches!(command.request, Request::SetOwner(_) | Request::DeleteOwner(_) | Request::Sync(_));
    if of_owner && (core.node_track.pending_since.is_some() || core.node_track.failure.is_some()) {
        waits.push((Target::Node, core.node_track.wanted));
    }
    waits
}
