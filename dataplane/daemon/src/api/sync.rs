//! Sync: one owner's whole state as a stream of begin, declares, commit.
//!
//! What is sent is kept until the commit, within the bytes that `intake` allows. Of two Syncs of one owner the later
//! begin wins: the older stream is ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tonic::{Status, Streaming};
use vipd_model::command::{Declare, Request as Asked, Sync};
use vipd_model::problem::Refused;
use vipd_model::{OwnerName, Problem, ProblemCode};
use vipd_proto::v1;
use vipd_proto::v1::sync_request::Step;

use super::call::{Api, Call};
use super::convert::sync::{Begin, parse_begin, parse_declare};
use super::convert::{Path, problem};
use super::status;

/// A Sync that says nothing for so long is over.
const SILENCE: Duration = Duration::from_secs(30);

/// Which Syncs are open.
#[derive(Default)]
pub(super) struct OpenSyncs(Mutex<HashMap<OwnerName, (u64, Arc<Notify>)>>);

/// One of them; no longer when dropped.
struct OpenSync<'a> {
    all: &'a OpenSyncs,
    owner: OwnerName,
    ticket: u64,
    /// A later one has begun.
    superseded: Arc<Notify>,
}

impl OpenSyncs {
    /// The owner's Sync is this one now; another that is open ends.
    fn open(&self, owner: &OwnerName, ticket: u64) -> OpenSync<'_> {
        let superseded = Arc::new(Notify::new());
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, older)) = open.insert(owner.clone(), (ticket, Arc::clone(&superseded))) {
            older.notify_one();
        }
        OpenSync { all: self, owner: owner.clone(), ticket, superseded }
    }
}

impl Drop for OpenSync<'_> {
    fn drop(&mut self) {
        let mut open = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.get(&self.owner).is_some_and(|(ticket, _)| *ticket == self.ticket) {
            open.remove(&self.owner);
        }
    }
}

/// Serves one Sync.
pub(super) async fn sync(
    api: &Api,
    call: &Call,
    mut messages: Streaming<v1::SyncRequest>,
) -> Result<v1::SyncResponse, Status> {
    let begin = match next(&mut messages).await? {
        Step::Begin(begin) => begin,
        Step::Declare(_) | Step::Commit(_) => {
            return Err(misplaced(call, "begin", "must be the first message of a Sync"));
        }
    };
    let begin = call.read(|default, _, problems| parse_begin(begin, default, problems))?;
    call.caller.may_write(&begin.owner, "begin.owner").map_err(|rejection| call.refused(None, &rejection))?;
    let (ticket, begun) = api.control.sync_begin(&begin.owner);
    let open = api.syncs.open(&begin.owner, ticket);
    let collected = tokio::select! {
        collected = collect(call, &begin.owner, &mut messages) => collected?,
        () = open.superseded.notified() => {
            let why = format!("another Sync of owner {} has begun since; nothing of this one was changed", begin.owner);
            return Err(status::rejected(&Problem::new(ProblemCode::Superseded, "begin", why).into()));
        }
    };
    let Begin { owner, take_over, settings, allow_large_removal, all_or_nothing, options } = begin;
    let asked = Asked::Sync(Box::new(Sync {
        owner,
        take_over,
        holder: call.caller.peer.to_string(),
        ticket,
        begun,
        settings,
        allow_large_removal,
        all_or_nothing,
        declares: collected.declares,
        unconverted: collected.unconverted,
        declared: collected.declared,
    }));
    let accepted = call.write(asked, options).await?;
    let delta = &accepted.delta;
    Ok(v1::SyncResponse {
        change: call.change(&accepted),
        created: delta.counts.created,
        updated: delta.counts.updated,
        unchanged: delta.counts.unchanged,
        removed: delta.counts.removed,
        refused: delta.refused.iter().map(problem::refused).collect(),
        refused_total: delta.refused_total,
        session: if take_over { ticket } else { 0 },
    })
}

/// What a Sync sent.
#[derive(Default)]
struct Collected {
    declares: Vec<Declare>,
    unconverted: Vec<Refused>,
    declared: u64,
}

/// Reads declares until the commit.
async fn collect(
    call: &Call,
    owner: &OwnerName,
    messages: &mut Streaming<v1::SyncRequest>,
) -> Result<Collected, Status> {
    let mut collected = Collected::default();
    let mut index = 0;
    loop {
        match next(messages).await? {
            Step::Declare(declare) => {
                match parse_declare(declare, index, owner) {
                    Ok(declare) => collected.declares.push(declare),
                    Err(refused) => collected.unconverted.push(refused),
                }
                index += 1;
            }
            Step::Commit(commit) => {
                collected.declared = commit.declared;
                return Ok(collected);
            }
            Step::Begin(_) => return Err(misplaced(call, "begin", "was sent twice; a Sync has one")),
        }
    }
}

async fn next(messages: &mut Streaming<v1::SyncRequest>) -> Result<Step, Status> {
    let silent =
        || format!("nothing has been sent for {} s; this Sync is over, nothing was changed", SILENCE.as_secs());
    let message = tokio::time::timeout(SILENCE, messages.message()).await;
    let message = message.map_err(|_| Status::deadline_exceeded(silent()))??;
    let refuse = |why: &str| Err(status::rejected(&Problem::invalid("commit", why).into()));
    match message {
        Some(v1::SyncRequest { step: Some(step) }) => Ok(step),
        Some(_) => refuse("a message has no step that this vipd knows; send begin, declares, commit"),
        None => refuse("the stream ended before it; nothing was changed"),
    }
}

fn misplaced(call: &Call, field: &'static str, why: &str) -> Status {
    let rejection = Problem::invalid(Path::Root.field(field).to_string(), why).into();
    call.refused(None, &rejection)
}
