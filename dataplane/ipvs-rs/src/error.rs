//! What can go wrong, by whom it is to be put right.

use std::io;
use std::time::Duration;

use crate::address::Family;
use crate::netmask::Netmask;
use crate::refusal::Refusal;
use crate::request::Request;

/// Why something was not done, or is not known to be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no IPVS, or its module is not loaded and may not be loaded from here.
    #[error(
        "the kernel has no IPVS: module ip_vs is neither built in nor loaded, and loading it on demand did not help \
         (modprobe ip_vs, on the host if this is a container)"
    )]
    NoModule,
    /// The module was unloaded, which it can be only without services, and is back. What was asked was not done.
    #[error("the module ip_vs was unloaded and loaded again meanwhile; its tables are empty and nothing was done")]
    ModuleReloaded,
    /// The kernel refused.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// What was asked for cannot be said to the kernel; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The kernel did it or refused it, but the answer is lost: its buffer was full, or nothing came. Read back what is
    /// there before anything is decided.
    #[error("{0}: the answer was lost; what the kernel has is to be read back")]
    AnswerLost(Request),
    /// A dump was cut into by another writer, or by this socket's own earlier dump, each time it was tried.
    #[error("{request}: {attempts} attempts, and each was disturbed by another writer; try again when it is quieter")]
    Unsettled {
        /// What was read.
        request: Request,
        /// How often.
        attempts: usize,
    },
    /// The kernel's answer cannot be read.
    #[error("{request}: {source}")]
    Answer {
        /// What was asked.
        request: Request,
        /// What was wrong with the answer.
        source: Malformed,
    },
    /// The socket failed, or could not be had.
    #[error("{what}: {source}")]
    Socket {
        /// At what.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn socket(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Socket { what, source: source.into() }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

/// Bytes that are not what they should be, and what is wrong with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed netlink: {0}")]
pub struct Malformed(pub(crate) &'static str);

/// A value that the kernel would refuse, or take for another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A name that does not fit the kernel's 16 bytes.
    #[error("the name {0:?} is empty, longer than 15 bytes, or has a NUL in it")]
    Name(String),
    /// A mask that the family cannot have.
    #[error("{family} has no netmask {netmask}: IPv4 takes /0 to /32 or bits, IPv6 takes /1 to /128")]
    Netmask {
        /// The mask.
        netmask: Netmask,
        /// The service's family.
        family: Family,
    },
    /// A time-out that is too long, or one of 0 where that has no meaning.
    #[error("a time-out of {0:?} is too long for the kernel, or too short to be one")]
    Timeout(Duration),
    /// A weight above the kernel's.
    #[error("weight {0} is above {max}, the greatest that the kernel has", max = i32::MAX)]
    Weight(u32),
    /// Thresholds the wrong way round.
    #[error("the lower threshold {lower} is above the upper one, {upper}")]
    Thresholds {
        /// The upper one.
        upper: u32,
        /// The lower one.
        lower: u32,
    },
    /// GUE without a port.
    #[error("a GUE tunnel needs a port")]
    TunnelPort,
    /// A number that is no other forwarding method.
    #[error("forwarding method {0} has a name of its own, or is above 7")]
    Forwarding(u8),
}
