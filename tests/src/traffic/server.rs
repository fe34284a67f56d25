//! Back ends that say who they are.
//!
//! Every request is one line, every answer begins with `NAME SOURCE`:
//!
//! | line | TCP | UDP |
//! |---|---|---|
//! | `ECHO text` | `NAME SOURCE text`, and waits for the next line | one datagram |
//! | `WAIT ms` | the same after a pause | the same |
//! | `SUM` | reads to the end of the stream, then `NAME SOURCE bytes hash`: needs half-close | – |
//! | `GIVE n` | `NAME SOURCE n`, then `n` bytes of [`pattern`], then the end | – |
//! | `BYE` | closes | – |

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use socket2::{SockRef, Socket};

use super::{Proto, socket};
use crate::lab::Host;

/// A server on one address, port and protocol. Dropping it closes the port and every connection.
#[derive(Debug)]
pub struct Server {
    name: String,
    address: SocketAddr,
    socket: Socket,
    shared: Arc<Shared>,
}

/// What the server's threads write and the test reads.
#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    /// Connections accepted (TCP) or datagrams read (UDP).
    served: AtomicU64,
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, TcpStream>>,
}

impl Server {
    /// As a name: "call yourself by the address that was called". For one TCP server on many addresses.
    pub const BY_ADDRESS: &str = "";

    /// Serves on `host`, named `name`.
    ///
    /// # Errors
    /// When the address cannot be bound there.
    pub fn start(host: &Host, name: &str, address: (IpAddr, u16), proto: Proto) -> Result<Self> {
        let address = SocketAddr::from(address);
        let socket = host
            .enter(|| -> io::Result<Socket> {
                let socket = socket(address, proto)?;
                socket.bind(&address.into())?;
                if proto == Proto::Tcp {
                    socket.listen(4096)?;
                }
                Ok(socket)
            })?
            .with_context(|| format!("{name} on {address} of {}", host.name()))?;
        let shared = Arc::new(Shared::default());
        let (worker, for_worker, name_of) = (socket.try_clone()?, Arc::clone(&shared), name.to_owned());
        thread::Builder::new().name(name.to_owned()).spawn(move || match proto {
            Proto::Tcp => accept(&worker.into(), &name_of, &for_worker),
            Proto::Udp => reply(&worker.into(), &name_of, &for_worker),
        })?;
        Ok(Self { name: name.to_owned(), address, socket, shared })
    }

    /// Who it says it is.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections accepted (TCP) or datagrams read (UDP) so far.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.shared.served.load(Ordering::Relaxed)
    }

    /// TCP connections open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.open().len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Wakes `accept` and `recv`, and closes the port although the worker still holds a copy of the socket.
        let _ = self.socket.shutdown(Shutdown::Both);
        for (_, stream) in std::mem::take(&mut *self.shared.open()) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn open(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

fn accept(listener: &TcpListener, name: &str, shared: &Arc<Shared>) {
    loop {
        let accepted = listener.accept();
        if shared.stopped() {
            return;
        }
        let Ok((stream, peer)) = accepted else {
            // Out of descriptors, say: the test is then about somebody else's limits; do not spin.
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        shared.served.fetch_add(1, Ordering::Relaxed);
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let Ok(copy) = stream.try_clone() else { continue };
        shared.open().insert(id, copy);
        let called = stream.local_addr().map(|address| address.ip().to_string()).unwrap_or_default();
        let (name, shared) = (if name.is_empty() { called } else { name.to_owned() }, Arc::clone(shared));
        thread::spawn(move || {
            let _ = serve(&stream, peer, &name);
            let _ = stream.shutdown(Shutdown::Both);
            shared.open().remove(&id);
        });
    }
}

/// One connection, to its end.
fn serve(mut stream: &TcpStream, peer: SocketAddr, name: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let (command, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        match command {
            "SUM" => {
                let (bytes, hash) = sum(&mut reader)?;
                return writeln!(stream, "{name} {peer} {bytes} {hash:016x}");
            }
            "GIVE" => {
                writeln!(stream, "{name} {peer} {rest}")?;
                return give(stream, rest.parse().unwrap_or(0));
            }
            "BYE" => return Ok(()),
            _ => {
                pause(command, rest);
                writeln!(stream, "{name} {peer} {rest}")?;
            }
        }
        line.clear();
    }
    Ok(())
}

fn reply(socket: &UdpSocket, name: &str, shared: &Arc<Shared>) {
    let _ = SockRef::from(socket).set_recv_buffer_size(4 << 20);
    let mut buffer = vec![0; 65_536];
    loop {
        let read = socket.recv_from(&mut buffer);
        if shared.stopped() {
            return;
        }
        // An ICMP error for an earlier answer, say: the next datagram is what counts.
        let Ok((length, peer)) = read else { continue };
        shared.served.fetch_add(1, Ordering::Relaxed);
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let (command, rest) = text.trim_end().split_once(' ').unwrap_or((text.trim_end(), ""));
        let answer = format!("{name} {peer} {rest}\n");
        if command == "WAIT" {
            let (Ok(copy), ms) = (socket.try_clone(), rest.to_owned()) else { continue };
            thread::spawn(move || {
                pause("WAIT", &ms);
                copy.send_to(answer.as_bytes(), peer)
            });
        } else {
            let _ = socket.send_to(answer.as_bytes(), peer);
        }
    }
}

fn pause(command: &str, milliseconds: &str) {
    if command == "WAIT" {
        thread::sleep(Duration::from_millis(milliseconds.parse().unwrap_or(0)));
    }
}

/// Bytes that any mixing, loss or repetition would spoil: what position `at` of a transfer holds.
#[must_use]
pub const fn pattern(at: u64) -> u8 {
    let mixed = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0] ^ mixed.to_be_bytes()[3]
}

/// Writes `total` bytes of [`pattern`].
///
/// # Errors
/// Those of the stream.
pub fn give(mut stream: impl io::Write, total: u64) -> io::Result<()> {
    let mut chunk = vec![0; 65_536];
    let mut at = 0;
    while at < total {
        let length = usize::try_from(total - at).unwrap_or(usize::MAX).min(chunk.len());
        for (byte, position) in chunk[..length].iter_mut().zip(at..) {
            *byte = pattern(position);
        }
        stream.write_all(&chunk[..length])?;
        at += length as u64;
    }
    Ok(())
}

/// Reads to the end; the count and FNV-1a of what came.
///
/// # Errors
/// Those of the stream.
pub fn sum(mut stream: impl Read) -> io::Result<(u64, u64)> {
    let mut chunk = vec![0; 65_536];
    let (mut bytes, mut hash) = (0, FNV_OFFSET);
    loop {
        match stream.read(&mut chunk)? {
            0 => return Ok((bytes, hash)),
            length => {
                bytes += length as u64;
                hash = chunk[..length].iter().fold(hash, |hash, &byte| fnv(hash, byte));
            }
        }
    }
}

/// What [`sum`] says of `total` bytes of [`pattern`].
#[must_use]
pub fn sum_of_pattern(total: u64) -> u64 {
    (0..total).fold(FNV_OFFSET, |hash, at| fnv(hash, pattern(at)))
}

/// FNV-1a, 64 bit: <http://www.isthe.com/chongo/tech/comp/fnv/>.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

const fn fnv(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
}
