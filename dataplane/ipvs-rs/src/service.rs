//! Virtual services: what clients connect to.
//!
//! A service is known by its [`ServiceKey`]; the rest of a [`Service`] can be changed in place. What the kernel reports
//! beside it is a [`ServiceEntry`].

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use crate::address::{self, Family};
use crate::attr::{Attribute, Attributes, Encoder, Unknown};
use crate::error::{Invalid, Malformed};
use crate::name::{Name, PersistenceEngine, Scheduler};
use crate::netmask::Netmask;
use crate::stats::Stats;

/// `IPVS_SVC_ATTR_*`.
mod kind {
    pub(super) const FAMILY: u16 = 1;
    pub(super) const PROTOCOL: u16 = 2;
    pub(super) const ADDRESS: u16 = 3;
    pub(super) const PORT: u16 = 4;
    pub(super) const FWMARK: u16 = 5;
    pub(super) const SCHEDULER: u16 = 6;
    pub(super) const FLAGS: u16 = 7;
    pub(super) const TIMEOUT: u16 = 8;
    pub(super) const NETMASK: u16 = 9;
    pub(super) const STATS: u16 = 10;
    pub(super) const PERSISTENCE_ENGINE: u16 = 11;
    pub(super) const STATS64: u16 = 12;
}

/// Transport protocols that IPVS balances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// Another one, by its number in the IP header: what a later kernel may balance.
    Other(u16),
}

impl Protocol {
    /// Its number in the IP header.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
            Self::Other(number) => number,
        }
    }

    const fn of(number: u16) -> Self {
        match number {
            6 => Self::Tcp,
            17 => Self::Udp,
            132 => Self::Sctp,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.pad("tcp"),
            Self::Udp => f.pad("udp"),
            Self::Sctp => f.pad("sctp"),
            Self::Other(number) => write!(f, "protocol {number}"),
        }
    }
}

/// What a virtual service is known by.
///
/// ```
/// use ipvs_rs::ServiceKey;
///
/// let key = ServiceKey::tcp("[fd96::10]:443".parse()?);
/// assert_eq!(key.to_string(), "tcp [fd96::10]:443");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceKey {
    /// Packets to an address and port.
    Address {
        /// Of this protocol.
        protocol: Protocol,
        /// To this address.
        address: IpAddr,
        /// To this port; 0 is every port, and needs persistence.
        port: u16,
    },
    /// Packets that a firewall rule has marked.
    Fwmark {
        /// The mark.
        mark: NonZeroU32,
        /// Of this family: the same mark may be two services.
        family: Family,
    },
}

impl ServiceKey {
    /// The TCP service at an address.
    #[must_use]
    pub const fn tcp(at: SocketAddr) -> Self {
        Self::at(Protocol::Tcp, at)
    }

    /// The UDP service at an address.
    #[must_use]
    pub const fn udp(at: SocketAddr) -> Self {
        Self::at(Protocol::Udp, at)
    }

    /// The SCTP service at an address.
    #[must_use]
    pub const fn sctp(at: SocketAddr) -> Self {
        Self::at(Protocol::Sctp, at)
    }

    /// The service of a protocol at an address.
    #[must_use]
    pub const fn at(protocol: Protocol, at: SocketAddr) -> Self {
        Self::Address { protocol, address: at.ip(), port: at.port() }
    }

    /// The service for packets with a mark.
    #[must_use]
    pub const fn fwmark(mark: NonZeroU32, family: Family) -> Self {
        Self::Fwmark { mark, family }
    }

    /// The family that its clients speak.
    #[must_use]
    pub const fn family(&self) -> Family {
        match self {
            Self::Address { address, .. } => Family::of(address),
            Self::Fwmark { family, .. } => *family,
        }
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.put_u16(kind::FAMILY, self.family().number());
        match self {
            Self::Address { protocol, address, port } => {
                encoder.put_u16(kind::PROTOCOL, protocol.number());
                address::put(encoder, kind::ADDRESS, address);
                encoder.put_u16_be(kind::PORT, *port);
            }
            Self::Fwmark { mark, .. } => encoder.put_u32(kind::FWMARK, mark.get()),
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { protocol, address, port } => write!(f, "{protocol} {}", SocketAddr::new(*address, *port)),
            Self::Fwmark { mark, family } => write!(f, "fwmark {mark} {family}"),
        }
    }
}

