//! Commands: what a call asks for, converted from the request and not yet checked against the state.

use std::sync::Arc;

use crate::endpoint::{Drain, Endpoint, EndpointKey};
use crate::feature::EngineKind;
use crate::name::{OwnerName, ServiceKey};
use crate::owner::Owner;
use crate::problem::Refused;
use crate::scheduler::Scheduler;
use crate::service::Definition;
use crate::{Millis, Revision};

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// As the journal shows it: `uid 0 pid 4211 (vipd-k8s)`, `spiffe://…`; empty: vipd itself.
    pub name: String,
}

/// When a write is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Once it is in force.
    #[default]
    Programmed,
    /// Once it is checked and stored.
    Accepted,
}

/// Whether one refused operation refuses all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// All accepted, or none.
    #[default]
    Atomic,
    /// Service by service.
    Each,
}

/// One change of one part of one service. `expected` is compared with that part's revision; 0: must not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates a service or replaces its definition.
    UpsertService {
        /// Which.
        key: ServiceKey,
        /// What it is to be.
        definition: Arc<Definition>,
        /// Absent: unchanged, or the default for a new service.
        scheduler: Option<Scheduler>,
        /// Of the definition.
        expected: Option<Revision>,
    },
    /// Removes a service with its endpoints.
    DeleteService {
        /// Which.
        key: ServiceKey,
        /// The newest of its parts.
        expected: Option<Revision>,
    },
    /// Replaces the endpoint list.
    SetEndpoints {
        /// Which.
        key: ServiceKey,
        /// As sent: unsorted, perhaps with one key twice; `left_at` unset.
        endpoints: Vec<Endpoint>,
        /// Of the endpoints.
        expected: Option<Revision>,
    },
    /// Changes some endpoints.
    PatchEndpoints {
        /// Which.
        key: ServiceKey,
        /// Added, or replaced whole.
        upsert: Vec<Endpoint>,
        /// One that is not there is no error.
        remove: Vec<EndpointKey>,
        /// Of the endpoints.
        expected: Option<Revision>,
    },
    /// Changes the scheduler.
    SetScheduler {
        /// Which.
        key: ServiceKey,
        /// What it is to be.
        scheduler: Scheduler,
        /// Of the scheduler.
        expected: Option<Revision>,
    },
}

impl Operation {
    /// The service that it is about.
    #[must_use]
    pub fn key(&self) -> &ServiceKey {
        match self {
            Self::UpsertService { key, .. }
            | Self::DeleteService { key, .. }
            | Self::SetEndpoints { key, .. }
            | Self::PatchEndpoints { key, .. }
            | Self::SetScheduler { key, .. } => key,
        }
    }
}

/// One service of a Sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declare {
    /// Its place in the stream, from 0.
    pub index: u32,
    /// Which; the owner is the Sync's.
    pub key: ServiceKey,
    /// What it is to be.
    pub definition: Arc<Definition>,
    /// Absent: unchanged, or the default for a new service.
    pub scheduler: Option<Scheduler>,
    /// As sent.
    pub endpoints: Vec<Endpoint>,
}

/// One owner's whole state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Whose.
    pub owner: OwnerName,
    /// Opens a session with `ticket` as its number.
    pub take_over: bool,
    /// Who holds that session.
    pub holder: String,
    /// Counts the begins of all Syncs of this node; the later one wins. Never 0.
    pub ticket: u64,
    /// The owner's revision when the Sync began: another writer since then aborts it.
    pub begun: Revision,
    /// Absent: as they are.
    pub settings: Option<Owner>,
    /// Do not refuse a large removal.
    pub allow_large_removal: bool,
    /// Refuse everything if one service is refused.
    pub all_or_nothing: bool,
    /// What was sent and could be converted.
    pub declares: Vec<Declare>,
    /// What was sent and could not; such a service keeps its last good state.
    pub unconverted: Vec<Refused>,
    /// How many the client says it sent.
    pub declared: u64,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A single call: field paths are those of its own request.
    One(Operation),
    /// Several as one change: field paths begin with `operations[i]`.
    Apply {
        /// A set: checked against the state that they lead to together.
        operations: Vec<Operation>,
        /// All or each.
        mode: Mode,
    },
    /// One owner's whole state.
    Sync(Box<Sync>),
    /// Creates an owner or replaces its settings.
    SetOwner(Owner),
    /// Removes an owner and everything that it declared.
    DeleteOwner(OwnerName),
    /// "Still here."
    RenewLease(OwnerName),
    /// Moves the services that follow the default.
    SetDefaultEngine {
        /// Absent: back to the configuration.
        engine: Option<EngineKind>,
        /// Even if a service would lose something.
        allow_degraded: bool,
        /// For the flows of the old engine.
        drain: Drain,
    },
}

/// A call, with who makes it and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Who.
    pub actor: Actor,
    /// When.
    pub at: Millis,
    /// The session that the caller writes under; 0: none, not fenced.
    pub session: u64,
    /// Kept in the journal.
    pub note: String,
    /// What.
    pub request: Request,
}
