//! What can be asked of IPVS: the commands, and a request in words.

use std::fmt;

use crate::address::Family;
use crate::attr::Attributes;
use crate::daemon::{self, DaemonRole};
use crate::destination::{self, DestinationKey};
use crate::error::Malformed;
use crate::message::messages;
use crate::service::{self, ServiceKey};

/// `IPVS_CMD_*`.
pub(crate) mod command {
    pub(crate) const NEW_SERVICE: u8 = 1;
    pub(crate) const SET_SERVICE: u8 = 2;
    pub(crate) const DEL_SERVICE: u8 = 3;
    pub(crate) const GET_SERVICE: u8 = 4;
    pub(crate) const NEW_DEST: u8 = 5;
    pub(crate) const SET_DEST: u8 = 6;
    pub(crate) const DEL_DEST: u8 = 7;
    pub(crate) const GET_DEST: u8 = 8;
    pub(crate) const NEW_DAEMON: u8 = 9;
    pub(crate) const DEL_DAEMON: u8 = 10;
    pub(crate) const GET_DAEMON: u8 = 11;
    pub(crate) const SET_CONFIG: u8 = 12;
    pub(crate) const GET_CONFIG: u8 = 13;
    pub(crate) const SET_INFO: u8 = 14;
    pub(crate) const GET_INFO: u8 = 15;
    pub(crate) const ZERO: u8 = 16;
    pub(crate) const FLUSH: u8 = 17;
}

/// `IPVS_CMD_ATTR_*`: what stands at the first level of a command.
pub(crate) mod kind {
    pub(crate) const SERVICE: u16 = 1;
    pub(crate) const DESTINATION: u16 = 2;
    pub(crate) const DAEMON: u16 = 3;
}

/// `IPVS_GENL_VERSION`.
pub(crate) const VERSION: u8 = 1;

/// What was asked of the kernel: read back from a request's bytes when it is refused, so a batch keeps nothing beside
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Make a service.
    AddService(ServiceKey),
    /// Change a service in place.
    SetService(ServiceKey),
    /// Remove a service and its destinations.
    DeleteService(ServiceKey),
    /// Read a service.
    GetService(ServiceKey),
    /// Read all services.
    ListServices,
    /// Add a destination to a service.
    AddDestination(ServiceKey, DestinationKey),
    /// Change a destination in place.
    SetDestination(ServiceKey, DestinationKey),
    /// Take a destination off a service.
    DeleteDestination(ServiceKey, DestinationKey),
    /// Read the destinations of a service.
    ListDestinations(ServiceKey),
    /// Start a synchronisation daemon.
    StartDaemon(DaemonRole),
    /// Stop a synchronisation daemon.
    StopDaemon(DaemonRole),
    /// Read the synchronisation daemons.
    ListDaemons,
    /// Set time-outs.
    SetTimeouts,
    /// Read time-outs.
    GetTimeouts,
    /// Read version and table size.
    GetInfo,
    /// Set the counters of a service and its destinations to 0.
    ZeroService(ServiceKey),
    /// Set all counters to 0.
    ZeroAll,
    /// Remove all services.
    Flush,
}

impl Request {
    /// Reads the message that begins these bytes, as it was sent or is to be.
    ///
    /// # Errors
    /// [`Malformed`] if it is no request to IPVS, or lacks what it is about.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let message = messages(bytes).next().ok_or(Malformed("no message"))??;
        let (command, attributes) = message.command()?;
        let service = || nested(attributes, kind::SERVICE).and_then(service::decode_key);
        let destination = |family: Family| {
            nested(attributes, kind::DESTINATION).and_then(|nested| destination::decode_key(nested, family))
        };
        let both = || service().and_then(|service| Ok((service, destination(service.family())?)));
        let role = || nested(attributes, kind::DAEMON).and_then(daemon::decode_key);
        Ok(match command {
            command::NEW_SERVICE => Self::AddService(service()?),
            command::SET_SERVICE => Self::SetService(service()?),
            command::DEL_SERVICE => Self::DeleteService(service()?),
            command::GET_SERVICE => service().map_or(Self::ListServices, Self::GetService),
            command::NEW_DEST => both().map(|(service, destination)| Self::AddDestination(service, destination))?,
            command::SET_DEST => both().map(|(service, destination)| Self::SetDestination(service, destination))?,
            command::DEL_DEST => both().map(|(service, destination)| Self::DeleteDestination(service, destination))?,
            command::GET_DEST => Self::ListDestinations(service()?),
            command::NEW_DAEMON => Self::StartDaemon(role()?),
            command::DEL_DAEMON => Self::StopDaemon(role()?),
            command::GET_DAEMON => Self::ListDaemons,
            command::SET_CONFIG => Self::SetTimeouts,
            command::GET_CONFIG => Self::GetTimeouts,
            command::GET_INFO => Self::GetInfo,
            command::ZERO => service().map_or(Self::ZeroAll, Self::ZeroService),
            command::FLUSH => Self::Flush,
            _ => return Err(Malformed("an unknown command")),
        })
    }
}

/// The attributes within the first attribute of a kind.
pub(crate) fn nested(attributes: Attributes<'_>, kind: u16) -> Result<Attributes<'_>, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(attribute.nested());
        }
    }
    Err(Malformed("what the command is about is missing"))
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddService(service) => write!(f, "add service {service}"),
            Self::SetService(service) => write!(f, "change service {service}"),
            Self::DeleteService(service) => write!(f, "delete service {service}"),
            Self::GetService(service) => write!(f, "read service {service}"),
            Self::ListServices => f.write_str("read all services"),
            Self::AddDestination(service, destination) => write!(f, "add destination {destination} to {service}"),
            Self::SetDestination(service, destination) => write!(f, "change destination {destination} of {service}"),
            Self::DeleteDestination(service, destination) => {
                write!(f, "delete destination {destination} of {service}")
            }
            Self::ListDestinations(service) => write!(f, "read destinations of {service}"),
            Self::StartDaemon(role) => write!(f, "start the {role} daemon"),
            Self::StopDaemon(role) => write!(f, "stop the {role} daemon"),
            Self::ListDaemons => f.write_str("read the synchronisation daemons"),
            Self::SetTimeouts => f.write_str("set time-outs"),
            Self::GetTimeouts => f.write_str("read time-outs"),
            Self::GetInfo => f.write_str("read version and table size"),
            Self::ZeroService(service) => write!(f, "zero the counters of {service}"),
            Self::ZeroAll => f.write_str("zero all counters"),
            Self::Flush => f.write_str("remove all services"),
        }
    }
}
