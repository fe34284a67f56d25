//! One netlink socket: send, acknowledge, dump, with the two ways of losing an answer noticed.
//!
//! Netlink work is done inside `sendmsg`, so a blocking socket is enough and keeps the order plain; the reconciler
//! calls this from a thread of its own. Dumps that the kernel interrupted (`NLM_F_DUMP_INTR`, or for nf_tables a
//! generation that moved) and answers lost to a full receive buffer (`ENOBUFS`) are repeated, never trusted.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use netlink_sys::SocketAddr;
use nix::sys::{
    socket::{getsockopt, setsockopt, sockopt},
    time::TimeVal,
};

use crate::{
    attr::Encoder,
    error::{Error, Refusal},
    message::{self, Acknowledgement, Message, flags, parse_messages},
};

/// Netlink families that we speak (linux/netlink.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `NETLINK_ROUTE`: links and addresses.
    Route,
    /// `NETLINK_NETFILTER`: nf_tables and conntrack.
    Netfilter,
}

impl Family {
    fn protocol(self) -> isize {
        match self {
            Self::Route => netlink_sys::protocols::NETLINK_ROUTE,
            Self::Netfilter => netlink_sys::protocols::NETLINK_NETFILTER,
        }
    }
}

/// Room for the largest batch that the engines send (20,000 elements of 100 bytes, doubled by the kernel's accounting).
const SEND_BUFFER: usize = 32 << 20;
/// Room for the errors of a refused batch and for a dump's datagrams while we decode.
const RECEIVE_BUFFER: usize = 8 << 20;
/// A dump's datagram is at most 32 KiB; acknowledgements may echo a message.
const DATAGRAM: usize = 1 << 17;
/// The kernel answers within `sendmsg`; only a wedged kernel or a lost answer makes us wait at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How often an interrupted dump is repeated before its caller is told.
const DUMP_ATTEMPTS: usize = 20;

/// What one datagram of a dump meant for the dump as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpStep {
    Continue,
    Interrupted,
}

