//! Destinations (real servers) of a service, and how packets get to them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::address::{self, Family};
use crate::attr::{Attribute, Attributes, Encoder, Unknown};
use crate::error::{Invalid, Malformed};
use crate::stats::Stats;

/// `IPVS_DEST_ATTR_*`.
mod kind {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const PORT: u16 = 2;
    pub(super) const FORWARDING: u16 = 3;
    pub(super) const WEIGHT: u16 = 4;
    pub(super) const UPPER_THRESHOLD: u16 = 5;
    pub(super) const LOWER_THRESHOLD: u16 = 6;
    pub(super) const ACTIVE: u16 = 7;
    pub(super) const INACTIVE: u16 = 8;
    pub(super) const PERSISTENT: u16 = 9;
    pub(super) const STATS: u16 = 10;
    pub(super) const FAMILY: u16 = 11;
    pub(super) const STATS64: u16 = 12;
    pub(super) const TUNNEL_TYPE: u16 = 13;
    pub(super) const TUNNEL_PORT: u16 = 14;
    pub(super) const TUNNEL_FLAGS: u16 = 15;
}

/// What a destination is known by within its service. Its family may differ from the service's if it is reached by a
/// tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationKey {
    /// Its address.
    pub address: IpAddr,
    /// Its port. A service for a mark or for every port has destinations of port 0: the client's port is kept.
    pub port: u16,
}

impl DestinationKey {
    /// The destination at an address.
    #[must_use]
    pub const fn new(at: SocketAddr) -> Self {
        Self { address: at.ip(), port: at.port() }
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.put_u16(kind::FAMILY, Family::of(&self.address).number());
        address::put(encoder, kind::ADDRESS, &self.address);
        encoder.put_u16_be(kind::PORT, self.port);
    }
}

impl From<SocketAddr> for DestinationKey {
    fn from(at: SocketAddr) -> Self {
        Self::new(at)
    }
}

impl fmt::Display for DestinationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// How packets get to a destination (`IP_VS_CONN_F_FWD_MASK`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Forwarding {
    /// Destination NAT; replies must come back through this host.
    #[default]
    Masquerade,
    /// The destination is this host. The kernel finds that out by itself, too.
    LocalNode,
    /// In a tunnel; the destination answers the client by itself.
    Tunnel(Tunnel),
    /// Unchanged to the destination's link address, on the same link; it answers the client by itself.
    DirectRoute,
    /// Past IPVS; the kernel's own, for its cache bypass.
    Bypass,
    /// Another method, 5 to 7: what a later kernel may have.
    Other(u8),
}

impl Forwarding {
    fn number(self) -> u32 {
        match self {
            Self::Masquerade => 0,
            Self::LocalNode => 1,
            Self::Tunnel(_) => 2,
            Self::DirectRoute => 3,
            Self::Bypass => 4,
            Self::Other(number) => number.into(),
        }
    }

    fn of(number: u32, tunnel: Tunnel) -> Self {
        match number & 7 {
            0 => Self::Masquerade,
            1 => Self::LocalNode,
            2 => Self::Tunnel(tunnel),
            3 => Self::DirectRoute,
            4 => Self::Bypass,
            other => Self::Other(other as u8),
        }
    }
}

/// The tunnel to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tunnel {
    /// How packets are wrapped.
    pub kind: TunnelKind,
    /// How the wrapping is checked; GUE and GRE only.
    pub flags: TunnelFlags,
}

/// How packets are wrapped (`IP_VS_CONN_F_TUNNEL_TYPE_*`). All but [`TunnelKind::Ipip`] since Linux 5.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TunnelKind {
    /// IP in IP.
    #[default]
    Ipip,
    /// Generic UDP encapsulation.
    Gue {
        /// The UDP port of the destination's end; not 0.
        port: u16,
    },
    /// GRE.
    Gre,
    /// Another type: what a later kernel may have.
    Other {
        /// Its number.
        number: u8,
        /// Its port.
        port: u16,
    },
}

impl TunnelKind {
    fn number(self) -> u8 {
        match self {
            Self::Ipip => 0,
            Self::Gue { .. } => 1,
            Self::Gre => 2,
            Self::Other { number, .. } => number,
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Ipip | Self::Gre => 0,
            Self::Gue { port } | Self::Other { port, .. } => port,
        }
    }