bitflags::bitflags! {
    /// Options of a service (`IP_VS_SVC_F_*`). Bits that a later kernel gives a meaning are kept as they are.
    ///
    /// The kernel's own mark "this entry is in the hash table" (0x2) is never among them: it is taken off when read, and
    /// left alone when written, so that two services can be compared.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ServiceFlags: u32 {
        /// A client keeps its destination for [`Service::timeout`].
        const PERSISTENT = 0x01;
        /// UDP: each datagram is scheduled by itself, and no connection is kept.
        const ONE_PACKET = 0x04;
        /// First flag of the scheduler.
        const SCHEDULER_1 = 0x08;
        /// Second flag of the scheduler.
        const SCHEDULER_2 = 0x10;
        /// Third flag of the scheduler.
        const SCHEDULER_3 = 0x20;
        /// `sh`: when the pick is unavailable (weight 0, overloaded), another is taken.
        const SH_FALLBACK = Self::SCHEDULER_1.bits();
        /// `sh`: the client's port counts too.
        const SH_PORT = Self::SCHEDULER_2.bits();
        /// `mh`: when the pick is unavailable, another is taken.
        const MH_FALLBACK = Self::SCHEDULER_1.bits();
        /// `mh`: the client's port counts too.
        const MH_PORT = Self::SCHEDULER_2.bits();
        /// All other bits.
        const _ = !0;
    }
}

/// `IP_VS_SVC_F_HASHED`.
const HASHED: u32 = 0x02;

/// A virtual service: a key and all that can be changed in place.
///
/// ```
/// use std::time::Duration;
/// use ipvs_rs::{Netmask, Scheduler, Service, ServiceFlags, ServiceKey};
///
/// let service = Service::new(ServiceKey::tcp("10.96.0.10:80".parse()?), Scheduler::SOURCE_HASHING)
///     .with_flags(ServiceFlags::SH_FALLBACK)
///     .persistent(Duration::from_secs(10_800), Netmask::Prefix(24));
/// assert!(service.flags.contains(ServiceFlags::PERSISTENT | ServiceFlags::SH_FALLBACK));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Service {
    /// What it is known by.
    pub key: ServiceKey,
    /// How it picks a destination.
    pub scheduler: Scheduler,
    /// Its options.
    pub flags: ServiceFlags,
    /// With [`ServiceFlags::PERSISTENT`]: how long a client keeps its destination, in whole seconds, up to
    /// [`Service::LONGEST_TIMEOUT`]. The kernel starts it anew as long as the client has connections.
    pub timeout: Duration,
    /// With [`ServiceFlags::PERSISTENT`]: clients that are the same under this mask share a destination.
    pub netmask: Netmask,
    /// With [`ServiceFlags::PERSISTENT`]: what tells clients apart beside their address.
    pub persistence_engine: Option<PersistenceEngine>,
}

impl Service {
    /// The longest time-out: the kernel counts it in ticks, up to 1,000 a second, in 32 bits, and lets them overflow.
    pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(u32::MAX as u64 / 1000);

    /// A service without options.
    #[must_use]
    pub const fn new(key: ServiceKey, scheduler: Scheduler) -> Self {
        let flags = ServiceFlags::empty();
        Self { key, scheduler, flags, timeout: Duration::ZERO, netmask: Netmask::Host, persistence_engine: None }
    }

    /// Adds options.
    #[must_use]
    pub const fn with_flags(mut self, flags: ServiceFlags) -> Self {
        self.flags = self.flags.union(flags);
        self
    }

    /// Lets clients keep their destination.
    #[must_use]
    pub const fn persistent(mut self, timeout: Duration, netmask: Netmask) -> Self {
        self.flags = self.flags.union(ServiceFlags::PERSISTENT);
        self.timeout = timeout;
        self.netmask = netmask;
        self
    }

    /// Tells clients of a persistent service apart by more than their address.
    #[must_use]
    pub const fn with_persistence_engine(mut self, engine: PersistenceEngine) -> Self {
        self.persistence_engine = Some(engine);
        self
    }

    /// Says whether the kernel would take it for what it says; it takes some things for others without a word.
    ///
    /// # Errors
    /// [`Invalid`]: a mask that its family cannot have, or a time-out that does not fit.
    pub fn check(&self) -> Result<(), Invalid> {
        self.netmask.number(self.key.family())?;
        if self.timeout > Self::LONGEST_TIMEOUT {
            return Err(Invalid::Timeout(self.timeout));
        }
        Ok(())
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder<'_>) -> Result<(), Invalid> {
        self.check()?;
        self.key.encode(encoder);
        encoder.put_text(kind::SCHEDULER, self.scheduler.0.as_bytes());
        let mut flags = [0; 8];
        flags[..4].copy_from_slice(&(self.flags.bits() & !HASHED).to_ne_bytes());
        flags[4..].copy_from_slice(&(!HASHED).to_ne_bytes());
        encoder.put(kind::FLAGS, &flags);
        encoder.put_u32(kind::TIMEOUT, u32::try_from(self.timeout.as_secs()).unwrap_or(u32::MAX));
        encoder.put_u32(kind::NETMASK, self.netmask.number(self.key.family())?);
        if let Some(engine) = self.persistence_engine {
            encoder.put_text(kind::PERSISTENCE_ENGINE, engine.0.as_bytes());
        }
        Ok(())
    }
}

