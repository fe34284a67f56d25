//! Clients on any host of the lab.
//!
//! [`Client::ask`] is one new flow with one question; [`Client::open`] keeps the flow, for what must survive a change.

use std::cell::RefCell;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use socket2::Socket;

use super::{Outcome, Proto, Tally, socket};
use crate::lab::Host;

/// Long enough for a busy machine, where an answer is expected.
const PATIENCE: Duration = Duration::from_secs(4);

/// Where and how flows begin.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    host: &'a Host,
    proto: Proto,
    source: Option<IpAddr>,
    port: u16,
    patience: Duration,
    abort: bool,
}

impl<'a> Client<'a> {
    /// A client on `host`, with whatever source address and port the kernel picks.
    #[must_use]
    pub const fn new(host: &'a Host, proto: Proto) -> Self {
        Self { host, proto, source: None, port: 0, patience: PATIENCE, abort: false }
    }

    /// From this source address.
    #[must_use]
    pub const fn from(self, source: IpAddr) -> Self {
        Self { source: Some(source), ..self }
    }

    /// From this source port, again and again.
    #[must_use]
    pub const fn port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    /// Gives up after this long.
    #[must_use]
    pub const fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Ends TCP connections by a reset (SO_LINGER 0), so that a fixed port is free again at once.
    #[must_use]
    pub const fn abortive(self) -> Self {
        Self { abort: true, ..self }
    }

    /// One new flow, one question.
    ///
    /// # Errors
    /// When this host of the lab cannot be used; what happens to the traffic is an [`Outcome`].
    pub fn ask(&self, to: (IpAddr, u16)) -> Result<Outcome> {
        Ok(match self.open(to)? {
            Ok(flow) => flow.ask(),
            Err(outcome) => outcome,
        })
    }

    /// `count` new flows, one after the other.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn ask_many(&self, count: usize, to: (IpAddr, u16)) -> Result<Tally> {
        (0..count).map(|_| self.ask(to)).collect()
    }

    /// A flow that stays: a TCP connection, or a connected UDP socket.
    ///
    /// # Errors
    /// As [`Client::ask`]; an attempt that came to nothing is the inner error.
    pub fn open(&self, to: (IpAddr, u16)) -> Result<Result<Flow, Outcome>> {
        let to = SocketAddr::from(to);
        let socket = self.host.enter(|| socket(to, self.proto))??;
        let begin = Instant::now();
        let connected = self.connect(&socket, to);
        Ok(match connected {
            Ok(()) => Ok(Flow { socket, proto: self.proto, to, begin, spare: RefCell::default() }),
            Err(error) => Err(Outcome::from_error(&error, begin.elapsed())),
        })
    }

    fn connect(&self, socket: &Socket, to: SocketAddr) -> io::Result<()> {
        let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let source = self.source.unwrap_or(any);
        match (self.proto, self.port) {
            (Proto::Tcp, 0) if self.source.is_none() => {}
            (Proto::Udp, 0) => bind_fresh_port(socket, source)?,
            (_, port) => socket.bind(&SocketAddr::new(source, port).into())?,
        }
        if self.abort && self.proto == Proto::Tcp {
            socket.set_linger(Some(Duration::ZERO))?;
        }
        socket.connect_timeout(&to.into(), self.patience)?;
        socket.set_nonblocking(false)?;
        if self.proto == Proto::Tcp {
            socket.set_tcp_nodelay(true)?;
        }
        socket.set_read_timeout(Some(self.patience))?;
        socket.set_write_timeout(Some(self.patience))
    }
}

/// A flow from one client.
#[derive(Debug)]
pub struct Flow {
    socket: Socket,
    proto: Proto,
    to: SocketAddr,
    begin: Instant,
    /// Bytes that came after the last line read.
    spare: RefCell<Vec<u8>>,
}

impl Flow {
    /// Asks who is there.
    pub fn ask(&self) -> Outcome {
        self.request("ECHO hello")
    }

    /// Sends one line and reads the answer's.
    pub fn request(&self, line: &str) -> Outcome {
        let begin = if line == "ECHO hello" { self.begin } else { Instant::now() };
        let answer = self.send(line).and_then(|()| self.line());
        match answer.as_deref().map(parse) {
            Ok(Some((by, seen, _))) => Outcome::Answered { by, seen, after: begin.elapsed() },
            Ok(None) => Outcome::Reset,
            Err(error) => Outcome::from_error(error, begin.elapsed()),
        }
    }

    /// Sends one line and expects nothing.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn send(&self, line: &str) -> io::Result<()> {
        (&self.socket).write_all(format!("{line}\n").as_bytes())
    }

    /// Reads one line (TCP) or one datagram (UDP).
    ///
    /// # Errors
    /// Those of the socket; the end of the stream before a line is `UnexpectedEof`.
    pub fn line(&self) -> io::Result<String> {
        let mut spare = self.spare.borrow_mut();
        let mut chunk = [0; 4096];
        loop {
            if let Some(end) = spare.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = spare.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            match (&self.socket).read(&mut chunk)? {
                0 if self.proto == Proto::Tcp => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => spare.extend_from_slice(&chunk[..length]),
            }
        }
    }

    /// The rest of the stream, after the lines that were read.
    pub fn rest(&self) -> impl io::Read {
        io::Cursor::new(self.spare.take()).chain(&self.socket)
    }

    /// Where it was opened to.
    #[must_use]
    pub const fn to(&self) -> SocketAddr {
        self.to
    }

    /// The socket itself, for what has no method: half-close, big transfers, buffer sizes.
    #[must_use]
    pub const fn socket(&self) -> &Socket {
        &self.socket
    }
}

/// Binds to a port that no UDP client had for long. The kernel picks at random and soon repeats itself; whoever meets
/// the same addresses and ports again rightly takes it for the same flow.
fn bind_fresh_port(socket: &Socket, source: IpAddr) -> io::Result<()> {
    /// Below what Linux gives out by itself (32768 and up), above the lab's node ports.
    const PORTS: std::ops::Range<u16> = 31_000..32_700;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in PORTS {
        let port = PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start);
        match socket.bind(&SocketAddr::new(source, port).into()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Takes an answer apart: who, the source that was seen, the rest.
#[must_use]
pub fn parse(line: &str) -> Option<(String, SocketAddr, String)> {
    let mut words = line.splitn(3, ' ');
    let (name, seen) = (words.next()?, words.next()?);
    Some((name.to_owned(), SocketAddr::from_str(seen).ok()?, words.next().unwrap_or_default().to_owned()))
}
