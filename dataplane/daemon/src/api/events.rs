//! Events: the journal, from where the caller stopped reading; followed if it asks.

use std::collections::VecDeque;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use vipd_model::{OwnerName, ServiceName};
use vipd_proto::v1;
use vipd_proto::v1::events_response::Kind;

use super::access::Caller;
use super::call::{Api, Call};
use super::convert::scalar;
use super::dataplane::Answers;
use crate::reconcile::Control;
use crate::reconcile::journal::{Event, EventKind};

/// Events read with the journal locked.
const CHUNK: usize = 256;

/// Opens the stream.
pub(super) fn events(
    api: &Api,
    call: &Call,
    message: v1::EventsRequest,
) -> Result<Answers<v1::EventsResponse>, Status> {
    let (owner, name) = call.read(|default, at, problems| {
        let owner = match message.owner.as_str() {
            "" => Some(None),
            name => scalar::owner(name, default, &at.field("owner"), problems).map(Some),
        };
        let name = match message.name.as_str() {
            "" => Some(None),
            name => match ServiceName::new(name) {
                Ok(name) => Some(Some(name)),
                Err(why) => problems.invalid(&at.field("name"), why.to_string()),
            },
        };
        Some((owner?, name?))
    })?;
    let reader = Reader {
        _place: api.stream_place()?,
        control: api.control.clone(),
        changed: api.control.changed(),
        stopping: api.stopping.clone(),
        caller: call.caller.clone(),
        owner,
        name,
        follow: message.follow,
        after: message.after,
        lost: 0,
        ready: VecDeque::new(),
    };
    let answers = futures::stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((Ok(event), reader))
    });
    Ok(Box::pin(answers))
}

struct Reader {
    control: Control,
    changed: watch::Receiver<u64>,
    stopping: CancellationToken,
    caller: Caller,
    owner: Option<OwnerName>,
    name: Option<ServiceName>,
    follow: bool,
    after: u64,
    /// Fell out of the ring since the last event that was sent.
    lost: u64,
    ready: VecDeque<Event>,
    _place: OwnedSemaphorePermit,
}

impl Reader {
    async fn next(&mut self) -> Option<v1::EventsResponse> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(message(event, std::mem::take(&mut self.lost)));
            }
            self.changed.borrow_and_update();
            let (lost, events) = self.control.read(|core| core.journal.after(self.after, CHUNK));
            self.lost += lost;
            match events.last() {
                Some(last) => {
                    self.after = last.sequence;
                    self.ready = events.into_iter().filter(|event| self.wants(event)).collect();
                }
                None if !self.follow => return None,
                None => tokio::select! {
                    () = self.stopping.cancelled() => return None,
                    changed = self.changed.changed() => changed.ok()?,
                },
            }
        }
    }

    fn wants(&self, event: &Event) -> bool {
        self.owner.as_ref().is_none_or(|owner| event.owner.as_ref() == Some(owner))
            && self.name.as_ref().is_none_or(|name| event.name.as_ref() == Some(name))
            && event.owner.as_ref().is_none_or(|owner| self.caller.reads(owner))
    }
}

fn message(event: Event, lost: u64) -> v1::EventsResponse {
    let kind = match event.kind {
        EventKind::Changed => Kind::Changed,
        EventKind::Programmed => Kind::Programmed,
        EventKind::NotProgrammed => Kind::NotProgrammed,
        EventKind::Drifted => Kind::Drifted,
        EventKind::Repaired => Kind::Repaired,
        EventKind::Health => Kind::Health,
        EventKind::Drained => Kind::Drained,
        EventKind::Engine => Kind::Engine,
        EventKind::Lease => Kind::Lease,
        EventKind::RefusedCall => Kind::RefusedCall,
    };
    v1::EventsResponse {
        sequence: event.sequence,
        at: Some(scalar::timestamp(event.at)),
        kind: kind.into(),
        actor: event.actor,
        owner: event.owner.map(|owner| owner.to_string()).unwrap_or_default(),
        name: event.name.map(|name| name.to_string()).unwrap_or_default(),
        revision: event.revision.0,
        text: event.text,
        lost,
    }
}
