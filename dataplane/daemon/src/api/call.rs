//! What every call begins with: who asks, whether there is room, and how its request becomes a command.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};
use vipd_model::command::Request as Asked;
use vipd_model::problem::Rejection;
use vipd_model::{Actor, Command, OwnerName, ServiceKey, Wait};
use vipd_proto::v1;

use super::access::{Access, Caller};
use super::convert::operation::Options;
use super::convert::path::{Path, Problems, converted};
use super::identity::Peer;
use super::relay::Relay;
use super::status;
use crate::reconcile::run::Clock;
use crate::reconcile::{Accepted, CallError, Control};

/// What all calls share.
#[derive(Clone)]
pub struct Api {
    /// The reconciler.
    pub(super) control: Control,
    pub(super) clock: Clock,
    /// Identity of the store.
    pub(super) epoch: Arc<str>,
    /// The userspace engine's, where there is one.
    pub(super) relay: Option<Arc<dyn Relay>>,
    pub(super) access: Access,
    calls: Arc<Semaphore>,
    calls_most: usize,
    streams: Arc<Semaphore>,
    streams_most: usize,
    pub(super) syncs: Arc<super::sync::OpenSyncs>,
    /// The daemon is going down: streams end.
    pub(super) stopping: CancellationToken,
}

/// How many calls and streams there may be at once.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Calls at work.
    pub calls: usize,
    /// Watch and Events.
    pub streams: usize,
}

/// A call that was let in. It holds its place until it is dropped.
pub(super) struct Call {
    pub(super) caller: Caller,
    api: Api,
    _place: OwnedSemaphorePermit,
}

impl Api {
    /// Over a reconciler.
    #[must_use]
    pub fn new(control: Control, clock: Clock, access: Access, room: Room, stopping: CancellationToken) -> Self {
        let epoch = control.read(|core| core.epoch.as_str().into());
        Self {
            control,
            clock,
            epoch,
            relay: None,
            access,
            calls: Arc::new(Semaphore::new(room.calls)),
            calls_most: room.calls,
            streams: Arc::new(Semaphore::new(room.streams)),
            streams_most: room.streams,
            syncs: Arc::default(),
            stopping,
        }
    }

    /// The same, and what only a relay knows is asked of this one.
    #[must_use]
    pub fn with_relay(self, relay: Arc<dyn Relay>) -> Self {
        Self { relay: Some(relay), ..self }
    }

    /// Watch and Events streams that are open.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.streams_most - self.streams.available_permits()
    }

    /// Lets a call in.
    pub(super) fn enter<T>(&self, request: Request<T>) -> Result<(Call, T), Status> {
        let (_, extensions, message) = request.into_parts();
        let place = Arc::clone(&self.calls).try_acquire_owned().map_err(|_| {
            status::limit(format!("{} calls are at work, the most at once; try again", self.calls_most))
        })?;
        let peer = extensions.get::<Peer>().cloned().unwrap_or(Peer::InProcess);
        let caller = self.access.caller(peer).map_err(|rejection| status::rejected(&rejection))?;
        Ok((Call { caller, api: self.clone(), _place: place }, message))
    }

    /// A place for a stream that stays open.
    pub(super) fn stream_place(&self) -> Result<OwnedSemaphorePermit, Status> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            status::limit(format!(
                "{} Watch and Events streams are open, the most at once; close some",
                self.streams_most
            ))
        })
    }
}

impl Call {
    /// Reads a request; a refusal is noted in the journal.
    pub(super) fn read<T>(
        &self,
        convert: impl FnOnce(&OwnerName, &Path<'_>, &mut Problems) -> Option<T>,
    ) -> Result<T, Status> {
        let read = converted(|at, problems| convert(&self.caller.default_owner, at, problems));
        read.map_err(|rejection| self.refused(None, &rejection))
    }

    /// Notes a refusal, and makes the answer of it.
    pub(super) fn refused(&self, service: Option<ServiceKey>, rejection: &Rejection) -> Status {
        let status = status::rejected(rejection);
        self.api.control.note_refused(self.caller.peer.to_string(), service, status.message().to_owned());
        status
    }

    /// Asks for a change and waits as long as the caller wants to.
    pub(super) async fn write(&self, request: Asked, options: Options) -> Result<Accepted, Status> {
        let service = match &request {
            Asked::One(operation) => Some(operation.key().clone()),
            _ => None,
        };
        self.caller.may_ask(&request).map_err(|rejection| self.refused(service, &rejection))?;
        self.submit(request, options).await.map_err(|error| status::status(&error))
    }

    async fn submit(&self, request: Asked, options: Options) -> Result<Accepted, CallError> {
        let Options { wait, session, note } = options;
        let command = Command {
            actor: Actor { name: self.caller.peer.to_string() },
            at: (self.api.clock)(),
            session,
            note,
            request,
        };
        self.api.control.submit(command, wait).await
    }

    /// The change of a write, as its caller is told.
    pub(super) fn change(&self, accepted: &Accepted) -> Option<v1::Change> {
        Some(super::change::change(accepted, &self.api.epoch))
    }
}

/// The options of a call that has none but perhaps a note.
pub(super) fn only_note(note: String) -> Options {
    Options { wait: Wait::Programmed, session: 0, note }
}
