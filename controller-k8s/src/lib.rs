//! vipd-k8s: the Kubernetes adapter. Watches the API server and tells the vipd of the node; in kube-proxy's place.
//!
//! One direction, three steps: `watch` fills the `world` with `facts`, `translate` (pure) makes services of vipd of them,
//! `push` tells vipd what changed. `events` says on a Service what cannot be honoured; `health` and `metrics` are
//! kube-proxy's pages. No word of NAT or of an engine: how packets go is vipd's affair. See docs/kubernetes.md.

mod cleanup;
pub mod config;
pub mod events;
pub mod facts;
mod health;
mod http;
pub mod metrics;
pub mod push;
mod run;
pub mod shared;
pub mod translate;
pub mod watch;
pub mod world;

pub use cleanup::kube_proxy as cleanup_kube_proxy;
pub use run::{run, withdraw};
