//! The node's own addresses, and a signal when they change (linux/rtnetlink.h, linux/if_addr.h).
//!
//! The monitor says *that* something changed, never what: after a lost message (`ENOBUFS`) only a new list is true,
//! so a new list is what every change asks for.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    attr::{Attrs, Encoder, read_u32},
    error::Error,
    socket::{Family, Socket},
};

/// `RTM_GETLINK`
const GET_LINK: u16 = 18;
/// `RTM_GETADDR`
const GET_ADDRESS: u16 = 22;
/// Size of `struct ifinfomsg`.
const LINK_HEAD: usize = 16;
/// Size of `struct ifaddrmsg`.
const ADDRESS_HEAD: usize = 8;
/// `RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR`
const ADDRESS_GROUPS: u32 = 0x10 | 0x100;

/// An address of this node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeAddress {
    /// The address itself.
    pub address: IpAddr,
    /// Length of its network's prefix.
    pub prefix: u8,
    /// Index of the interface that has it.
    pub interface: u32,
    /// Name of that interface; empty if it went while we read.
    pub interface_name: String,
    /// Whether the kernel answers on it: false while duplicate address detection runs, and after it failed.
    pub usable: bool,
}

/// A conversation about addresses in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Addresses {
    socket: Socket,
}

impl Addresses {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Socket`] if the process may open no socket.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(Family::Route)? })
    }

    /// Every address of the node, sorted.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn list(&mut self) -> Result<Vec<NodeAddress>, Error> {
        let names = self.links()?;
        let request = |m: &mut Encoder| m.raw(&[0; ADDRESS_HEAD]);
        let mut list = self.socket.dump(GET_ADDRESS, "list addresses", request, |list: &mut Vec<NodeAddress>, m| {
            list.extend(parse_address(m.body));
        })?;
        for address in &mut list {
            address.interface_name = names.get(&address.interface).cloned().unwrap_or_default();
        }
        list.sort();
        Ok(list)
    }

    /// Names of the interfaces, by index.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn links(&mut self) -> Result<BTreeMap<u32, String>, Error> {
        let request = |m: &mut Encoder| m.raw(&[0; LINK_HEAD]);
        self.socket.dump(GET_LINK, "list interfaces", request, |links: &mut BTreeMap<u32, String>, m| {
            links.extend(parse_link(m.body));
        })
    }
}

/// Reads the body of a `RTM_NEWADDR`; the interface's name is not in it.
#[must_use]
pub fn parse_address(body: &[u8]) -> Option<NodeAddress> {
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    const FLAGS: u16 = 8;
    const TENTATIVE: u32 = 0x40;
    const OPTIMISTIC: u32 = 0x04;
    const DUPLICATE: u32 = 0x08;
    let attrs = Attrs::new(body.get(ADDRESS_HEAD..)?);
    // On point-to-point links ADDRESS is the peer's and LOCAL ours.
    let bytes = attrs.get(LOCAL).or_else(|| attrs.get(ADDRESS))?;
    let address = match i32::from(body[0]) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => return None,
    };
    let flags = attrs.ne32(FLAGS).unwrap_or_else(|| u32::from(body[2]));
    let waiting = flags & TENTATIVE != 0 && flags & OPTIMISTIC == 0;
    Some(NodeAddress {
        address,
        prefix: body[1],
        interface: read_u32(body, 4)?,
        interface_name: String::new(),
        usable: !waiting && flags & DUPLICATE == 0,
    })
}

/// Reads the body of a `RTM_NEWLINK`: index and name.
#[must_use]
pub fn parse_link(body: &[u8]) -> Option<(u32, String)> {
    const NAME: u16 = 3;
    Some((read_u32(body, 4)?, Attrs::new(body.get(LINK_HEAD..)?).string(NAME)?))
}

/// Says when addresses of the node have changed.
#[derive(Debug)]
pub struct AddressMonitor {
    socket: Socket,
}

impl AddressMonitor {
    /// Opens it; open it before the first list, so that no change falls between.
    ///
    /// # Errors
    /// [`Error::Socket`] if the process may open no socket.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open_with_groups(Family::Route, ADDRESS_GROUPS)? })
    }

    /// Waits at most `timeout` for a change; many that come together are one. False: nothing changed.
    ///
    /// # Errors
    /// [`Error::Socket`] if the socket fails.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        let operation = "wait for a change of addresses";
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => Ok(false),
            Ok(_) => self.socket.drain(operation),
            Err(errno) => Err(Error::socket(operation, errno.into())),
        }
    }
}

impl AsFd for AddressMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
