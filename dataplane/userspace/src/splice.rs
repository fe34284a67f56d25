//! Moving bytes from socket to socket through a pipe, in the kernel, without copying them to user space and back.
//!
//! A pipe is lent to one direction of one connection while that direction is busy, and goes back to its worker's pool
//! when the direction has nothing to move: so the number of pipes follows the number of busy transfers, not that of
//! connections.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe2;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::budget::{Budget, Permit};

/// Wanted capacity of a pipe. The kernel's default is 64 KiB; what it grants beyond is bounded per user.
const PIPE_BYTES: usize = 512 * 1024;
/// Idle pipes kept per worker.
const POOL_MAX: usize = 64;

thread_local! {
    static POOL: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// A pipe with what is in it.
pub(crate) struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    capacity: usize,
    held: usize,
    _permit: Permit,
}

impl Pipe {
    /// One from this worker's pool, else a new one; absent if the descriptor budget or the kernel has none.
    pub(crate) fn borrow(budget: &Arc<Budget>) -> Option<Self> {
        if let Some(pipe) = POOL.with_borrow_mut(Vec::pop) {
            return Some(pipe);
        }
        let permit = budget.take(2)?;
        let (out, into) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).ok()?;
        let wanted = i32::try_from(PIPE_BYTES).ok()?;
        // Refused beyond the user's share of pipe memory: the default is good enough then.
        let granted = fcntl(&into, FcntlArg::F_SETPIPE_SZ(wanted)).or_else(|_| fcntl(&into, FcntlArg::F_GETPIPE_SZ));
        let capacity = granted.ok().and_then(|bytes| usize::try_from(bytes).ok())?;
        Some(Self { out, into, capacity, held: 0, _permit: permit })
    }

    /// Back to the pool. A pipe that still holds bytes is closed instead: they belong to nobody else.
    pub(crate) fn give_back(self) {
        if self.held == 0 {
            POOL.with_borrow_mut(|pool| {
                if pool.len() < POOL_MAX {
                    pool.push(self);
                }
            });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Fills the empty pipe from a socket; 0 is the end of its stream. Only ever called on an empty pipe: EAGAIN then
    /// means that the socket has nothing, not that the pipe is full.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, from: &TcpStream) -> Poll<io::Result<usize>> {
        loop {
            ready!(from.poll_read_ready(cx))?;
            match from.try_io(Interest::READABLE, || move_bytes(from, &self.into, self.capacity)) {
                Ok(moved) => {
                    self.held += moved;
                    return Poll::Ready(Ok(moved));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Empties the pipe into a socket.
    pub(crate) fn poll_drain(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<()>> {
        while self.held != 0 {
            ready!(to.poll_write_ready(cx))?;
            match to.try_io(Interest::WRITABLE, || move_bytes(&self.out, to, self.held)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(moved) => self.held -= moved,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn move_bytes(from: impl std::os::fd::AsFd, to: impl std::os::fd::AsFd, most: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    loop {
        match splice(&from, None, &to, None, most, flags) {
            Err(nix::Error::EINTR) => {}
            other => return other.map_err(io::Error::from),
        }
    }
}
