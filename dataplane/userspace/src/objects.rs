//! The engine's typed objects: what the proxy is told, in the order in which it must hear of it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use vipd_model::{Family, Place, Selected, ServiceKey};

use crate::sources::Sources;

/// Names an object. A door comes after its service, so that nobody enters before there is somewhere to go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Who is inside.
    Sources,
    /// A service in the table.
    Service(ServiceKey),
    /// A listening socket.
    Door(Door),
}

/// A listening socket of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Door {
    /// Where the guard sends the TCP connections of all services of a family.
    Captured(Family),
    /// Where the guard sends the datagrams of one UDP port. A redirected datagram does not say where it was going, so
    /// each has a door of its own.
    CapturedUdp(Place, u16),
    /// A frontend's own address, TCP.
    Tcp(SocketAddr),
    /// A frontend's own address, UDP.
    Udp(SocketAddr),
}

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// See [`Key::Sources`].
    Sources(Arc<Sources>),
    /// See [`Key::Service`].
    Service(Arc<Selected>),
    /// See [`Key::Door`].
    Door(Admission),
}

/// Whom a door lets in; others meet silence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// Everybody, or whom the guard lets through.
    #[default]
    Everybody,
    /// Sources in these networks, sorted; if there are none, nobody.
    Only(Arc<[IpNet]>),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sources => f.write_str("sources"),
            Self::Service(key) => write!(f, "service {key}"),
            Self::Door(door) => write!(f, "{door}"),
        }
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Captured(Family::V4) => f.write_str("listener tcp4"),
            Self::Captured(Family::V6) => f.write_str("listener tcp6"),
            Self::CapturedUdp(Place::Address(address), port) => write!(f, "socket udp for {address} port {port}"),
            Self::CapturedUdp(Place::Node(Family::V4), port) => write!(f, "socket udp4 for node port {port}"),
            Self::CapturedUdp(Place::Node(Family::V6), port) => write!(f, "socket udp6 for node port {port}"),
            Self::Tcp(address) => write!(f, "listener tcp {address}"),
            Self::Udp(address) => write!(f, "socket udp {address}"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sources(sources) => write!(f, "{sources}"),
            Self::Service(selected) => {
                let service = &selected.service;
                let usable = selected.all.iter().map(|set| set.members.len()).sum::<usize>();
                write!(
                    f,
                    "revision {}: {} frontends, {usable} of {} endpoints, {}",
                    service.revisions.newest().0,
                    selected.frontends.len(),
                    service.endpoints.len(),
                    selected.algorithm
                )
            }
            Self::Door(Admission::Everybody) => f.write_str("open"),
            Self::Door(Admission::Only(sources)) if sources.is_empty() => f.write_str("open to nobody"),
            Self::Door(Admission::Only(sources)) => write!(f, "open to {} networks", sources.len()),
        }
    }
}
