//! Watch: the state, SYNCED, then changes. Level-triggered: the stream holds a place in the order of changes and reads
//! each service when the client takes it, so a client that reads slowly, or never, costs a place and nothing more.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use vipd_model::{OwnerName, Revision, Service, ServiceKey};
use vipd_proto::v1;
use vipd_proto::v1::watch_response::{Deleted, Event, Reset, Synced};

use super::access::Caller;
use super::call::{Api, Call};
use super::change;
use super::convert::scalar;
use super::dataplane::Answers;
use crate::reconcile::core::Status as Known;
use crate::reconcile::{Control, Core};

/// From one SYNCED to the next while nothing happens.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Changes read with the state locked.
const CHUNK: usize = 256;

/// Opens a Watch.
pub(super) fn watch(api: &Api, call: &Call, message: v1::WatchRequest) -> Result<Answers<v1::WatchResponse>, Status> {
    let owner = call.read(|default, at, problems| match message.owner.as_str() {
        "" => Some(None),
        name => scalar::owner(name, default, &at.field("owner"), problems).map(Some),
    })?;
    if let Some(owner) = &owner {
        call.caller.may_read(owner, "owner").map_err(|rejection| call.refused(None, &rejection))?;
    }
    let watcher = Watcher {
        _place: api.stream_place()?,
        changed: api.control.changed(),
        stopping: api.stopping.clone(),
        control: api.control.clone(),
        epoch: Arc::clone(&api.epoch),
        caller: call.caller.clone(),
        owner,
        omit_endpoints: message.omit_endpoints,
        state: State::Opening { epoch: message.epoch, from: Revision(message.from_revision) },
        ready: VecDeque::new(),
        cursor: 0,
        heartbeat: Instant::now() + HEARTBEAT,
    };
    let answers = futures::stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await?;
        Some((Ok(v1::WatchResponse { event: Some(event) }), watcher))
    });
    Ok(Box::pin(answers))
}

/// What of the state is still to be sent.
enum State {
    /// Nothing was sent yet.
    Opening { epoch: String, from: Revision },
    /// The whole state, after this key.
    Listing { after: Option<ServiceKey> },
    /// What a resuming client has missed.
    Resuming { keys: VecDeque<ServiceKey> },
    /// SYNCED was sent.
    Following,
}

struct Watcher {
    control: Control,
    changed: watch::Receiver<u64>,
    stopping: CancellationToken,
    epoch: Arc<str>,
    caller: Caller,
    owner: Option<OwnerName>,
    omit_endpoints: bool,
    state: State,
    /// Read and not yet sent: bounded by a chunk of keys, never states.
    ready: VecDeque<Ready>,
    cursor: u64,
    heartbeat: Instant,
    _place: OwnedSemaphorePermit,
}

enum Ready {
    /// To be read when it is sent, so that what is sent is the newest.
    Service(ServiceKey),
    Event(Box<Event>),
}

impl Ready {
    fn event(event: Event) -> Self {
        Self::Event(Box::new(event))
    }
}

impl Watcher {
    /// The next event; `None`: the daemon is stopping.
    async fn next(&mut self) -> Option<Event> {
        loop {
            while let Some(ready) = self.ready.pop_front() {
                match ready {
                    Ready::Event(event) => return Some(*event),
                    Ready::Service(key) => {
                        let found = self.control.read(|core| known(core, &key));
                        if let Some((service, status)) = found {
                            let state = change::service_state(&service, &status, self.omit_endpoints);
                            return Some(Event::Service(state));
                        }
                        // Deleted since it was listed: the change log says so.
                    }
                }
            }
            self.fill().await?;
        }
    }

    /// Finds out what comes next; leaves something in `ready`, or has changed the state.
    async fn fill(&mut self) -> Option<()> {
        match std::mem::replace(&mut self.state, State::Following) {
            State::Opening { epoch, from } => self.open(&epoch, from),
            State::Listing { after } => self.list(after),
            State::Resuming { mut keys } => {
                self.ready.extend(keys.drain(..keys.len().min(CHUNK)).map(Ready::Service));
                if keys.is_empty() { self.synced() } else { self.state = State::Resuming { keys } }
            }
            State::Following => return self.follow().await,
        }
        Some(())
    }

