//! One connection of a caller, whatever it came over.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::authority::AuthorityFilter;
use crate::api::identity::Peer;

/// Bytes to and from a caller.
#[derive(Debug)]
enum Bytes {
    Unix(UnixStream, Box<AuthorityFilter>),
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    InProcess(DuplexStream),
}

/// A connection whose other end is known.
#[derive(Debug)]
pub struct Connection {
    bytes: Bytes,
    peer: Peer,
    _seat: Option<Seat>,
}

impl Connection {
    /// Over the unix socket; the authority of its requests is made acceptable.
    #[must_use]
    pub fn unix(stream: UnixStream, peer: Peer, seat: Seat) -> Self {
        Self { bytes: Bytes::Unix(stream, Box::default()), peer, _seat: Some(seat) }
    }

    /// Over TCP, unprotected.
    #[must_use]
    pub fn tcp(stream: TcpStream, peer: Peer, seat: Seat) -> Self {
        Self { bytes: Bytes::Tcp(stream), peer, _seat: Some(seat) }
    }

    /// Over TLS, the client's certificate verified.
    #[must_use]
    pub fn tls(stream: TlsStream<TcpStream>, peer: Peer, seat: Seat) -> Self {
        Self { bytes: Bytes::Tls(Box::new(stream)), peer, _seat: Some(seat) }
    }

    /// From the program that holds the daemon as a library; not counted.
    #[must_use]
    pub fn in_process(stream: DuplexStream) -> Self {
        Self { bytes: Bytes::InProcess(stream), peer: Peer::InProcess, _seat: None }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.bytes {
            Bytes::Unix(stream, filter) => {
                let before = buf.filled().len();
                let poll = Pin::new(stream).poll_read(cx, buf);
                filter.pass(&mut buf.filled_mut()[before..]);
                poll
            }
            Bytes::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Bytes::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Bytes::InProcess(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.bytes {
            Bytes::Unix(stream, _) => Pin::new(stream).poll_write(cx, buf),
            Bytes::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Bytes::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Bytes::InProcess(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.bytes {
            Bytes::Unix(stream, _) => Pin::new(stream).poll_flush(cx),
            Bytes::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Bytes::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Bytes::InProcess(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.bytes {
            Bytes::Unix(stream, _) => Pin::new(stream).poll_shutdown(cx),
            Bytes::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Bytes::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Bytes::InProcess(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// How many connections there may be, and are. Clones count together.
///
/// One caller, a process or the holder of a certificate, is never given the last quarter: whatever it leaks, the others
/// get in.
#[derive(Clone, Debug)]
pub struct Seats {
    counts: Arc<Counts>,
    most: usize,
}

#[derive(Debug, Default)]
struct Counts {
    taken: AtomicUsize,
    turned_away: AtomicUsize,
    by_caller: Mutex<HashMap<Caller, usize>>,
}

/// Whose connections count together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Caller {
    Process(i32),
    Certificate(Arc<[String]>),
    Loopback,
}

impl Caller {
    fn of(peer: &Peer) -> Option<Self> {
        match peer {
            // One that we cannot see is not told from others.
            Peer::Process { pid, .. } => (*pid > 0).then_some(Self::Process(*pid)),
            Peer::Certificate { names } => Some(Self::Certificate(Arc::clone(names))),
            Peer::Loopback(_) => Some(Self::Loopback),
            Peer::InProcess => None,
        }
    }
}

/// One of them, given back when dropped.
#[derive(Debug)]
pub struct Seat {
    counts: Arc<Counts>,
    most: usize,
    caller: Option<Caller>,
}

impl Seats {
    /// So many.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { counts: Arc::default(), most }
    }

    /// A seat, if one is free.
    #[must_use]
    pub fn take(&self) -> Option<Seat> {
        let seat = Seat { counts: Arc::clone(&self.counts), most: self.most, caller: None };
        if self.counts.taken.fetch_add(1, Ordering::Relaxed) < self.most {
            return Some(seat);
        }
        self.counts.turned_away.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// How many are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.counts.taken.load(Ordering::Relaxed)
    }

    /// How many connections were closed at once because there was none.
    #[must_use]
    pub fn turned_away(&self) -> usize {
        self.counts.turned_away.load(Ordering::Relaxed)
    }
}

impl Counts {
    fn by_caller(&self) -> MutexGuard<'_, HashMap<Caller, usize>> {
        self.by_caller.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Who sits there is known now. Absent: it has its share already, and is turned away.
    #[must_use]
    pub fn of(mut self, peer: &Peer) -> Option<Self> {
        let Some(caller) = Caller::of(peer) else { return Some(self) };
        let mut by_caller = self.counts.by_caller();
        let taken = by_caller.entry(caller.clone()).or_default();
        if *taken >= self.most - self.most / 4 {
            drop(by_caller);
            self.counts.turned_away.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *taken += 1;
        drop(by_caller);
        self.caller = Some(caller);
        Some(self)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.counts.taken.fetch_sub(1, Ordering::Relaxed);
        if let Some(caller) = self.caller.take() {
            let mut by_caller = self.counts.by_caller();
            if let Some(taken) = by_caller.get_mut(&caller) {
                *taken -= 1;
                if *taken == 0 {
                    by_caller.remove(&caller);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_leaks_connections_leaves_room_for_others() {
        let process = |pid| Peer::Process { uid: 0, gid: 0, pid, command: Arc::from("leak") };
        let seats = Seats::new(8);
        let sit = |pid| seats.take().and_then(|seat| seat.of(&process(pid)));
        let mut leaked: Vec<_> = (0..6).map(|_| sit(1).unwrap()).collect();
        assert!(sit(1).is_none());
        assert_eq!((seats.taken(), seats.turned_away()), (6, 1));
        let other = sit(2);
        assert!(other.is_some());
        leaked.pop();
        assert!(sit(1).is_some(), "given back");
        drop((leaked, other));
        assert_eq!(seats.taken(), 0);
        assert!(seats.counts.by_caller().is_empty());
    }
}
