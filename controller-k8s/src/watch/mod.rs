//! The watches of the API server: each fills the world, for ever.
//!
//! Streaming lists where the server has them (1.32 and later), else list and watch: kube does not fall back by itself.
//! What the server forgot (410 Gone) is listed again; what breaks is tried again with back-off, and until then what is
//! known stays in force. Everything of the crate `kube` that concerns watching is in this module.

mod object;

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, Event, InitialListStrategy};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::facts::{self, Key, LABEL_SELECTOR, NodeFacts, ServiceFacts, SliceFacts};
use crate::shared::Shared;
use crate::world::{Kind, Now, Told};
use object::Read;

/// A watch is ended by the server after so long and goes on by a new request; a connection that died without a word is
/// noticed five seconds later. Seconds.
const WATCH: u32 = 60;
/// Errors of one kind are logged this often at most.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// Fills the world until it is dropped.
pub async fn run(client: Client, shared: Arc<Shared>) {
    let node = Config::default().fields(&format!("metadata.name={}", shared.node_name));
    let labels = Config::default().labels(LABEL_SELECTOR);
    tokio::join!(
        watch::<Service>(&client, labels.clone(), &shared),
        watch::<EndpointSlice>(&client, labels.clone(), &shared),
        watch::<ServiceCIDR>(&client, labels, &shared),
        watch::<Node>(&client, node, &shared),
    );
}

/// A kind of object that is watched.
trait Watched: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static {
    const KIND: Kind;
    /// Whether a server may lack the kind altogether.
    const OPTIONAL: bool = false;
    /// What of it counts, on the node of that name.
    fn read(&self, node: &str) -> Now;
}

impl Watched for Service {
    const KIND: Kind = Kind::Service;
    fn read(&self, _node: &str) -> Now {
        Now::Service(ServiceFacts::read(self))
    }
}

impl Watched for EndpointSlice {
    const KIND: Kind = Kind::Slice;
    fn read(&self, node: &str) -> Now {
        Now::Slice(SliceFacts::read(self, node))
    }
}

impl Watched for ServiceCIDR {
    const KIND: Kind = Kind::ServiceRange;
    // Stable since 1.33. Without it nothing is known of the ranges, and unknown addresses in them are left alone.
    const OPTIONAL: bool = true;
    fn read(&self, _node: &str) -> Now {
        Now::ServiceRange(Some(facts::service_ranges(self)))
    }
}

impl Watched for Node {
    const KIND: Kind = Kind::Node;
    fn read(&self, _node: &str) -> Now {
        Now::Node(Some(NodeFacts::read(self)))
    }
}

async fn watch<K: Watched>(client: &Client, config: Config, shared: &Shared) {
    let mut streaming = true;
    loop {
        let config = config.clone().timeout(WATCH);
        let config = if streaming { config.streaming_lists() } else { config };
        if !follow::<K>(client, config, shared).await {
            streaming = false;
        }
    }
}

/// Follows one watch; `false` if the server has no streaming lists.
async fn follow<K: Watched>(client: &Client, config: Config, shared: &Shared) -> bool {
    let streaming = config.initial_list_strategy == InitialListStrategy::StreamingList;
    let mut logged = None;
    let events = watcher::watcher(Api::<Read<K>>::all(client.clone()), config).default_backoff();
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => take(event, shared),
            Err(watcher::Error::WatchStartFailed(error)) if streaming && refuses_streaming(&error) => return false,
            Err(error) if K::OPTIONAL && is_missing(&error) => {
                // As if there were none; should the server be upgraded, the next try finds them.
                shared.update(|world| {
                    world.list_begins(K::KIND);
                    world.list_ends(K::KIND);
                });
            }
            Err(error) => {
                if logged.is_none_or(|at: std::time::Instant| at.elapsed() > LOG_AGAIN) {
                    logged = Some(std::time::Instant::now());
                    tracing::warn!(kind = ?K::KIND, "watching: {error}; what is known stays in force");
                }
            }
        }
    }
    true
}

fn take<K: Watched>(event: Event<Read<K>>, shared: &Shared) {
    match event {
        Event::Init => shared.update(|world| world.list_begins(K::KIND)),
        Event::InitApply(read) | Event::Apply(read) => {
            let (key, version) = (Key::of(read.meta()), version(&read));
            match &read.object {
                Ok(object) => {
                    let now = object.read(&shared.node_name);
                    shared.update(|world| world.told(Told { key, version, now }));
                }
                Err(why) => {
                    tracing::warn!(kind = ?K::KIND, %key, "cannot be read and stays as it was: {why}");
                    shared.update(|world| world.seen(K::KIND, key));
                }
            }
        }
        Event::Delete(read) => {
            let (key, version) = (Key::of(read.meta()), version(&read));
            shared.update(|world| world.deleted(K::KIND, &key, version));
        }
        Event::InitDone => {
            shared.update(|world| world.list_ends(K::KIND));
            tracing::info!(kind = ?K::KIND, "listed");
        }
    }
}

fn version(object: &impl Resource) -> u64 {
    object.meta().resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// `sendInitialEvents` is invalid to servers that do not have it, or not for this resource.
fn refuses_streaming(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 405 | 422))
}

fn is_missing(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    let (InitialListFailed(error) | WatchStartFailed(error)) = error else { return false };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
