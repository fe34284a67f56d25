//! The userspace engine: a proxy for TCP and UDP that picks an endpoint for each flow and tries another when the first
//! does not answer.
//!
//! It knows nothing of the guard, which brings it the traffic of VIPs; without a guard it listens on the frontends' own
//! addresses. Start reading at [`proxy`] (what the control side does), then `listen`, `choose`, `connect` and `relay`
//! (one TCP connection from its beginning to its end).

mod affinity;
mod budget;
mod choose;
mod connect;
mod drain;
mod listen;
mod passive;
mod pick;
pub mod proxy;
mod relay;
mod reserve;
mod served;
pub mod sources;
mod splice;
pub mod stats;
mod table;
mod workers;

pub use affinity::AFFINITY_CLIENTS_MAX;
pub use connect::{ATTEMPTS_MAX, CONNECT_TOTAL};
pub use proxy::{Door, Proxy, ProxyConfig};
pub use sources::Sources;
