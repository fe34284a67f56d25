//! The handle to the reconciler: what the API does.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::{mpsc, oneshot, watch};
use vipd_engine::runner::{Drift, Seen};
use vipd_engine::{Hashed, ServiceCounters, Sysctl};
use vipd_model::problem::{Refused, Rejection};
use vipd_model::{
    Command, Delta, EngineKind, Operation, OwnerName, Place, Problem, Revision, Selected, ServiceKey, Wait,
};

use super::core::Core;
use super::lanes::{KernelChange, Pins};
use super::persist::PersistError;
use super::waiters::Target;

/// Why a call did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// Checked and refused; nothing was changed.
    #[error("{0}")]
    Rejected(#[from] Rejection),
    /// Checked, and could not be stored; nothing was changed.
    #[error("not stored: {0}")]
    NotStored(PersistError),
    /// Accepted and stored, and not in force; it is retried.
    #[error("accepted at revision {}, not in force", .delta.revision.0)]
    NotProgrammed {
        /// What was accepted.
        delta: Arc<Delta>,
        /// Of each service that failed, or of the node.
        problems: Vec<(Target, Problem)>,
    },
    /// Too many calls wait; try again.
    #[error("too many calls wait to be taken in")]
    Overloaded,
    /// The daemon is stopping. Whether the call was accepted is not known.
    #[error("the daemon is stopping")]
    Stopping,
    /// The kernel could not be read.
    #[error("{0}")]
    Engine(String),
}

/// What a write did.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The change.
    pub delta: Arc<Delta>,
    /// Whether all of it is in force; always with [`Wait::Programmed`].
    pub in_force: bool,
}

/// What a plan says.
#[derive(Clone, Debug, Default)]
pub struct Planned {
    /// In the order they would be applied.
    pub changes: Vec<KernelChange>,
    /// Services that no engine would take.
    pub refused: Vec<Refused>,
}

/// What a look at the kernel found.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// Empty: the kernel is as programmed.
    pub drift: Vec<Drift>,
    /// How many objects were compared.
    pub objects: u64,
    /// Of the programmed state.
    pub revision: Revision,
}

/// What engines and guard say of themselves.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// What an operator should know.
    pub problems: Vec<Problem>,
    /// Kernel settings that they have changed.
    pub sysctls: Vec<Sysctl>,
}

type Reply<T> = oneshot::Sender<Result<T, CallError>>;

/// What the reconciler is asked.
pub(super) enum Ask {
    Submit {
        command: Box<Command>,
        wait: Wait,
        reply: Reply<Accepted>,
    },
    Plan {
        operations: Vec<Operation>,
        engine: Option<EngineKind>,
        reply: Reply<Planned>,
    },
    Verify {
        service: Option<ServiceKey>,
        reply: Reply<Verified>,
    },
    Counters {
        services: Vec<ServiceKey>,
        reply: Reply<Vec<ServiceCounters>>,
    },
    Findings {
        reply: Reply<Findings>,
    },
    Pins {
        engine: EngineKind,
        service: Arc<Selected>,
        client: Option<IpAddr>,
        flow: Option<Hashed>,
        reply: Reply<Pins>,
    },
    FlowsLeft {
        reply: Reply<u64>,
    },
    View {
        service: ServiceKey,
        at: Option<(Place, u16)>,
        reply: Reply<Vec<(String, Vec<Seen>)>>,
    },
    ReleaseHold {
        actor: String,
        note: String,
        reply: Reply<u64>,
    },
    Addresses(Vec<std::net::IpAddr>),
    Refused {
        actor: String,
        service: Option<ServiceKey>,
        text: String,
    },
    Stop {
        reply: oneshot::Sender<()>,
    },
}

/// Asks the reconciler. Clones ask the same one.
#[derive(Clone)]
pub struct Control {
    pub(super) asks: mpsc::Sender<Ask>,
    pub(super) core: Arc<RwLock<Core>>,
    pub(super) changed: watch::Receiver<u64>,
    pub(super) tickets: Arc<AtomicU64>,
}

