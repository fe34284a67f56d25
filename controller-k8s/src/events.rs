//! Events on Services: what cannot be honoured, said once where its author looks.
//!
//! Bounded and never in the way: what the API server does not take is dropped, and counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

use crate::facts::{Key, Remark};
use crate::metrics::Metrics;
use crate::shared::Shared;

/// Events that wait to be written.
const WAITING: usize = 1_024;
/// From one event to the next: a cluster whose every Service has something to say must not be a burden to its server.
const GAP: Duration = Duration::from_millis(100);
/// For one event.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who says something of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The object itself has something that cannot be served as it stands.
    Translation,
    /// vipd refused it.
    Refusal,
    /// vipd says it of this service of its own.
    Status(Box<str>),
}

/// What each source last said of each Service.
type Said = BTreeMap<Key, BTreeMap<Source, Vec<Remark>>>;

/// Says things of Services. What each source last said of each is remembered, so that nothing is said twice.
#[derive(Clone, Debug)]
pub struct Voice {
    said: Arc<Mutex<Said>>,
    sender: mpsc::Sender<(Key, Remark)>,
    metrics: Arc<Metrics>,
}

impl Voice {
    /// A voice, and where it is to be heard: [`write`].
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> (Self, mpsc::Receiver<(Key, Remark)>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { said: Arc::default(), sender, metrics }, receiver)
    }

    /// Everything that a source has to say of a Service now; what it has said before is not repeated.
    pub fn say(&self, key: &Key, source: Source, remarks: Vec<Remark>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let before = said.get(key).and_then(|sources| sources.get(&source)).map(Vec::as_slice).unwrap_or_default();
        for remark in remarks.iter().filter(|remark| !before.contains(remark)) {
            tracing::info!(service = %key, reason = remark.reason, "{}", remark.text);
            if self.sender.try_send((key.clone(), remark.clone())).is_err() {
                self.metrics.events_dropped.inc();
            }
        }
        if !remarks.is_empty() {
            said.entry(key.clone()).or_default().insert(source, remarks);
        } else if let Some(sources) = said.get_mut(key) {
            sources.remove(&source);
            if sources.is_empty() {
                said.remove(key);
            }
        }
    }

    /// The Service is not served any more.
    pub fn forget(&self, key: &Key) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// Writes events to the API server until it is dropped.
pub async fn write(
    client: Client,
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    mut said: mpsc::Receiver<(Key, Remark)>,
) {
    let reporter = Reporter { controller: "vipd-k8s".to_owned(), instance: Some(shared.node_name.clone()) };
    let recorder = Recorder::new(client, reporter);
    while let Some((key, remark)) = said.recv().await {
        let Some(uid) = shared.with(|world| world.service_facts(&key).map(|facts| facts.uid.clone())) else { continue };
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(key.namespace.to_string()),
            name: Some(key.name.to_string()),
            uid: Some(uid.into()),
            ..Default::default()
        };
        let hint = remark.reason == "TopologyHintsIgnored";
        let event = Event {
            type_: if hint { EventType::Normal } else { EventType::Warning },
            reason: remark.reason.to_owned(),
            // An event holds 1,024 bytes.
            note: Some(remark.text.chars().take(1_000).collect()),
            action: "Serve".to_owned(),
            secondary: None,
        };
        match tokio::time::timeout(PATIENCE, recorder.publish(&event, &regarding)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                metrics.events_dropped.inc();
                tracing::warn!(service = %key, "cannot write an event: {error}");
            }
            Err(_) => drop(metrics.events_dropped.inc()),
        }
        tokio::time::sleep(GAP).await;
    }
}