    fn of(number: u8, port: u16) -> Self {
        match number {
            0 => Self::Ipip,
            1 => Self::Gue { port },
            2 => Self::Gre,
            _ => Self::Other { number, port },
        }
    }
}

bitflags::bitflags! {
    /// How the wrapping of a tunnel is checked (`IP_VS_TUNNEL_ENCAP_FLAG_*`); without a flag, not at all.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct TunnelFlags: u16 {
        /// By a checksum.
        const CHECKSUM = 0x1;
        /// By a checksum that leaves the inner one to the destination (GUE's remote checksum).
        const REMOTE_CHECKSUM = 0x2;
        /// All other bits.
        const _ = !0;
    }
}

/// A destination: a key and all that can be changed in place.
///
/// ```
/// use ipvs_rs::{Destination, Forwarding, Tunnel, TunnelKind};
///
/// let nat = Destination::new("10.1.1.2:8080".parse()?).with_weight(3);
/// let gue = Tunnel { kind: TunnelKind::Gue { port: 6080 }, ..Tunnel::default() };
/// let tunnel = Destination::new("10.1.1.3:80".parse()?).with_forwarding(Forwarding::Tunnel(gue));
/// assert_eq!((nat.weight, tunnel.weight), (3, 1));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Destination {
    /// What it is known by within its service.
    pub key: DestinationKey,
    /// How packets get there.
    pub forwarding: Forwarding,
    /// Its share, up to [`Destination::HEAVIEST`]. 0: what is established stays, nothing new comes.
    pub weight: u32,
    /// At so many connections it is overloaded and gets no new ones; 0 is no limit.
    pub upper_threshold: u32,
    /// Below so many connections it is no longer overloaded; 0 is three quarters of the upper one. Not above the upper.
    pub lower_threshold: u32,
}

impl Destination {
    /// The greatest weight: the kernel's is a signed number.
    pub const HEAVIEST: u32 = i32::MAX as u32;

    /// A destination reached by NAT, of weight 1 and without limits.
    #[must_use]
    pub const fn new(at: SocketAddr) -> Self {
        Self {
            key: DestinationKey::new(at),
            forwarding: Forwarding::Masquerade,
            weight: 1,
            upper_threshold: 0,
            lower_threshold: 0,
        }
    }

    /// Sets its share.
    #[must_use]
    pub const fn with_weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Sets how packets get there.
    #[must_use]
    pub const fn with_forwarding(mut self, forwarding: Forwarding) -> Self {
        self.forwarding = forwarding;
        self
    }

    /// Sets at how many connections it is overloaded, and below how many no longer.
    #[must_use]
    pub const fn with_thresholds(mut self, upper: u32, lower: u32) -> Self {
        self.upper_threshold = upper;
        self.lower_threshold = lower;
        self
    }

    /// Says whether the kernel would take it for what it says.
    ///
    /// # Errors
    /// [`Invalid`]: a weight or thresholds out of range, a GUE tunnel to port 0, a method that does not fit its bits.
    pub fn check(&self) -> Result<(), Invalid> {
        match self.forwarding {
            _ if self.weight > Self::HEAVIEST => Err(Invalid::Weight(self.weight)),
            _ if self.lower_threshold > self.upper_threshold => {
                Err(Invalid::Thresholds { upper: self.upper_threshold, lower: self.lower_threshold })
            }
            Forwarding::Tunnel(Tunnel { kind: TunnelKind::Gue { port: 0 }, .. }) => Err(Invalid::TunnelPort),
            Forwarding::Other(number @ (0..5 | 8..)) => Err(Invalid::Forwarding(number)),
            _ => Ok(()),
        }
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder<'_>) -> Result<(), Invalid> {
        self.check()?;
        self.key.encode(encoder);
        encoder.put_u32(kind::FORWARDING, self.forwarding.number());
        encoder.put_u32(kind::WEIGHT, self.weight);
        encoder.put_u32(kind::UPPER_THRESHOLD, self.upper_threshold);
        encoder.put_u32(kind::LOWER_THRESHOLD, self.lower_threshold);
        if let Forwarding::Tunnel(tunnel) = self.forwarding {
            encoder.put_u8(kind::TUNNEL_TYPE, tunnel.kind.number());
            encoder.put_u16_be(kind::TUNNEL_PORT, tunnel.kind.port());
            encoder.put_u16(kind::TUNNEL_FLAGS, tunnel.flags.bits());
        }
        Ok(())
    }
}