    fn open(&mut self, epoch: &str, from: Revision) {
        let reset = match epoch {
            "" => None,
            epoch if epoch != &*self.epoch => Some("another epoch: the store is not the one that you know".to_owned()),
            _ => {
                let (cursor, missed) = self.control.read(|core| (core.changes.cursor(), self.missed(core, from)));
                self.cursor = cursor;
                match missed {
                    Some((deleted, keys)) => {
                        self.ready.extend(deleted.into_iter().map(Ready::event));
                        self.state = State::Resuming { keys };
                        return;
                    }
                    None => Some(format!("what was deleted after revision {} is not known any more", from.0)),
                }
            }
        };
        self.ready.extend(reset.map(|reason| Ready::event(Event::Reset(Reset { reason }))));
        self.cursor = self.control.read(|core| core.changes.cursor());
        self.state = State::Listing { after: None };
    }

    /// What a client that holds everything up to `from` has missed; `None` if that is not known.
    fn missed(&self, core: &Core, from: Revision) -> Option<(Vec<Event>, VecDeque<ServiceKey>)> {
        if !core.changes.knows_deletions_after(from) || from > core.desired.revision() {
            return None;
        }
        let deleted = core.changes.deleted_after(from).filter(|(key, _)| self.wants(&key.owner));
        let deleted = deleted.map(|(key, revision)| deletion(key, revision)).collect();
        let newer = core.desired.services().filter(|service| service.revisions.newest() > from).map(|s| s.key.clone());
        // A status may have changed without a new revision, as when a failed service came into force.
        let touched = core.changes.touched_since(from).cloned();
        let keys: BTreeSet<ServiceKey> = newer.chain(touched).filter(|key| self.wants(&key.owner)).collect();
        Some((deleted, keys.into_iter().collect()))
    }

    fn list(&mut self, after: Option<ServiceKey>) {
        let mut keys: Vec<_> = self.control.read(|core| {
            core.desired.services_after(after.as_ref()).take(CHUNK).map(|service| service.key.clone()).collect()
        });
        let full = keys.len() == CHUNK;
        let last = keys.last().cloned();
        keys.retain(|key| self.wants(&key.owner));
        self.ready.extend(keys.into_iter().map(Ready::Service));
        if full { self.state = State::Listing { after: last } } else { self.synced() }
    }

    /// Sends SYNCED, with the revision up to which the client needs nothing again.
    fn synced(&mut self) {
        self.state = State::Following;
        self.heartbeat = Instant::now() + HEARTBEAT;
        let revision = self.control.read(Core::programmed_revision).0;
        self.ready.push_back(Ready::event(Event::Synced(Synced { epoch: self.epoch.to_string(), revision })));
    }

    async fn follow(&mut self) -> Option<()> {
        self.changed.borrow_and_update();
        let changed = self.control.read(|core| core.changes.after(self.cursor, CHUNK));
        match changed {
            // So slow that deletions it has not seen are forgotten.
            None => {
                let reason = "you read too slowly: deletions that you have not seen are not known any more".to_owned();
                self.ready.push_back(Ready::event(Event::Reset(Reset { reason })));
                self.cursor = self.control.read(|core| core.changes.cursor());
                self.state = State::Listing { after: None };
            }
            Some(changed) if changed.is_empty() => tokio::select! {
                () = self.stopping.cancelled() => return None,
                changed = self.changed.changed() => changed.ok()?,
                () = sleep_until(self.heartbeat) => self.synced(),
            },
            Some(changed) => {
                for change in changed {
                    self.cursor = change.cursor;
                    if self.wants(&change.key.owner) {
                        self.ready.push_back(match change.deleted {
                            Some(revision) => Ready::event(deletion(&change.key, revision)),
                            None => Ready::Service(change.key),
                        });
                    }
                }
            }
        }
        Some(())
    }

    fn wants(&self, owner: &OwnerName) -> bool {
        self.owner.as_ref().is_none_or(|wanted| wanted == owner) && self.caller.reads(owner)
    }
}

fn known(core: &Core, key: &ServiceKey) -> Option<(Arc<Service>, Known)> {
    let service = core.desired.service(key)?;
    Some((Arc::clone(service), core.status(service)))
}

fn deletion(key: &ServiceKey, revision: Revision) -> Event {
    Event::Deleted(Deleted { owner: key.owner.to_string(), name: key.name.to_string(), revision: revision.0 })
}