/// A netlink socket of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    inner: netlink_sys::Socket,
    port: u32,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket with extended acknowledgements and as large buffers as we are allowed.
    ///
    /// # Errors
    /// [`Error::Socket`] if the kernel has no such family or the process may open no socket.
    pub fn open(family: Family) -> Result<Self, Error> {
        Self::open_with_groups(family, 0)
    }

    /// As [`Socket::open`], joined to multicast groups (`RTMGRP_*` bits).
    pub(crate) fn open_with_groups(family: Family, groups: u32) -> Result<Self, Error> {
        let fail = |source| Error::socket(format!("open a netlink socket of family {family:?}"), source);
        let mut inner = netlink_sys::Socket::new(family.protocol()).map_err(fail)?;
        inner.bind(&SocketAddr::new(0, groups)).map_err(fail)?;
        let mut address = SocketAddr::new(0, 0);
        inner.get_address(&mut address).map_err(fail)?;
        inner.set_ext_ack(true).map_err(fail)?;
        inner.set_cap_ack(true).map_err(fail)?;
        let timeout = TimeVal::new(ANSWER_TIMEOUT.as_secs() as i64, 0);
        setsockopt(&inner, sockopt::ReceiveTimeout, &timeout).map_err(|errno| fail(errno.into()))?;
        enlarge_buffers(&inner);
        Ok(Self { inner, port: address.port_number(), sequence: 1, buffer: Vec::with_capacity(DATAGRAM) })
    }

    /// Our port id: what the kernel records as the owner of a table.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Bytes that one send may have: all that we asked for, or what `net.core.wmem_max` left us.
    pub(crate) fn send_room(&self) -> usize {
        /// What the kernel keeps for itself (`netlink_sendmsg`).
        const OVERHEAD: usize = 32;
        getsockopt(&self.inner, sockopt::SndBuf).map_or(0, |size| size.saturating_sub(OVERHEAD))
    }

    /// Reserves `count` sequence numbers and returns the first.
    pub(crate) fn sequences(&mut self, count: u32) -> u32 {
        let first = self.sequence;
        self.sequence = self.sequence.wrapping_add(count).max(1);
        first
    }

    pub(crate) fn send(&self, bytes: &[u8], operation: &str) -> Result<(), Error> {
        let sent = retry_interrupted(|| self.inner.send_to(bytes, &SocketAddr::new(0, 0), 0));
        match sent {
            Ok(_) => Ok(()),
            Err(source) if source.raw_os_error() == Some(libc::EMSGSIZE) => {
                let what =
                    format!("{operation}: {} bytes exceed the send buffer (CAP_NET_ADMIN lifts it)", bytes.len());
                Err(Error::socket(what, source))
            }
            Err(source) => Err(Error::socket(operation, source)),
        }
    }

    /// Receives one datagram of the kernel's; anything that another process sent us is dropped.
    pub(crate) fn receive(&mut self, operation: &str) -> Result<&[u8], Error> {
        loop {
            self.buffer.clear();
            let (inner, buffer) = (&self.inner, &mut self.buffer);
            match retry_interrupted(|| inner.recv_from(buffer, 0)) {
                Ok((_, sender)) if sender.port_number() != 0 => {}
                Ok(_) => break,
                Err(source) if is_lost(&source) => {
                    // What is left would fill the buffer against the next answer.
                    self.drain(operation)?;
                    return Err(Error::AnswerLost { operation: operation.into() });
                }
                Err(source) => return Err(Error::socket(operation, source)),
            }
        }
        Ok(&self.buffer)
    }

    /// Joins a multicast group, by its number.
    pub(crate) fn join(&mut self, group: u32) -> Result<(), Error> {
        self.inner.add_membership(group).map_err(|source| Error::socket("join a netlink group", source))
    }

    /// Leaves it.
    pub(crate) fn leave(&mut self, group: u32) -> Result<(), Error> {
        self.inner.drop_membership(group).map_err(|source| Error::socket("leave a netlink group", source))
    }

    /// Empties the receive queue; whether there was anything, an overflow included.
    pub(crate) fn drain(&mut self, operation: &str) -> Result<bool, Error> {
        self.drain_each(operation, |_| {})
    }

    /// The same, with a look at each datagram of the kernel's.
    pub(crate) fn drain_each(&mut self, operation: &str, mut see: impl FnMut(&[u8])) -> Result<bool, Error> {
        let mut any = false;
        loop {
            self.buffer.clear();
            let (inner, buffer) = (&self.inner, &mut self.buffer);
            match retry_interrupted(|| inner.recv_from(buffer, libc::MSG_DONTWAIT)) {
                Ok((_, sender)) => {
                    any = true;
                    if sender.port_number() == 0 {
                        see(&self.buffer);
                    }
                }
                Err(source) => match source.raw_os_error() {
                    Some(libc::ENOBUFS) => any = true,
                    Some(libc::EAGAIN) => return Ok(any),
                    _ => return Err(Error::socket(operation, source)),
                },
            }
        }
    }

    /// Sends one request and waits for its acknowledgement. `fill` writes the body after the header.
    pub(crate) fn request(
        &mut self,
        kind: u16,
        flags: u16,
        operation: &str,
        fill: impl FnOnce(&mut Encoder),
    ) -> Result<(), Error> {
        let sequence = self.sequences(1);
        self.send(&encode(kind, flags | flags::ACK, sequence, fill), operation)?;
        loop {
            let datagram = self.receive(operation)?;
            for message in parse_messages(datagram).filter(|message| message.sequence == sequence) {
                match message.acknowledgement() {
                    Some(answer) if answer.errno == 0 => return Ok(()),
                    Some(answer) => return Err(refused(operation, answer)),
                    None => {}
                }
            }
        }
    }

    /// Sends one request and returns the body of its single answer.
    pub(crate) fn ask(
        &mut self,
        kind: u16,
        operation: &str,
        fill: impl FnOnce(&mut Encoder),
    ) -> Result<Vec<u8>, Error> {
        let sequence = self.sequences(1);
        self.send(&encode(kind, 0, sequence, fill), operation)?;
        loop {
            let datagram = self.receive(operation)?;
            let Some(message) = parse_messages(datagram).find(|message| message.sequence == sequence) else { continue };
            return match message.acknowledgement() {
                Some(answer) if answer.errno != 0 => Err(refused(operation, answer)),
                Some(_) => Err(Error::Malformed { operation: operation.into(), what: "empty answer" }),
                None => Ok(message.body.to_vec()),
            };
        }
    }

    /// Dumps until an attempt was not interrupted, or two in a row read the same. `collect` sees every message of an
    /// attempt, into a fresh `T`.
    ///
    /// For netfilter families the resource id is the generation read: if it moves within a dump, entries may be
    /// missing though the kernel never sets `NLM_F_DUMP_INTR` (measured on 6.18), so that counts as interrupted too.
    /// Others may commit without pause to tables of their own, though, faster than we can read: then equal is enough.
    pub(crate) fn dump<T: Default + PartialEq>(
        &mut self,
        kind: u16,
        operation: &str,
        fill: impl Fn(&mut Encoder),
        mut collect: impl FnMut(&mut T, &Message<'_>),
    ) -> Result<T, Error> {
        let mut last = None;
        for _ in 0..DUMP_ATTEMPTS {
            let mut collected = T::default();
            match self.dump_once(kind, operation, &fill, |message| collect(&mut collected, message)) {
                Ok(DumpStep::Continue) => return Ok(collected),
                Ok(DumpStep::Interrupted) if last.as_ref() == Some(&collected) => return Ok(collected),
                Ok(DumpStep::Interrupted) => last = Some(collected),
                Err(Error::AnswerLost { .. }) => last = None,
                Err(error) => return Err(error),
            }
        }
        Err(Error::Interrupted { operation: operation.into(), attempts: DUMP_ATTEMPTS })
    }

    /// One attempt of a dump; the answer is whether it can be trusted to be complete.
    pub(crate) fn dump_once(
        &mut self,
        kind: u16,
        operation: &str,
        fill: impl Fn(&mut Encoder),
        mut see: impl FnMut(&Message<'_>),
    ) -> Result<DumpStep, Error> {
        const SUBSYSTEM_NFTABLES: u16 = 10;
        let sequence = self.sequences(1);
        self.send(&encode(kind, flags::DUMP, sequence, fill), operation)?;
        let mut step = DumpStep::Continue;
        let mut generation = None;
        loop {
            let datagram = self.receive(operation)?;
            for message in parse_messages(datagram).filter(|message| message.sequence == sequence) {
                if message.flags & flags::DUMP_INTERRUPTED != 0 {
                    step = DumpStep::Interrupted;
                }
                match message.acknowledgement() {
                    Some(answer) if answer.errno != 0 => return Err(refused(operation, answer)),
                    Some(_) => return Ok(step),
                    None if message.kind == message::DONE => return dump_end(&message, operation).map(|()| step),
                    None => {}
                }
                if message.kind >> 8 == SUBSYSTEM_NFTABLES {
                    let read = message.resource();
                    if *generation.get_or_insert(read) != read {
                        step = DumpStep::Interrupted;
                    }
                }
                see(&message);
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

fn encode(kind: u16, flags: u16, sequence: u32, fill: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut encoder = Encoder::new();
    let start = message::begin(&mut encoder, kind, flags, sequence);
    fill(&mut encoder);
    message::end(&mut encoder, start);
    encoder.into_bytes()
}

fn refused(operation: &str, answer: Acknowledgement) -> Error {
    Error::Refused(Box::new(Refusal {
        operation: operation.into(),
        object: None,
        operation_index: None,
        element_index: None,
        errno: answer.errno,
        text: answer.text,
        more: 0,
    }))
}

/// `NLMSG_DONE` carries the error of a dump that failed half-way.
fn dump_end(message: &Message<'_>, operation: &str) -> Result<(), Error> {
    match message::parse_acknowledgement(0, message.body) {
        Some(answer) if answer.errno > 0 => Err(refused(operation, answer)),
        _ => Ok(()),
    }
}

/// `SO_*BUFFORCE` passes the sysctl limit but needs CAP_NET_ADMIN in the *initial* user namespace; without it we take
/// what `net.core.[rw]mem_max` gives, and [`Socket::send_room`] says how much that is.
fn enlarge_buffers(socket: &netlink_sys::Socket) {
    if setsockopt(socket, sockopt::SndBufForce, &SEND_BUFFER).is_err() {
        let _ = setsockopt(socket, sockopt::SndBuf, &SEND_BUFFER);
    }
    if setsockopt(socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        let _ = setsockopt(socket, sockopt::RcvBuf, &RECEIVE_BUFFER);
    }
}

/// A full receive buffer, or an answer that did not come in [`ANSWER_TIMEOUT`].
fn is_lost(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN))
}

fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
