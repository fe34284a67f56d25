//! Address families and addresses on the wire.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::attr::{Attribute, Encoder};
use crate::error::Malformed;

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    #[must_use]
    pub const fn of(address: &IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// `AF_INET` or `AF_INET6`.
    pub(crate) fn number(self) -> u16 {
        match self {
            Self::V4 => nix::libc::AF_INET as u16,
            Self::V6 => nix::libc::AF_INET6 as u16,
        }
    }

    pub(crate) fn read(attribute: &Attribute<'_>) -> Result<Self, Malformed> {
        let number = attribute.u16()?;
        [Self::V4, Self::V6]
            .into_iter()
            .find(|family| family.number() == number)
            .ok_or(Malformed("an address family is neither IPv4 nor IPv6"))
    }

    /// An address of this family; the kernel sends 16 bytes for both.
    pub(crate) fn address(self, attribute: &Attribute<'_>) -> Result<IpAddr, Malformed> {
        match self {
            Self::V4 => attribute.array::<4>().map(|bytes| Ipv4Addr::from(bytes).into()),
            Self::V6 => attribute.array::<16>().map(|bytes| Ipv6Addr::from(bytes).into()),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

pub(crate) fn put(encoder: &mut Encoder<'_>, kind: u16, address: &IpAddr) {
    match address {
        IpAddr::V4(address) => encoder.put(kind, &address.octets()),
        IpAddr::V6(address) => encoder.put(kind, &address.octets()),
    }
}