/// A service as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEntry {
    /// The service.
    pub service: Service,
    /// What went through it.
    pub stats: Stats,
    /// What a later kernel says of it.
    pub unknown: Vec<Unknown>,
}

impl ServiceEntry {
    /// Reads the payload of an `IPVS_CMD_ATTR_SERVICE`.
    ///
    /// # Errors
    /// [`Malformed`] if something is missing or broken. What is unknown is kept.
    pub fn decode(attributes: Attributes<'_>) -> Result<Self, Malformed> {
        let mut read = Fields::default();
        for attribute in attributes {
            read.take(attribute?)?;
        }
        let key = read.key()?;
        let netmask = read.netmask.ok_or(Malformed("a service without a netmask"))?;
        let service = Service {
            key,
            scheduler: read.scheduler.ok_or(Malformed("a service without a scheduler"))?,
            flags: read.flags.ok_or(Malformed("a service without flags"))?,
            timeout: Duration::from_secs(read.timeout.ok_or(Malformed("a service without a time-out"))?.into()),
            netmask: Netmask::of(netmask, key.family()),
            persistence_engine: read.persistence_engine,
        };
        Ok(Self { service, stats: Stats::prefer(read.stats64, read.stats)?, unknown: read.unknown })
    }
}

/// Reads only what a service is known by; requests carry no more when they are about an existing one.
pub(crate) fn decode_key(attributes: Attributes<'_>) -> Result<ServiceKey, Malformed> {
    let mut read = Fields::default();
    for attribute in attributes {
        read.take(attribute?)?;
    }
    read.key()
}

/// Attributes of a service, in whatever order they come.
#[derive(Default)]
struct Fields<'a> {
    family: Option<Family>,
    protocol: Option<u16>,
    address: Option<Attribute<'a>>,
    port: Option<u16>,
    mark: Option<u32>,
    scheduler: Option<Scheduler>,
    flags: Option<ServiceFlags>,
    timeout: Option<u32>,
    netmask: Option<u32>,
    persistence_engine: Option<PersistenceEngine>,
    stats: Option<Attribute<'a>>,
    stats64: Option<Attribute<'a>>,
    unknown: Vec<Unknown>,
}

impl<'a> Fields<'a> {
    fn take(&mut self, attribute: Attribute<'a>) -> Result<(), Malformed> {
        match attribute.kind {
            kind::FAMILY => self.family = Some(Family::read(&attribute)?),
            kind::PROTOCOL => self.protocol = Some(attribute.u16()?),
            kind::ADDRESS => self.address = Some(attribute),
            kind::PORT => self.port = Some(attribute.u16_be()?),
            kind::FWMARK => self.mark = Some(attribute.u32()?),
            kind::SCHEDULER => self.scheduler = Some(Scheduler(Name::received(attribute.text()))),
            kind::FLAGS => self.flags = Some(ServiceFlags::from_bits_retain(attribute.u32()? & !HASHED)),
            kind::TIMEOUT => self.timeout = Some(attribute.u32()?),
            kind::NETMASK => self.netmask = Some(attribute.u32()?),
            kind::PERSISTENCE_ENGINE => {
                self.persistence_engine = Some(PersistenceEngine(Name::received(attribute.text())));
            }
            kind::STATS => self.stats = Some(attribute),
            kind::STATS64 => self.stats64 = Some(attribute),
            _ => self.unknown.push(attribute.into()),
        }
        Ok(())
    }

    fn key(&self) -> Result<ServiceKey, Malformed> {
        let family = self.family.ok_or(Malformed("a service without an address family"))?;
        if let Some(mark) = self.mark.and_then(NonZeroU32::new) {
            return Ok(ServiceKey::Fwmark { mark, family });
        }
        let protocol = self.protocol.ok_or(Malformed("a service without a protocol"))?;
        let address = self.address.ok_or(Malformed("a service without an address"))?;
        let port = self.port.ok_or(Malformed("a service without a port"))?;
        Ok(ServiceKey::Address { protocol: Protocol::of(protocol), address: family.address(&address)?, port })
    }
}
