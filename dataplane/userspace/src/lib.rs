//! The userspace engine: a proxy for TCP and UDP that picks an endpoint for each flow and tries another when the first
//! does not answer.
//!
//! It knows nothing of the guard, which brings it the traffic of VIPs; without a guard it listens on the frontends' own
//! addresses. Start reading at [`proxy`] (what the control side does), then `listen`, `choose`, `connect` and `relay`
//! (one TCP connection from its beginning to its end).

mod affinity;
mod apply;
mod budget;
mod choose;
mod connect;
mod drain;
mod engine;
mod filter;
mod listen;
pub mod objects;
mod observe;
mod passive;
mod pick;
mod plan;
pub mod proxy;
mod relay;
mod render;
mod reserve;
mod served;
pub mod sources;
mod splice;
pub mod stats;
mod table;
mod tick;
mod udp;
mod workers;

pub use affinity::AFFINITY_CLIENTS_MAX;
pub use connect::{ATTEMPTS_MAX, CONNECT_TOTAL};
pub use engine::Userspace;
pub use objects::{Admission, Door};
pub use proxy::{Proxy, ProxyConfig};
pub use render::{PORTS, RANGE_PORTS_MAX, Way};
pub use sources::Sources;
pub use udp::session::{SILENCE_MS, SILENCE_STREAM_MS};
