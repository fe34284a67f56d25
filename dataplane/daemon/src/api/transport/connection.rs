//! One connection of a caller, whatever it came over.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
#[derive(Clone, Debug)]
pub struct Seats {
    counts: Arc<Counts>,
    most: usize,
}

#[derive(Debug, Default)]
struct Counts {
    taken: AtomicUsize,
    turned_away: AtomicUsize,
}

/// One of them, given back when dropped.
#[derive(Debug)]
pub struct Seat(Arc<Counts>);

impl Seats {
    /// So many.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { counts: Arc::default(), most }
    }

    /// A seat, if one is free.
    #[must_use]
    pub fn take(&self) -> Option<Seat> {
        let seat = Seat(Arc::clone(&self.counts));
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

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
