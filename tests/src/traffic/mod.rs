//! Traffic that says what happened to it.
//!
//! * [`server`]: back ends that answer with their name and with the source address that they saw.
//! * [`client`]: clients on any host; every attempt ends in one [`Outcome`].
//! * [`stray`]: a segment that connection tracking calls INVALID.
//! * [`tally`]: many outcomes, who answered how often, and whether that is even (chi-square, not eyeballing).
//!
//! The wire is text, one command a line (see [`server`]), so that a test can also be read in a packet capture.

pub mod chi_square;
pub mod client;
pub mod http;
pub mod server;
pub mod stray;
pub mod tally;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

pub use client::{Client, Flow};
pub use server::Server;
pub use tally::Tally;

/// The protocols that the lab speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proto {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// How one attempt to be served ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A server answered.
    Answered {
        /// Its name.
        by: String,
        /// The source address and port that it saw.
        seen: SocketAddr,
        /// From the first packet to the whole answer.
        after: Duration,
    },
    /// At once and clearly: a TCP reset in reply to the SYN, or an ICMP port unreachable.
    Refused {
        /// From the first packet to the refusal.
        after: Duration,
    },
    /// A connection was made and broke before the answer.
    Reset,
    /// Silence.
    TimedOut,
    /// This host could not even send: no route, or not permitted (what a UDP sender on the filtering node itself hears).
    Unsendable(io::ErrorKind),
}

impl Outcome {
    /// The name of the server that answered.
    #[must_use]
    pub fn by(&self) -> Option<&str> {
        match self {
            Self::Answered { by, .. } => Some(by),
            _ => None,
        }
    }

    /// The source address that the server saw.
    #[must_use]
    pub fn seen(&self) -> Option<IpAddr> {
        match self {
            Self::Answered { seen, .. } => Some(seen.ip()),
            _ => None,
        }
    }

    /// One word for tables and messages.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Answered { by, .. } => by,
            Self::Refused { .. } => "refused",
            Self::Reset => "reset",
            Self::TimedOut => "timed out",
            Self::Unsendable(io::ErrorKind::PermissionDenied) => "forbidden",
            Self::Unsendable(_) => "unsendable",
        }
    }

    /// What an error of the socket means.
    pub(crate) fn from_error(error: &io::Error, after: Duration) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused { after },
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => Self::Reset,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut,
            kind => Self::Unsendable(kind),
        }
    }
}

/// A socket of the family of `address`, in the namespace of the calling thread.
pub(crate) fn socket(address: SocketAddr, proto: Proto) -> io::Result<Socket> {
    let kind = if proto == Proto::Tcp { Type::STREAM } else { Type::DGRAM };
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}
