//! What is known of one service besides what was declared: which revision is in force, by which engine, what failed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tokio::time::Instant;
use vipd_model::{Algorithm, EngineKind, Millis, Problem, Revision, Service, ServiceKey};

/// Where a service stands; the names of `vipd.v1.Status.State`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceState {
    /// What was declared is what packets meet.
    InForce,
    /// Accepted, on its way.
    Pending,
    /// Accepted, the kernel refuses it; retried.
    Failed,
    /// Declared, deliberately not served.
    Withdrawn,
}

/// A failed attempt to program a service.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What happened, with `since` of the first failure in a row.
    pub problem: Problem,
    /// In a row.
    pub attempts: u32,
    /// When the next attempt is due.
    pub retry_at: Instant,
}

/// An engine that another one has replaced, and that still carries established flows.
#[derive(Clone, Debug)]
pub struct Draining {
    /// Which.
    pub engine: EngineKind,
    /// When it was replaced.
    pub since: Instant,
    /// When they are cut; absent: never.
    pub cut_at: Option<Instant>,
    /// How many, when they were last counted; absent: not yet.
    pub flows: Option<u64>,
    /// The kernel's numbers of them, sorted, where it carries them; empty where the engine does.
    pub ids: Vec<u32>,
}

impl Draining {
    /// One whose flows have not been counted yet.
    pub(super) fn new(engine: EngineKind, cut_at: Option<Instant>) -> Self {
        Self { engine, since: Instant::now(), cut_at, flows: None, ids: Vec::new() }
    }
}

/// One service's way into the kernel. What is rarely there takes the room of a pointer.
#[derive(Clone, Debug, Default)]
pub struct Track {
    /// The newest accepted change that concerns it, promotions of contested frontends included.
    pub wanted: Revision,
    /// The oldest accepted change that is not in force.
    pub pending_since: Option<Revision>,
    /// Everything up to this change is in force.
    pub in_force: Revision,
    /// What is in force; absent: nothing.
    pub programmed: Option<Arc<Service>>,
    /// When it came into force.
    pub programmed_at: Option<Millis>,
    /// What serves it.
    pub engine: Option<EngineKind>,
    /// What may have objects of it: what serves it, and what an attempt to move it has touched.
    pub touched: BTreeSet<EngineKind>,
    /// Still carry established flows after a switch; the newest last.
    pub draining: Vec<Draining>,
    /// What runs.
    pub algorithm: Option<Algorithm>,
    /// Standing notes of the engine choice: ENGINE_CHOSEN, SCHEDULER_REPLACED…
    pub notes: Vec<Problem>,
    /// The last attempt failed.
    pub failure: Option<Box<Failure>>,
    /// Why it is deliberately not served.
    pub withdrawn: Option<Box<Problem>>,
    /// Its health port does not answer.
    pub health_port: Option<Box<Problem>>,
}

impl Track {
    /// What still carries established flows after a switch: the newest that is known to have some.
    #[must_use]
    pub fn draining_engine(&self) -> Option<EngineKind> {
        let has_flows = |draining: &&Draining| draining.flows.is_some_and(|flows| flows > 0);
        self.draining.iter().rev().find(has_flows).map(|draining| draining.engine)
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> ServiceState {
        if self.failure.is_some() {
            ServiceState::Failed
        } else if self.pending_since.is_some() {
            ServiceState::Pending
        } else if self.withdrawn.is_some() {
            ServiceState::Withdrawn
        } else {
            ServiceState::InForce
        }
    }
}

/// The way of the node's own rules (virtual ranges, local sources) into the kernel.
#[derive(Clone, Debug, Default)]
pub struct NodeTrack {
    /// The newest accepted change of them.
    pub wanted: Revision,
    /// The oldest accepted change that is not in force.
    pub pending_since: Option<Revision>,
    /// The last attempt failed; retried.
    pub failure: Option<Problem>,
}

/// Tracks by service, with the order in which pending ones became so.
#[derive(Debug, Default)]
pub struct Tracks {
    by_key: HashMap<ServiceKey, Track>,
    /// Pending and not failed, by age: its first tells how far the node is programmed.
    pending: BTreeSet<(Revision, ServiceKey)>,
    failed: BTreeSet<ServiceKey>,
}

impl Tracks {
    /// Of one service, which may be gone while its removal is under way.
    #[must_use]
    pub fn get(&self, key: &ServiceKey) -> Option<&Track> {
        self.by_key.get(key)
    }

    /// Changes a track, and keeps the indices in step. A track is made on first use.
    pub fn update<T>(&mut self, key: &ServiceKey, change: impl FnOnce(&mut Track) -> T) -> T {
        let track = self.by_key.entry(key.clone()).or_default();
        if let Some(since) = track.pending_since {
            self.pending.remove(&(since, key.clone()));
        }
        let result = change(track);
        if track.failure.is_some() {
            self.failed.insert(key.clone());
        } else {
            self.failed.remove(key);
            if let Some(since) = track.pending_since {
                self.pending.insert((since, key.clone()));
            }
        }
        result
    }

    /// This engine may have objects of the service from now on.
    pub fn touch(&mut self, key: &ServiceKey, engine: EngineKind) {
        self.by_key.entry(key.clone()).or_default().touched.insert(engine);
    }

    /// Forgets a service that is gone from the kernel.
    pub fn forget(&mut self, key: &ServiceKey) {
        if let Some(track) = self.by_key.remove(key)
            && let Some(since) = track.pending_since
        {
            self.pending.remove(&(since, key.clone()));
        }
        self.failed.remove(key);
    }

    /// The oldest change that is accepted and neither in force nor failed.
    #[must_use]
    pub fn oldest_pending(&self) -> Option<Revision> {
        self.pending.first().map(|(revision, _)| *revision)
    }

    /// How many are pending and not failed.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Services whose last attempt failed.
    #[must_use]
    pub fn failed(&self) -> &BTreeSet<ServiceKey> {
        &self.failed
    }

    /// The earliest retry that is due.
    #[must_use]
    pub fn next_retry(&self) -> Option<Instant> {
        self.failed.iter().filter_map(|key| Some(self.by_key.get(key)?.failure.as_ref()?.retry_at)).min()
    }

    /// Every track.
    pub fn iter(&self) -> impl Iterator<Item = (&ServiceKey, &Track)> {
        self.by_key.iter()
    }
}
