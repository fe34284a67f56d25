//! Follows what vipd says of our services by itself: that one is not in force, waits for an address, cannot bind its
//! health port; and whether vipd still is the one that we told everything.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use vipd_client::{CallError, Client};
use vipd_proto::v1;
use vipd_proto::v1::problem::Code;
use vipd_proto::v1::watch_response::Event;

use super::{OWNER, Session, service_key};
use crate::events::{Source, Voice};
use crate::facts::Remark;
use crate::shared::Shared;

/// Between two tries to watch.
const PAUSE: Duration = Duration::from_secs(1);

/// Which vipd it was that last spoke: the identity of its store; empty before it has spoken.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen(String);

impl Seen {
    /// Why everything is to be told again, if it is.
    pub(super) fn lost(&self, session: &Session) -> Option<String> {
        let same = self.0.is_empty() || self.0 == session.epoch;
        (!same).then(|| "it began a new store".to_owned())
    }
}

/// Follows for ever. Services of which vipd says something are marked by an event on their Service.
pub(super) async fn follow(client: Client, voice: Voice, shared: Arc<Shared>, seen: watch::Sender<Seen>) {
    let (mut epoch, mut revision) = (String::new(), 0);
    loop {
        let request = v1::WatchRequest {
            owner: OWNER.to_owned(),
            epoch: epoch.clone(),
            from_revision: revision,
            omit_endpoints: true,
        };
        let watched = client.dataplane().watch(request).await.map(tonic::Response::into_inner);
        let ended = match watched {
            Err(status) => status,
            Ok(mut events) => loop {
                match events.message().await {
                    Ok(Some(response)) => match response.event {
                        Some(Event::Service(state)) => speak(&voice, &shared, &state),
                        Some(Event::Synced(synced)) => {
                            (epoch, revision) = (synced.epoch.clone(), synced.revision);
                            let _ = seen.send_replace(Seen(synced.epoch));
                        }
                        Some(Event::Deleted(gone)) => {
                            let key = service_key(&gone.name);
                            key.iter()
                                .for_each(|key| voice.say(key, Source::Status(gone.name.as_str().into()), vec![]));
                        }
                        Some(Event::Reset(_)) | None => {}
                    },
                    Ok(None) => break tonic::Status::unavailable("the stream has ended"),
                    Err(status) => break status,
                }
            },
        };
        tracing::info!("watching vipd: {}; trying again", CallError::from(ended));
        tokio::time::sleep(PAUSE).await;
    }
}

fn speak(voice: &Voice, shared: &Shared, state: &v1::ServiceState) {
    let Some(name) = state.service.as_ref().map(|service| service.name.as_str()) else { return };
    let Some(key) = service_key(name) else { return };
    let known = shared.with(|world| world.service_facts(&key).is_some());
    let problems = state.status.as_ref().map(|status| status.problems.as_slice()).unwrap_or_default();
    let remarks = problems.iter().filter_map(|problem| remark(name, problem)).collect();
    if known {
        voice.say(&key, Source::Status(name.into()), remarks);
    }
}

/// What the author of a Service should know of what stands in its status; the rest is for operators of the node.
fn remark(name: &str, problem: &v1::Problem) -> Option<Remark> {
    let reason = match problem.code() {
        Code::AddressInUse if problem.field.contains("health_port") => "FailedToStartServiceHealthcheck",
        Code::AddressInUse => "AddressInUse",
        Code::FrontendTaken => "AddressTaken",
        Code::NotProgrammed => "NotProgrammed",
        Code::EngineLacks | Code::EngineUnusable => "NotSupported",
        Code::SchedulerReplaced => "SchedulerReplaced",
        _ => return None,
    };
    Some(Remark::new(reason, format!("{name}: {}", problem.message)))
}
