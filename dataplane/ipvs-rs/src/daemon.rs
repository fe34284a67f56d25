//! The kernel's threads that tell connections to another host (master) and learn them from one (backup).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::address;
use crate::attr::{Attributes, Encoder, Unknown};
use crate::error::Malformed;
use crate::name::Name;

/// `IPVS_DAEMON_ATTR_*`.
mod kind {
    pub(super) const ROLE: u16 = 1;
    pub(super) const INTERFACE: u16 = 2;
    pub(super) const SYNC_ID: u16 = 3;
    pub(super) const MAX_LENGTH: u16 = 4;
    pub(super) const GROUP: u16 = 5;
    pub(super) const GROUP6: u16 = 6;
    pub(super) const PORT: u16 = 7;
    pub(super) const TTL: u16 = 8;
}

/// What a synchronisation daemon does. A host may run one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DaemonRole {
    /// Sends this host's connections.
    Master,
    /// Takes in another host's connections.
    Backup,
}

impl DaemonRole {
    fn number(self) -> u32 {
        match self {
            Self::Master => 1,
            Self::Backup => 2,
        }
    }

    pub(crate) fn encode(self, encoder: &mut Encoder<'_>) {
        encoder.put_u32(kind::ROLE, self.number());
    }
}

impl fmt::Display for DaemonRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Master => "master",
            Self::Backup => "backup",
        })
    }
}

/// A synchronisation daemon. What is `None` when it is started, the kernel decides; when it is read, an older kernel
/// (before 4.3) does not know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Daemon {
    /// What it does.
    pub role: DaemonRole,
    /// The network interface that it uses.
    pub interface: Name,
    /// Master and backup understand each other if theirs are equal, 0 to 255; a backup with 0 takes all.
    pub sync_id: u32,
    /// Bytes that a datagram may carry; the kernel's choice goes by the interface's MTU.
    pub max_length: Option<u16>,
    /// The multicast group; the kernel's choice is 224.0.0.81.
    pub group: Option<IpAddr>,
    /// The UDP port; the kernel's choice is 8848.
    pub port: Option<u16>,
    /// Hops that a datagram may make; the kernel's choice is 1.
    pub ttl: Option<u8>,
}

impl Daemon {
    /// A daemon with the kernel's choices.
    #[must_use]
    pub const fn new(role: DaemonRole, interface: Name, sync_id: u32) -> Self {
        Self { role, interface, sync_id, max_length: None, group: None, port: None, ttl: None }
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder<'_>) {
        self.role.encode(encoder);
        encoder.put_text(kind::INTERFACE, self.interface.as_bytes());
        encoder.put_u32(kind::SYNC_ID, self.sync_id);
        if let Some(length) = self.max_length {
            encoder.put_u16(kind::MAX_LENGTH, length);
        }
        if let Some(group) = &self.group {
            let kind = if group.is_ipv4() { kind::GROUP } else { kind::GROUP6 };
            address::put(encoder, kind, group);
        }
        if let Some(port) = self.port {
            encoder.put_u16(kind::PORT, port);
        }
        if let Some(ttl) = self.ttl {
            encoder.put_u8(kind::TTL, ttl);
        }
    }
}

/// A daemon as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonEntry {
    /// The daemon.
    pub daemon: Daemon,
    /// What a later kernel says of it.
    pub unknown: Vec<Unknown>,
}

impl DaemonEntry {
    /// Reads the payload of an `IPVS_CMD_ATTR_DAEMON`.
    ///
    /// # Errors
    /// [`Malformed`] if something is missing or broken. What is unknown is kept.
    pub fn decode(attributes: Attributes<'_>) -> Result<Self, Malformed> {
        // Read over by what comes.
        let mut daemon = Daemon::new(DaemonRole::Master, Name::default(), 0);
        let (mut role, mut interface, mut sync_id, mut unknown) = (None, None, None, Vec::new());
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                kind::ROLE => role = Some(decode_role(attribute.u32()?)?),
                kind::INTERFACE => interface = Some(Name::received(attribute.text())),
                kind::SYNC_ID => sync_id = Some(attribute.u32()?),
                kind::MAX_LENGTH => daemon.max_length = Some(attribute.u16()?),
                kind::GROUP => daemon.group = Some(attribute.array::<4>().map(Ipv4Addr::from)?.into()),
                kind::GROUP6 => daemon.group = Some(attribute.array::<16>().map(Ipv6Addr::from)?.into()),
                kind::PORT => daemon.port = Some(attribute.u16()?),
                kind::TTL => daemon.ttl = Some(attribute.u8()?),
                _ => unknown.push(attribute.into()),
            }
        }
        daemon.role = role.ok_or(Malformed("a daemon without a role"))?;
        daemon.interface = interface.ok_or(Malformed("a daemon without an interface"))?;
        daemon.sync_id = sync_id.ok_or(Malformed("a daemon without an identity"))?;
        Ok(Self { daemon, unknown })
    }
}

/// Reads only the role; a request to stop a daemon carries no more.
pub(crate) fn decode_key(attributes: Attributes<'_>) -> Result<DaemonRole, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == kind::ROLE {
            return decode_role(attribute.u32()?);
        }
    }
    Err(Malformed("a daemon without a role"))
}

fn decode_role(number: u32) -> Result<DaemonRole, Malformed> {
    let roles = [DaemonRole::Master, DaemonRole::Backup];
    roles.into_iter().find(|role| role.number() == number).ok_or(Malformed("a daemon is neither master nor backup"))
}
