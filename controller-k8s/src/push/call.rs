//! The calls of vipd that the adapter makes. Each waits until it is in force; where the kernel refuses a service, what was
//! accepted is asked for in a second call, which changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use vipd_client::{CallError, Client};
use vipd_proto::v1;
use vipd_proto::v1::sync_request::Step;
use vipd_proto::v1::write_options::Wait;

use super::Session;
use super::books::{self, Told};
use crate::facts::{Key, Remark};
use crate::shared::Shared;
use crate::translate::{Declared, OWNER};

/// A change is in force within milliseconds, 100,000 services within a minute; who needs longer is asked again.
const PATIENCE: Duration = Duration::from_secs(120);
/// Messages of a Sync on their way: each waits until vipd has read the one so many before it.
const AHEAD: usize = 64;

/// What a Sync told, with what vipd answered.
pub(super) struct Synced {
    pub(super) response: v1::SyncResponse,
    pub(super) told: Vec<(Key, Told, Vec<Remark>)>,
}

/// Sends differences.
pub(super) async fn apply(
    client: &Client,
    session: &Session,
    operations: Vec<v1::Operation>,
) -> Result<v1::ApplyResponse, CallError> {
    let request = |wait| v1::ApplyRequest {
        operations: operations.clone(),
        mode: v1::apply_request::Mode::Each.into(),
        options: Some(options(session.number, wait)),
    };
    match patient(request(Wait::Programmed), |request| async { client.dataplane().apply(request).await }).await {
        Err(error) if error.is_accepted() => {
            tracing::warn!("accepted, and not in force: {error}");
            patient(request(Wait::Accepted), |request| async { client.dataplane().apply(request).await }).await
        }
        answer => answer,
    }
}

/// Sends the owner's settings.
pub(super) async fn set_owner(client: &Client, session: &Session, owner: v1::Owner) -> Result<(), CallError> {
    let request = v1::SetOwnerRequest { owner: Some(owner), options: Some(options(session.number, Wait::Programmed)) };
    match patient(request, |request| async { client.dataplane().set_owner(request).await }).await {
        Err(error) if error.is_accepted() => {
            tracing::warn!("accepted, and not in force: {error}");
            Ok(())
        }
        answer => answer.map(drop),
    }
}

/// Sends everything, and takes over from whoever wrote for this owner before.
pub(super) async fn sync(
    client: &Client,
    shared: &Shared,
    owner: v1::Owner,
    keys: &[Key],
    allow_large_removal: bool,
) -> Result<Synced, CallError> {
    let begin = |wait| v1::SyncBegin {
        owner: OWNER.to_owned(),
        take_over: true,
        settings: Some(owner.clone()),
        allow_large_removal,
        options: Some(options(0, wait)),
        ..Default::default()
    };
    match send(client, shared, begin(Wait::Programmed), keys).await {
        Err(error) if error.is_accepted() => {
            tracing::warn!("accepted, and not in force: {error}");
            send(client, shared, begin(Wait::Accepted), keys).await
        }
        answer => answer,
    }
}

/// One Sync. Services are translated as vipd takes them, so that they are never all in memory.
async fn send(client: &Client, shared: &Shared, begin: v1::SyncBegin, keys: &[Key]) -> Result<Synced, CallError> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let translate = async {
        let mut told = Vec::with_capacity(keys.len());
        let mut declared = 0;
        // A send fails when vipd has ended the stream; its answer says why.
        let _ = sender.send(step(Step::Begin(begin))).await;
        let node = shared.with(|world| world.node_facts().cloned()).unwrap_or_default();
        for key in keys {
            let translation = shared.with(|world| world.translate(key, shared.context(&node))).unwrap_or_default();
            told.push((key.clone(), books::prints(&translation.services), translation.remarks));
            for Declared { definition, endpoints } in translation.services {
                declared += 1;
                let declare = v1::Declare { service: Some(definition), endpoints };
                let _ = sender.send(step(Step::Declare(declare))).await;
            }
        }
        let _ = sender.send(step(Step::Commit(v1::SyncCommit { declared }))).await;
        drop(sender);
        told
    };
    let mut dataplane = client.dataplane();
    let answer = dataplane.sync(ReceiverStream::new(receiver));
    let (answer, told) = tokio::join!(tokio::time::timeout(PATIENCE, answer), translate);
    let answer = answer.unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded("no answer to Sync")));
    Ok(Synced { response: answer.map_err(CallError::from)?.into_inner(), told })
}

/// Which services were refused, by their names, and why.
pub(super) fn refused_names(refused: Vec<v1::Refused>) -> BTreeMap<String, Vec<Remark>> {
    let mut found: BTreeMap<String, Vec<Remark>> = BTreeMap::new();
    for v1::Refused { name, problems, .. } in refused {
        let remarks = found.entry(name.clone()).or_default();
        let told = problems.into_iter().map(|problem| Remark::new("Refused", format!("{name}: {}", problem.message)));
        remarks.extend(told);
        if remarks.is_empty() {
            remarks.push(Remark::new("Refused", format!("{name}: vipd does not say why")));
        }
    }
    found
}

async fn patient<Q, R, F>(request: Q, make: impl FnOnce(Q) -> F) -> Result<R, CallError>
where
    F: Future<Output = Result<tonic::Response<R>, tonic::Status>>,
{
    let late = |_| Err(tonic::Status::deadline_exceeded("no answer from vipd"));
    let answer = tokio::time::timeout(PATIENCE, make(request)).await.unwrap_or_else(late);
    Ok(answer.map_err(CallError::from)?.into_inner())
}

fn options(session: u64, wait: Wait) -> v1::WriteOptions {
    v1::WriteOptions { wait: wait.into(), session, note: String::new() }
}

fn step(step: Step) -> v1::SyncRequest {
    v1::SyncRequest { step: Some(step) }
}
