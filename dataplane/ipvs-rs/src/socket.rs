//! One blocking netlink socket. The kernel does what it is asked inside `sendmsg`, so there is nothing to wait for but a
//! lost answer.

use std::io;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvmsg, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

use crate::error::Error;

/// The kernel's largest datagram of a dump is 32 KiB.
const DATAGRAM: usize = 64 << 10;
/// Room for more refusals than one send can bring; needs the capability that IPVS needs anyway.
const RECEIVE_BUFFER: usize = 1 << 20;
/// Only a lost answer lets us wait at all.
const PATIENCE_SECONDS: i64 = 5;

/// What a receive came to.
#[derive(Debug)]
pub(crate) enum Received<'a> {
    /// A datagram of the kernel's.
    Datagram(&'a [u8]),
    /// The receive buffer was full, and answers were lost.
    Overflow,
    /// There is nothing (any more).
    Nothing,
}

/// A generic netlink socket of the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    buffer: Box<[u8]>,
    sequence: u32,
}

impl Socket {
    pub(crate) fn open() -> Result<Self, Error> {
        let fail = |source: Errno| Error::socket("open a generic netlink socket", source);
        let kind = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, kind, SockProtocol::NetlinkGeneric).map_err(fail)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).map_err(fail)?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(PATIENCE_SECONDS, 0)).map_err(fail)?;
        // Both only help: an older kernel's refusals carry fewer words and more bytes, a small buffer overflows earlier.
        let _ = set_netlink_option(fd.as_fd(), libc::NETLINK_CAP_ACK);
        let _ = set_netlink_option(fd.as_fd(), libc::NETLINK_EXT_ACK);
        let _ = setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER);
        Ok(Self { fd, buffer: vec![0; DATAGRAM].into(), sequence: 1 })
    }

    /// Reserves so many consecutive sequence numbers, none of them 0, and returns the first.
    pub(crate) fn sequences(&mut self, count: usize) -> u32 {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if self.sequence.checked_add(count).is_none() {
            self.sequence = 1;
        }
        let first = self.sequence;
        self.sequence += count;
        first
    }

    pub(crate) fn send(&self, datagram: &[u8]) -> Result<(), Error> {
        let kernel = NetlinkAddr::new(0, 0);
        let sent = retry(|| sendto(self.fd.as_raw_fd(), datagram, &kernel, MsgFlags::empty()));
        sent.map(drop).map_err(|source| Error::socket("send to the kernel", source))
    }

    /// Waits for a datagram of the kernel's; what other processes send is dropped.
    pub(crate) fn receive(&mut self) -> Result<Received<'_>, Error> {
        self.receive_with(MsgFlags::empty())
    }

    /// Takes a datagram if one is there.
    pub(crate) fn poll(&mut self) -> Result<Received<'_>, Error> {
        self.receive_with(MsgFlags::MSG_DONTWAIT)
    }

    fn receive_with(&mut self, flags: MsgFlags) -> Result<Received<'_>, Error> {
        let fail = |source: io::Error| Error::socket("receive from the kernel", source);
        loop {
            let mut parts = [IoSliceMut::new(&mut self.buffer)];
            let received = retry(|| {
                recvmsg::<NetlinkAddr>(self.fd.as_raw_fd(), &mut parts, None, flags).map(|received| {
                    let from_kernel = received.address.is_none_or(|sender| sender.pid() == 0);
                    (received.bytes, from_kernel, received.flags.contains(MsgFlags::MSG_TRUNC))
                })
            });
            match received {
                Ok((_, false, _)) => {}
                Ok((_, true, true)) => return Err(fail(io::Error::other("a datagram larger than any should be"))),
                Ok((length, true, false)) => return Ok(Received::Datagram(&self.buffer[..length])),
                Err(Errno::ENOBUFS) => return Ok(Received::Overflow),
                Err(Errno::EAGAIN) => return Ok(Received::Nothing),
                Err(source) => return Err(fail(source.into())),
            }
        }
    }

    /// Empties the queue; a dump that was left half-way comes to its end by that.
    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        loop {
            if matches!(self.poll()?, Received::Nothing) {
                return Ok(());
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn retry<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// Switches a boolean option of `SOL_NETLINK` on, which nix has no names for.
#[allow(unsafe_code, reason = "setsockopt of an option that nix does not know")]
fn set_netlink_option(fd: BorrowedFd<'_>, option: libc::c_int) -> nix::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as it is borrowed, and the value is an int that outlives the call.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_NETLINK, option, std::ptr::from_ref(&on).cast(), length) };
    Errno::result(result).map(drop)
}
