//! kube-proxy's pages, with their meanings: load balancers ask `/healthz`, the kubelet asks `/livez`, tests and dashboards
//! ask the metrics address.
//!
//! Healthy: no change has waited for longer than [`BEHIND`]. Who has nothing to do is healthy, vipd or API server away or
//! not. Eligible: the Node is there and is not about to go; only `/healthz` minds, so that a node being drained gets no
//! new traffic and is not restarted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use vipd_client::Client;
use vipd_proto::v1;

use crate::http::Page;
use crate::metrics::Metrics;
use crate::shared::Shared;

/// Twice kube-proxy's sync period.
const BEHIND: Duration = Duration::from_secs(60);
/// For what vipd is asked while a page is made.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the pages are made of.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    /// The world and how far vipd is behind.
    pub(crate) shared: Arc<Shared>,
    /// Figures.
    pub(crate) metrics: Arc<Metrics>,
    /// Asked for its engine.
    pub(crate) client: Client,
}

impl Pages {
    /// Of the health address.
    pub(crate) fn health(&self, path: &str) -> Page {
        let live = match path {
            "/healthz" => false,
            "/livez" => true,
            _ => return Page::text(404, "there are /healthz and /livez\n"),
        };
        let eligible = self.shared.with(|world| world.node_is_eligible());
        let healthy = is_healthy(self.shared.progress().behind_since(), Instant::now());
        let code = if healthy && (live || eligible) { 200 } else { 503 };
        self.metrics.answered(live, code);
        let now = Timestamp::now();
        // Who is healthy is up to date as of now: what kube-proxy says, and others have come to rely on.
        let last = self.shared.progress().last_success.and_then(|at| Timestamp::try_from(at).ok());
        let updated = if healthy { Some(now) } else { last };
        let mut body = json!({
            "lastUpdated": updated.map(|at| at.to_string()),
            "currentTime": now.to_string(),
            "healthy": healthy,
        });
        if !live {
            body["nodeEligible"] = eligible.into();
        }
        Page { code, kind: "application/json", body: body.to_string() }
    }

    /// Of the metrics address.
    pub(crate) async fn metrics(&self, path: &str) -> Page {
        match path {
            "/metrics" => match self.metrics.text(&self.shared) {
                Ok(body) => Page { code: 200, kind: "text/plain; version=0.0.4; charset=utf-8", body },
                Err(error) => Page::text(500, error.to_string()),
            },
            "/healthz" => Page::text(200, "ok"),
            "/proxyMode" => Page::text(200, self.engine().await),
            _ => Page::text(404, "there are /metrics, /healthz and /proxyMode\n"),
        }
    }

    /// What vipd calls the engine that it uses; "vipd" while it cannot be asked.
    async fn engine(&self) -> String {
        let mut node = self.client.node();
        let asked = tokio::time::timeout(PATIENCE, node.get_info(v1::GetInfoRequest {})).await;
        let engine = asked.ok().and_then(Result::ok).map(|answer| answer.into_inner().default_engine());
        let named = engine.filter(|&engine| engine != v1::Engine::Unspecified);
        named.map_or_else(|| "vipd".to_owned(), |engine| engine.as_str_name().to_lowercase())
    }
}

fn is_healthy(behind_since: Option<Instant>, now: Instant) -> bool {
    behind_since.is_none_or(|since| now.saturating_duration_since(since) <= BEHIND)
}
