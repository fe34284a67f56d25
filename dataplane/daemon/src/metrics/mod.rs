//! What an operator watches: `/metrics` for Prometheus, `/healthz`, `/livez`, `/readyz`.
//!
//! Nothing is kept here: each scrape reads the reconciler, the proxy and `/proc` ([`snapshot`]) and writes what it found
//! ([`figures`]), so series of services that are gone are gone too.

mod figures;
mod http;
mod snapshot;

pub use http::{HealthServer, serve};
pub use snapshot::Sources;

/// The text that Prometheus reads.
///
/// # Errors
/// Never in practice: writing to memory does not fail.
pub fn text(snapshot: snapshot::Snapshot) -> Result<String, std::fmt::Error> {
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut text = String::new();
    prometheus_client::encoding::prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}