impl Control {
    /// Reads the state. Short: copy and let go.
    pub fn read<T>(&self, look: impl FnOnce(&Core) -> T) -> T {
        look(&self.core.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes whenever a service, a status or the journal changed.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    /// A write.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn submit(&self, command: Command, wait: Wait) -> Result<Accepted, CallError> {
        self.ask(|reply| Ask::Submit { command: Box::new(command), wait, reply }).await
    }

    /// A Sync begins: its ticket, and the owner's revision that must not have changed at its commit.
    #[must_use]
    pub fn sync_begin(&self, owner: &OwnerName) -> (u64, Revision) {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed) + 1;
        (ticket, self.read(|core| core.desired.owner(owner).map_or(Revision(0), |record| record.revision)))
    }

    /// What these operations, or this engine as the default, would change in the kernel.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn plan(&self, operations: Vec<Operation>, engine: Option<EngineKind>) -> Result<Planned, CallError> {
        self.ask(|reply| Ask::Plan { operations, engine, reply }).await
    }

    /// Compares the kernel with the programmed state, now.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn verify(&self, service: Option<ServiceKey>) -> Result<Verified, CallError> {
        self.ask(|reply| Ask::Verify { service, reply }).await
    }

    /// Counters of these services; of all, if none is named.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn counters(&self, services: Vec<ServiceKey>) -> Result<Vec<ServiceCounters>, CallError> {
        self.ask(|reply| Ask::Counters { services, reply }).await
    }

    /// What the engines know that an operator should: shedding, a limit reached. An engine that does not say at once is
    /// itself a finding.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn findings(&self) -> Result<Findings, CallError> {
        self.ask(|reply| Ask::Findings { reply }).await
    }

    /// How many flows engines still carry of services that others have taken over, counted now.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn flows_left(&self) -> Result<u64, CallError> {
        self.ask(|reply| Ask::FlowsLeft { reply }).await
    }

    /// One service's objects as the kernel has them now, by lane (`nftables`, `guard`, …); with a port of a place, those
    /// that concern packets to it.
    ///
    /// # Errors
    /// See [`CallError`]: the kernel cannot be read, or not soon.
    pub async fn view(
        &self,
        service: ServiceKey,
        at: Option<(Place, u16)>,
    ) -> Result<Vec<(String, Vec<Seen>)>, CallError> {
        self.ask(|reply| Ask::View { service, at, reply }).await
    }

    /// What an engine binds a flow to: by affinity of a client, by its hash.
    ///
    /// # Errors
    /// See [`CallError`]: the engine does not answer soon.
    pub async fn pins(
        &self,
        engine: EngineKind,
        service: Arc<Selected>,
        client: Option<IpAddr>,
        flow: Option<Hashed>,
    ) -> Result<Pins, CallError> {
        self.ask(|reply| Ask::Pins { engine, service, client, flow, reply }).await
    }

    /// What is declared now is complete. Returns how many objects of ours were removed from the kernel.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn release_hold(&self, actor: String, note: String) -> Result<u64, CallError> {
        self.ask(|reply| Ask::ReleaseHold { actor, note, reply }).await
    }

    /// The node's addresses are these now.
    pub async fn set_addresses(&self, addresses: Vec<std::net::IpAddr>) {
        let _ = self.asks.send(Ask::Addresses(addresses)).await;
    }

    /// The same from a thread that may block.
    pub fn set_addresses_blocking(&self, addresses: Vec<std::net::IpAddr>) {
        let _ = self.asks.blocking_send(Ask::Addresses(addresses));
    }

    /// Whether the reconciler has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.asks.is_closed()
    }

    /// A call was refused before it became a command (authorisation, conversion): for the journal.
    pub fn note_refused(&self, actor: String, service: Option<ServiceKey>, text: String) {
        // Losing such a line under overload is better than letting a client that floods slow the others.
        let _ = self.asks.try_send(Ask::Refused { actor, service, text });
    }

    /// Takes no more commands, and returns when what was taken in has been stored.
    pub async fn stop(&self) {
        let (reply, stopped) = oneshot::channel();
        if self.asks.send(Ask::Stop { reply }).await.is_ok() {
            let _ = stopped.await;
        }
    }

    async fn ask<T>(&self, ask: impl FnOnce(Reply<T>) -> Ask) -> Result<T, CallError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(ask(reply)).await.map_err(|_| CallError::Stopping)?;
        answer.await.map_err(|_| CallError::Stopping)?
    }
}
