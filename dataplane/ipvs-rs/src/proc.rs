//! `/proc/net/ip_vs`: all services and destinations in one cheap read, with less in it than netlink says.
//!
//! Five times faster than netlink for a large table, and so the way to see that somebody else changed something: IPVS
//! announces nothing. What it lacks: scheduler flags, thresholds, tunnel types, counters, the family of a mark's service.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::destination::DestinationKey;
use crate::info::Version;
use crate::name::Scheduler;
use crate::service::{Protocol, ServiceKey};

/// The file of the calling thread's own network namespace; `/proc/net` would be that of the process's first thread.
const PATH: &str = "/proc/thread-self/net/ip_vs";

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The version of IPVS.
    pub version: Version,
    /// Rows of the table of connections.
    pub connection_table_size: u32,
    /// The services, in the kernel's order.
    pub services: Vec<ProcService>,
}

/// What a service is known by in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProcKey {
    /// An address and port.
    Address(ServiceKey),
    /// A mark, of either family: the file does not say which.
    Fwmark(u32),
}

/// A service in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcService {
    /// What it is known by.
    pub key: ProcKey,
    /// Its scheduler.
    pub scheduler: Scheduler,
    /// Whether datagrams are scheduled one by one; the kernel does not say it of an IPv6 address.
    pub one_packet: bool,
    /// Persistence, if it is persistent.
    pub persistence: Option<ProcPersistence>,
    /// Its destinations, in the kernel's order.
    pub destinations: Vec<ProcDestination>,
}

/// Persistence in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcPersistence {
    /// The time-out in the kernel's ticks, whose length only its builder knows.
    pub ticks: u32,
    /// The IPv4 mask, or the IPv6 prefix length, as the number that netlink would carry.
    pub netmask: u32,
}

/// A destination in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcDestination {
    /// What it is known by.
    pub key: DestinationKey,
    /// How packets get there.
    pub forwarding: ProcForwarding,
    /// Its share.
    pub weight: u32,
    /// Established connections.
    pub active: u32,
    /// Others.
    pub inactive: u32,
}

/// How packets get to a destination, as the file calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcForwarding {
    /// `Masq`.
    Masquerade,
    /// `Local`.
    LocalNode,
    /// `Tunnel`, of whatever type.
    Tunnel,
    /// `Route`.
    DirectRoute,
    /// `Bypass`.
    Bypass,
}

/// A line that is not what the kernel writes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of /proc/net/ip_vs cannot be read: {text:?}")]
pub struct Unreadable {
    /// Which, from 1.
    pub line: usize,
    /// What it says.
    pub text: String,
}

/// Reads the file of the calling thread's network namespace.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] where there is no IPVS, [`io::ErrorKind::InvalidData`] with an [`Unreadable`] in it.
pub fn read() -> io::Result<View> {
    let text = fs::read_to_string(PATH)?;
    parse(&text).map_err(|unreadable| io::Error::new(io::ErrorKind::InvalidData, unreadable))
}

/// Reads such a text.
///
/// ```
/// let view = ipvs_rs::proc::parse("\
/// IP Virtual Server version 1.2.1 (size=4096)
/// Prot LocalAddress:Port Scheduler Flags
///   -> RemoteAddress:Port Forward Weight ActiveConn InActConn
/// TCP  0A60000A:0050 wrr persistent 1080000 FFFFFF00
///   -> 0A010102:1F90      Masq    3      2          1
/// ")?;
/// assert_eq!(view.services[0].destinations[0].key.to_string(), "10.1.1.2:8080");
/// # Ok::<(), ipvs_rs::proc::Unreadable>(())
/// ```
///
/// # Errors
/// [`Unreadable`], with the first line that is not what the kernel writes.
pub fn parse(text: &str) -> Result<View, Unreadable> {
    let unreadable = |line: usize, text: &str| Unreadable { line: line + 1, text: text.to_owned() };
    let mut lines = text.lines().enumerate();
    let first = lines.next().map(|(_, line)| line).unwrap_or_default();
    let (version, connection_table_size) = head(first).ok_or_else(|| unreadable(0, first))?;
    let mut services: Vec<ProcService> = Vec::new();
    // Two lines of headings follow the first.
    for (number, line) in lines.skip(2) {
        let read = match line.trim_start().strip_prefix("-> ") {
            Some(rest) => destination(rest).and_then(|destination| {
                services.last_mut()?.destinations.push(destination);
                Some(())
            }),
            None => service(line).map(|service| services.push(service)),
        };
        read.ok_or_else(|| unreadable(number, line))?;
    }
    Ok(View { version, connection_table_size, services })
}

fn head(line: &str) -> Option<(Version, u32)> {
    let rest = line.strip_prefix("IP Virtual Server version ")?;
    let (version, size) = rest.split_once(" (size=")?;
    let mut numbers = version.split('.').map(str::parse);
    let mut number = || numbers.next()?.ok();
    let version = Version { major: number()?, minor: number()?, patch: number()? };
    Some((version, size.strip_suffix(')')?.parse().ok()?))
}

fn service(line: &str) -> Option<ProcService> {
    let mut words = line.split_whitespace();
    let key = match (words.next()?, words.next()?) {
        ("FWM", mark) => ProcKey::Fwmark(u32::from_str_radix(mark, 16).ok()?),
        (name, at) => {
            let DestinationKey { address, port } = socket_address(at)?;
            ProcKey::Address(ServiceKey::Address { protocol: protocol(name)?, address, port })
        }
    };
    let scheduler = words.next()?.parse().ok()?;
    let mut service = ProcService { key, scheduler, one_packet: false, persistence: None, destinations: Vec::new() };
    while let Some(word) = words.next() {
        match word {
            "ops" => service.one_packet = true,
            "persistent" => {
                let ticks = words.next()?.parse().ok()?;
                // Printed as if it were an address; so turned back into what it is in memory.
                let netmask = u32::from_str_radix(words.next()?, 16).ok()?.to_be();
                service.persistence = Some(ProcPersistence { ticks, netmask });
            }
            // A later kernel's word.
            _ => {}
        }
    }
    Some(service)
}

fn destination(rest: &str) -> Option<ProcDestination> {
    let mut words = rest.split_whitespace();
    let key = socket_address(words.next()?)?;
    let forwarding = match words.next()? {
        "Masq" => ProcForwarding::Masquerade,
        "Local" => ProcForwarding::LocalNode,
        "Tunnel" => ProcForwarding::Tunnel,
        "Route" => ProcForwarding::DirectRoute,
        "Bypass" => ProcForwarding::Bypass,
        _ => return None,
    };
    let mut number = || words.next()?.parse().ok();
    Some(ProcDestination { key, forwarding, weight: number()?, active: number()?, inactive: number()? })
}

fn protocol(name: &str) -> Option<Protocol> {
    match name {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        // The kernel writes a number for those that it has no name for.
        other => other.strip_prefix("IP_").unwrap_or(other).parse().ok().map(Protocol::Other),
    }
}

/// `0A60000A:0050` or `[fd96:0000:…:0010]:0035`.
fn socket_address(text: &str) -> Option<DestinationKey> {
    let (address, port) = text.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let address = match address.strip_prefix('[') {
        Some(rest) => IpAddr::V6(rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?),
        None => IpAddr::V4(Ipv4Addr::from_bits(u32::from_str_radix(address, 16).ok()?)),
    };
    Some(DestinationKey { address, port })
}
