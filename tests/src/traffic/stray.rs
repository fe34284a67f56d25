//! A TCP segment that fits a connection's addresses and ports and lies far outside its window: what a spurious
//! retransmission looks like to connection tracking, which calls it INVALID. Where it reaches a client untranslated, the
//! client answers with a reset that the endpoint believes.

use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use socket2::{Domain, Protocol, Socket, Type};

use crate::lab::Host;

/// `ETH_P_ALL` (linux/if_ether.h) as a packet socket wants it: in network order.
const EVERY_PROTOCOL: i32 = 0x0003_u16.to_be() as i32;
/// Protocol number.
const TCP: u8 = 6;
/// Further than any window (2^30 at most, RFC 7323).
const FAR: u32 = (1 << 30) + 1;

/// Sees what comes and goes on a host, to learn the sequence numbers of a connection.
#[derive(Debug)]
pub struct Listener(Socket);

/// Where a connection stands, as its client's last segment with payload told it.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// What the server has acknowledged once it has read that segment.
    client_next: u32,
    /// What the server is to send next.
    server_next: u32,
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// When packet sockets are not allowed.
    pub fn on(host: &Host) -> Result<Self> {
        let socket = host.enter(|| Socket::new(Domain::PACKET, Type::DGRAM, Some(EVERY_PROTOCOL.into())))??;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        Ok(Self(socket))
    }

    /// The position of the connection to this server from `client`, by its next segment with payload.
    ///
    /// # Errors
    /// When none came within two seconds.
    pub fn position(&self, client: SocketAddr, server: SocketAddr) -> Result<Position> {
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut packet = [0; 4096];
        while Instant::now() < deadline {
            match (&self.0).read(&mut packet) {
                Ok(length) => {
                    if let Some(found) = position(&packet[..length], client.port(), server.port()) {
                        return Ok(found);
                    }
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        bail!("no segment from {client} to {server} was seen")
    }
}

/// Reads an IP packet; none unless it is a segment with payload between these ports.
fn position(packet: &[u8], from: u16, to: u16) -> Option<Position> {
    let header = match packet.first()? >> 4 {
        4 if packet.get(9) == Some(&TCP) => usize::from(packet[0] & 15) * 4,
        6 if packet.get(6) == Some(&TCP) => 40,
        _ => return None,
    };
    let length = match header {
        40 => 40 + usize::from(u16::from_be_bytes(packet.get(4..6)?.try_into().ok()?)),
        _ => usize::from(u16::from_be_bytes(packet.get(2..4)?.try_into().ok()?)),
    };
    let segment = packet.get(header..length)?;
    let word = |at: usize| Some(u32::from_be_bytes(segment.get(at..at + 4)?.try_into().ok()?));
    let ports = (u32::from(from) << 16) | u32::from(to);
    let payload = segment.len().checked_sub(usize::from(segment.get(12)? >> 4) * 4)?;
    if word(0)? != ports || payload == 0 {
        return None;
    }
    Some(Position { client_next: word(4)?.wrapping_add(payload as u32), server_next: word(8)? })
}

/// Sends the stray segment from the server's host to the client's address.
///
/// # Errors
/// When raw sockets are not allowed.
pub fn send(host: &Host, server: SocketAddr, client: SocketAddr, at: Position) -> Result<()> {
    let mut segment = Vec::with_capacity(20);
    segment.extend(server.port().to_be_bytes());
    segment.extend(client.port().to_be_bytes());
    segment.extend(at.server_next.wrapping_add(FAR).to_be_bytes());
    segment.extend(at.client_next.to_be_bytes());
    // Five words of header, ACK; a window; no checksum yet, no urgent data.
    segment.extend([0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    let sum = checksum(server.ip(), client.ip(), &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let socket = host.enter(|| Socket::new(Domain::for_address(server), Type::RAW, Some(Protocol::TCP)))??;
    socket.bind(&SocketAddr::new(server.ip(), 0).into())?;
    socket.send_to(&segment, &SocketAddr::new(client.ip(), 0).into())?;
    Ok(())
}

/// RFC 9293 §3.1: over the pseudo header and the segment.
fn checksum(from: IpAddr, to: IpAddr, segment: &[u8]) -> u16 {
    let mut bytes = Vec::new();
    for address in [from, to] {
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend((segment.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, TCP]);
    bytes.extend(segment);
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