/// Connections that a destination has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Connections {
    /// Established.
    pub active: u32,
    /// In any other state, and datagrams' flows.
    pub inactive: u32,
    /// Clients that would come back here.
    pub persistent: u32,
}

/// A destination as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationEntry {
    /// The destination.
    pub destination: Destination,
    /// Its connections now.
    pub connections: Connections,
    /// What went through it.
    pub stats: Stats,
    /// What a later kernel says of it.
    pub unknown: Vec<Unknown>,
}

impl DestinationEntry {
    /// Reads the payload of an `IPVS_CMD_ATTR_DEST`. Kernels before 3.18 do not say a destination's family: it is then
    /// the service's.
    ///
    /// # Errors
    /// [`Malformed`] if something is missing or broken. What is unknown is kept.
    pub fn decode(attributes: Attributes<'_>, service: Family) -> Result<Self, Malformed> {
        let mut read = Fields::default();
        for attribute in attributes {
            read.take(attribute?)?;
        }
        let (number, port) = (read.tunnel_type, read.tunnel_port);
        let tunnel =
            Tunnel { kind: TunnelKind::of(number, port), flags: TunnelFlags::from_bits_retain(read.tunnel_flags) };
        let forwarding = read.forwarding.ok_or(Malformed("a destination without a forwarding method"))?;
        let destination = Destination {
            key: read.key(service)?,
            forwarding: Forwarding::of(forwarding, tunnel),
            weight: read.weight.ok_or(Malformed("a destination without a weight"))?,
            upper_threshold: read.upper_threshold,
            lower_threshold: read.lower_threshold,
        };
        Ok(Self {
            destination,
            connections: read.connections,
            stats: Stats::prefer(read.stats64, read.stats)?,
            unknown: read.unknown,
        })
    }
}

/// Reads only what a destination is known by; a request to delete one carries no more.
pub(crate) fn decode_key(attributes: Attributes<'_>, service: Family) -> Result<DestinationKey, Malformed> {
    let mut read = Fields::default();
    for attribute in attributes {
        read.take(attribute?)?;
    }
    read.key(service)
}

/// Attributes of a destination, in whatever order they come.
#[derive(Default)]
struct Fields<'a> {
    family: Option<Family>,
    address: Option<Attribute<'a>>,
    port: Option<u16>,
    forwarding: Option<u32>,
    weight: Option<u32>,
    upper_threshold: u32,
    lower_threshold: u32,
    connections: Connections,
    tunnel_type: u8,
    tunnel_port: u16,
    tunnel_flags: u16,
    stats: Option<Attribute<'a>>,
    stats64: Option<Attribute<'a>>,
    unknown: Vec<Unknown>,
}

impl<'a> Fields<'a> {
    fn take(&mut self, attribute: Attribute<'a>) -> Result<(), Malformed> {
        match attribute.kind {
            kind::ADDRESS => self.address = Some(attribute),
            kind::PORT => self.port = Some(attribute.u16_be()?),
            kind::FORWARDING => self.forwarding = Some(attribute.u32()?),
            kind::WEIGHT => self.weight = Some(attribute.u32()?),
            kind::UPPER_THRESHOLD => self.upper_threshold = attribute.u32()?,
            kind::LOWER_THRESHOLD => self.lower_threshold = attribute.u32()?,
            kind::ACTIVE => self.connections.active = attribute.u32()?,
            kind::INACTIVE => self.connections.inactive = attribute.u32()?,
            kind::PERSISTENT => self.connections.persistent = attribute.u32()?,
            kind::FAMILY => self.family = Some(Family::read(&attribute)?),
            kind::TUNNEL_TYPE => self.tunnel_type = attribute.u8()?,
            kind::TUNNEL_PORT => self.tunnel_port = attribute.u16_be()?,
            kind::TUNNEL_FLAGS => self.tunnel_flags = attribute.u16()?,
            kind::STATS => self.stats = Some(attribute),
            kind::STATS64 => self.stats64 = Some(attribute),
            _ => self.unknown.push(attribute.into()),
        }
        Ok(())
    }

    fn key(&self, service: Family) -> Result<DestinationKey, Malformed> {
        let address = self.address.ok_or(Malformed("a destination without an address"))?;
        let port = self.port.ok_or(Malformed("a destination without a port"))?;
        Ok(DestinationKey { address: self.family.unwrap_or(service).address(&address)?, port })
    }
}
