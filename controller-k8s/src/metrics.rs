//! Figures: those of kube-proxy that dashboards and objectives use, under their names, beside our own.

use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::shared::Shared;
use crate::world::Changed;

/// The answer of a health page.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Answer {
    code: String,
}

/// All of them, and where they are written out.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Calls of vipd that failed.
    pub failures: Counter,
    /// Events that the API server did not take.
    pub events_dropped: Counter,
    syncs: Histogram,
    programming: Histogram,
    service_changes: Counter,
    endpoint_changes: Counter,
    healthz: Family<Answer, Counter>,
    livez: Family<Answer, Counter>,
    last_success: Gauge<f64, std::sync::atomic::AtomicU64>,
    last_queued: Gauge<f64, std::sync::atomic::AtomicU64>,
    services_pending: Gauge,
    endpoints_pending: Gauge,
}

impl Metrics {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        // kube-proxy's buckets.
        let programming =
            [0.25, 0.5].into_iter().chain((1..60).map(f64::from)).chain((60..120).step_by(5).map(f64::from));
        let programming = programming.chain((120..=300).step_by(30).map(f64::from));
        let mut metrics = Self {
            registry: Registry::default(),
            failures: Counter::default(),
            events_dropped: Counter::default(),
            syncs: Histogram::new((0..15).map(|power| 0.001 * f64::from(1 << power))),
            programming: Histogram::new(programming),
            service_changes: Counter::default(),
            endpoint_changes: Counter::default(),
            healthz: Family::default(),
            livez: Family::default(),
            last_success: Gauge::default(),
            last_queued: Gauge::default(),
            services_pending: Gauge::default(),
            endpoints_pending: Gauge::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let mut registry = Registry::default();
        let proxy = registry.sub_registry_with_prefix("kubeproxy");
        proxy.register(
            "network_programming_duration_seconds",
            "From the change of an endpoint to vipd's answer that it is in force",
            self.programming.clone(),
        );
        proxy.register(
            "sync_proxy_rules_duration_seconds",
            "Duration of one round of telling vipd",
            self.syncs.clone(),
        );
        let (last, queued) = (self.last_success.clone(), self.last_queued.clone());
        proxy.register("sync_proxy_rules_last_timestamp_seconds", "When vipd last had everything in force", last);
        proxy.register(
            "sync_proxy_rules_last_queued_timestamp_seconds",
            "When a change last asked for a round",
            queued,
        );
        let (services, endpoints) = (self.service_changes.clone(), self.endpoint_changes.clone());
        proxy.register("sync_proxy_rules_service_changes", "Changes of Services that were told", services);
        proxy.register("sync_proxy_rules_endpoint_changes", "Changes of EndpointSlices that were told", endpoints);
        let (services, endpoints) = (self.services_pending.clone(), self.endpoints_pending.clone());
        proxy.register("sync_proxy_rules_service_changes_pending", "Changes of Services that wait", services);
        proxy.register("sync_proxy_rules_endpoint_changes_pending", "Changes of EndpointSlices that wait", endpoints);
        proxy.register("proxy_healthz", "Answers of /healthz", self.healthz.clone());
        proxy.register("proxy_livez", "Answers of /livez", self.livez.clone());
        let own = registry.sub_registry_with_prefix("vipd_k8s");
        own.register("call_failures", "Calls of vipd that failed and are tried again", self.failures.clone());
        own.register("events_dropped", "Events that the API server did not take", self.events_dropped.clone());
        self.registry = registry;
    }

    /// A round of telling vipd is in force.
    pub fn told(&self, changed: &Changed, took: Duration, started: SystemTime) {
        self.syncs.observe(took.as_secs_f64());
        self.service_changes.inc_by(changed.counts.0);
        self.endpoint_changes.inc_by(changed.counts.1);
        let started = Timestamp::try_from(started).unwrap_or(Timestamp::MIN);
        let now = Timestamp::now();
        // What came to pass before we began says how long we were away, not how long telling takes.
        for &triggered in changed.triggers.values().flatten().filter(|&&at| at >= started) {
            self.programming.observe(now.duration_since(triggered).as_secs_f64().max(0.0));
        }
    }

    /// A health page was answered.
    pub fn answered(&self, live: bool, code: u16) {
        let family = if live { &self.livez } else { &self.healthz };
        family.get_or_create(&Answer { code: code.to_string() }).inc();
    }

    /// Everything, as Prometheus reads it.
    ///
    /// # Errors
    /// Never in practice: writing into a string does not fail.
    pub fn text(&self, shared: &Shared) -> Result<String, std::fmt::Error> {
        let seconds = |at: Option<SystemTime>| {
            at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()).map_or(0.0, |since| since.as_secs_f64())
        };
        {
            let progress = shared.progress();
            self.last_success.set(seconds(progress.last_success));
            self.last_queued.set(seconds(progress.last_queued));
        }
        let (services, endpoints) = shared.with(|world| world.pending());
        self.services_pending.set(i64::try_from(services).unwrap_or(i64::MAX));
        self.endpoints_pending.set(i64::try_from(endpoints).unwrap_or(i64::MAX));
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
