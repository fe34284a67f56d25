//! What only the relay of the userspace engine knows, and callers ask for: which endpoint affinity remembers. Answered at
//! once from its own table; no engine's turn is waited for.

use std::net::IpAddr;

use vipd_model::{EndpointKey, ServiceKey};
use vipd_userspace::Proxy;

/// A relay that can be asked.
pub trait Relay: Send + Sync {
    /// The endpoint that a service's affinity remembers for a client (see [`vipd_model::affinity_client`]).
    fn remembered(&self, service: &ServiceKey, client: IpAddr) -> Option<EndpointKey>;
}

impl Relay for Proxy {
    fn remembered(&self, service: &ServiceKey, client: IpAddr) -> Option<EndpointKey> {
        Self::remembered(self, service, client)
    }
}
