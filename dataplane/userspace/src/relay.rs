//! Carrying a TCP connection's bytes both ways until both ends have finished.
//!
//! Each direction reads into a buffer that the worker's connections share and writes at once; only what the other side
//! does not take is kept. A read that fills the buffer says that there is more: the direction then moves bytes by
//! [`crate::splice`] until it has nothing left to move. So an idle connection holds no buffer and no pipe.
//!
//! An end of stream is passed on as one (half-close), and a reset as a reset.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::budget::Budget;
use crate::served::Target;
use crate::splice::Pipe;
use crate::stats::Counter;

/// The shared read buffer: short exchanges fit, and what does not is worth a pipe.
const BUFFER_BYTES: usize = 16 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_BYTES].into());
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Both sides finished.
    Finished,
    /// One side reset it, or it broke.
    Broken,
    /// Neither side said anything for the service's idle time-out.
    Idle,
    /// The endpoint's drain is over, or the proxy stops.
    Cut,
}

/// What a relay needs to know of its flow.
pub(crate) struct Terms<'a> {
    pub(crate) target: &'a Target,
    /// [`Target::cuts`] when the flow began.
    pub(crate) cuts: u32,
    pub(crate) idle: Option<Duration>,
    pub(crate) pipes: &'a Arc<Budget>,
    /// Bytes from the client, counted at each of these.
    pub(crate) bytes_in: [&'a Counter; 2],
    /// Bytes to the client.
    pub(crate) bytes_out: [&'a Counter; 2],
}

/// Relays until the end, and leaves both sockets as that end demands: dropping them finishes or resets.
pub(crate) async fn relay(client: &mut TcpStream, server: &mut TcpStream, terms: &Terms<'_>) -> End {
    let mut cut = pin!(terms.target.cut_wakes.notified());
    let mut idle = pin!(terms.idle.map(|idle| sleep_until(Instant::now() + idle)));
    let mut forward = Direction::default();
    let mut back = Direction::default();
    let mut first = true;
    let end = poll_fn(|cx| {
        // Registered once, for the wake; what decides is the number, which costs no lock.
        if first && cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(End::Cut);
        }
        first = false;
        if terms.target.cuts() != terms.cuts {
            return Poll::Ready(End::Cut);
        }
        // Who finishes last need not say so: the drop of both sockets does.
        let to_server = forward.poll(cx, client, server, back.finished, terms.pipes);
        let to_client = back.poll(cx, server, client, forward.finished, terms.pipes);
        let moved = forward.count(terms.bytes_in) + back.count(terms.bytes_out);
        match (to_server, to_client) {
            (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => return Poll::Ready(End::Broken),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => {
                return Poll::Ready(if forward.broken || back.broken { End::Broken } else { End::Finished });
            }
            _ => {}
        }
        match (terms.idle, idle.as_mut().as_pin_mut()) {
            (Some(limit), Some(timer)) => poll_idle(cx, timer, limit, moved != 0),
            _ => Poll::Pending,
        }
    })
    .await;
    if !matches!(end, End::Finished) {
        // The drop that follows sends a reset, to a side that is gone too: nothing is left to say to it.
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
    end
}

fn poll_idle(cx: &mut Context<'_>, mut timer: Pin<&mut Sleep>, limit: Duration, moved: bool) -> Poll<End> {
    if moved {
        timer.as_mut().reset(Instant::now() + limit);
    }
    timer.poll(cx).map(|()| End::Idle)
}

/// Which socket an error is of.
enum Fault {
    Read(io::Error),
    Write,
}

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    /// Read and not yet taken by the other side.
    left: Vec<u8>,
    pipe: Option<Pipe>,
    ended: bool,
    finished: bool,
    /// The other side takes nothing any more.
    broken: bool,
    /// Not yet counted.
    moved: u64,
}

impl Direction {
    /// Moves what can be moved. Ready when the end of the stream has been passed on, or cannot be: then the opposite
    /// direction may still bring the last words of the side that is gone. An error is one of reading.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        is_last: bool,
        pipes: &Arc<Budget>,
    ) -> Poll<io::Result<()>> {
        while !self.finished {
            let outcome = if self.has_rest() {
                ready!(self.poll_rest(cx, to)).map_err(|_| Fault::Write)
            } else if self.ended {
                self.return_pipe();
                self.finished = true;
                if is_last { Ok(()) } else { ready!(Pin::new(&mut *to).poll_shutdown(cx)).map_err(|_| Fault::Write) }
            } else if self.pipe.is_some() {
                ready!(self.poll_splice(cx, from)).map_err(Fault::Read)
            } else {
                ready!(self.poll_copy(cx, from, to, pipes))
            };
            match outcome {
                Ok(()) => {}
                Err(Fault::Read(error)) => return Poll::Ready(Err(error)),
                Err(Fault::Write) => {
                    self.broken = true;
                    self.finished = true;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn has_rest(&self) -> bool {
        !self.left.is_empty() || self.pipe.as_ref().is_some_and(|pipe| !pipe.is_empty())
    }

    /// Hands over what was read before.
    fn poll_rest(&mut self, cx: &mut Context<'_>, to: &mut TcpStream) -> Poll<io::Result<()>> {
        if let Some(pipe) = self.pipe.as_mut().filter(|pipe| !pipe.is_empty()) {
            ready!(pipe.poll_drain(cx, to))?;
        }
        while !self.left.is_empty() {
            let taken = ready!(Pin::new(&mut *to).poll_write(cx, &self.left))?;
            self.left.drain(..taken);
            if self.left.is_empty() {
                self.left = Vec::new();
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_splice(&mut self, cx: &mut Context<'_>, from: &TcpStream) -> Poll<io::Result<()>> {
        let Some(pipe) = self.pipe.as_mut() else { return Poll::Ready(Ok(())) };
        match pipe.poll_fill(cx, from) {
            Poll::Pending => {
                self.return_pipe();
                Poll::Pending
            }
            Poll::Ready(Ok(moved)) => {
                self.moved += moved as u64;
                self.ended = moved == 0;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }

    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        pipes: &Arc<Budget>,
    ) -> Poll<Result<(), Fault>> {
        BUFFER.with_borrow_mut(|buffer| {
            let mut read = ReadBuf::new(buffer);
            ready!(Pin::new(from).poll_read(cx, &mut read)).map_err(Fault::Read)?;
            let bytes = read.filled();
            self.moved += bytes.len() as u64;
            if bytes.is_empty() {
                self.ended = true;
                return Poll::Ready(Ok(()));
            }
            if bytes.len() == BUFFER_BYTES {
                self.pipe = Pipe::borrow(pipes);
            }
            let taken = match Pin::new(to).poll_write(cx, bytes) {
                Poll::Ready(taken) => taken.map_err(|_| Fault::Write)?,
                Poll::Pending => 0,
            };
            self.left.extend_from_slice(&bytes[taken..]);
            Poll::Ready(Ok(()))
        })
    }

    fn return_pipe(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            pipe.give_back();
        }
    }

    /// Adds what was moved since the last time to these counters, and says how much it was.
    fn count(&mut self, counters: [&Counter; 2]) -> u64 {
        let moved = std::mem::take(&mut self.moved);
        if moved != 0 {
            for counter in counters {
                counter.add(moved);
            }
        }
        moved
    }
}
