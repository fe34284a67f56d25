//! Endpoints: where traffic goes, and how they leave.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::Millis;
use crate::frontend::Family;

/// What identifies an endpoint within its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    /// Unicast.
    pub address: IpAddr,
    /// 1..=65535, or 0 where the service has a port range.
    pub port: u16,
}

impl EndpointKey {
    /// The socket address; for a service with a port range the client's destination port takes the place of 0.
    #[must_use]
    pub fn socket_address(self, destination_port: u16) -> SocketAddr {
        SocketAddr::new(self.address, if self.port == 0 { destination_port } else { self.port })
    }

    /// Address family.
    #[must_use]
    pub fn family(self) -> Family {
        Family::of(self.address)
    }
}

impl fmt::Display for EndpointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, self.port) {
            (address, 0) => write!(f, "{address}"),
            (address, port) => write!(f, "{}", SocketAddr::new(address, port)),
        }
    }
}

/// What an endpoint may take; in order of preference when one key is sent twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointState {
    /// New flows.
    #[default]
    Ready,
    /// New flows only if nothing READY is usable.
    Draining,
    /// None; UDP flows are cut.
    NotReady,
}

impl fmt::Display for EndpointState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "READY",
            Self::Draining => "DRAINING",
            Self::NotReady => "NOT_READY",
        })
    }
}

/// What ends flows that outlast the drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnExpiry {
    /// Nothing.
    #[default]
    Leave,
    /// They are reset.
    Reset,
}

/// How long established flows of an endpoint that takes no new ones may last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Drain {
    /// Absent: no limit.
    pub timeout: Option<Duration>,
    /// What then.
    pub on_expiry: OnExpiry,
}

impl Drain {
    /// When it is over for what left at `since`; absent: never.
    #[must_use]
    pub fn deadline(&self, since: Millis) -> Option<Millis> {
        let timeout = u64::try_from(self.timeout?.as_millis()).unwrap_or(u64::MAX);
        Some(Millis(since.0.saturating_add(timeout)))
    }
}

/// Where traffic goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Address and port.
    pub key: EndpointKey,
    /// 0: no new flows, whatever the state.
    pub weight: u16,
    /// Said by the declarer.
    pub state: EndpointState,
    /// On this node.
    pub local: bool,
    /// Lower is preferred.
    pub tier: u32,
    /// Who it is to the declarer; shown, never interpreted.
    pub target: Option<Arc<str>>,
    /// Absent: the service's.
    pub drain: Option<Drain>,
    /// 0: no limit.
    pub max_connections: u32,
    /// When vipd first saw it take no new flows (DRAINING, NOT_READY); absent while READY. Kept over repeats and
    /// restarts, so that a drain is counted once.
    pub left_at: Option<Millis>,
}

impl Endpoint {
    /// READY, weight 1, defaults for the rest.
    #[must_use]
    pub fn new(address: IpAddr, port: u16) -> Self {
        Self {
            key: EndpointKey { address, port },
            weight: 1,
            state: EndpointState::Ready,
            local: false,
            tier: 0,
            target: None,
            drain: None,
            max_connections: 0,
            left_at: None,
        }
    }
}

/// An endpoint that was removed while its drain has a deadline ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leaving {
    /// Which.
    pub key: EndpointKey,
    /// When vipd first saw it leave.
    pub since: Millis,
    /// With a timeout.
    pub drain: Drain,
}
