//! A stand-in for the proxy, and clients that say what became of them.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use socket2::{Domain, SockRef, Socket, Type};

use crate::common::{Client, ip};

/// Far above what a refusal takes, and below the second try of a SYN that was dropped (1 s).
pub(crate) const SOON: Duration = Duration::from_millis(900);

/// What became of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The proxy answered, and was told this destination.
    Served(SocketAddr),
    /// Refused at once.
    Refused,
    /// No answer.
    Silence,
}

pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip(address), port)
}

/// Answers every connection with its original destination, then echoes.
pub(crate) fn tcp_proxy(port: u16) {
    for (domain, any) in [(Domain::IPV4, "0.0.0.0"), (Domain::IPV6, "::")] {
        let socket = Socket::new(domain, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        if domain == Domain::IPV6 {
            socket.set_only_v6(true).unwrap();
        }
        socket.bind(&at(any, port).into()).unwrap();
        socket.listen(1024).unwrap();
        let listener = TcpListener::from(socket);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                thread::spawn(move || serve(stream));
            }
        });
    }
}

fn serve(mut stream: TcpStream) -> Option<()> {
    let socket = SockRef::from(&stream);
    let original =
        if stream.local_addr().ok()?.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    let original = original.ok()?.as_socket()?;
    writeln!(stream, "{:<63}", original.to_string()).ok()?;
    let mut buffer = [0; 64];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        stream.write_all(&buffer[..length]).ok()?;
    }
    Some(())
}

/// Echoes. A socket for each address that the guard redirects to: an answer is translated back only if it leaves from
/// the address that the question came to (a real proxy has one socket and `IP_PKTINFO`).
pub(crate) fn udp_proxy(port: u16) {
    for address in ["127.0.0.1", "::1", Client::NODE_V4, Client::NODE_V6] {
        let socket = UdpSocket::bind((address, port)).unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                socket.send_to(&buffer[..length], from).unwrap();
            }
        });
    }
}

pub(crate) fn connect(to: SocketAddr) -> Fate {
    match TcpStream::connect_timeout(&to, SOON) {
        Ok(mut stream) => told(&mut stream).map_or(Fate::Silence, Fate::Served),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Fate::Refused,
        Err(error) if error.kind() == ErrorKind::TimedOut => Fate::Silence,
        Err(error) => panic!("{to}: {error}"),
    }
}

pub(crate) fn told(stream: &mut TcpStream) -> Option<SocketAddr> {
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut line = [0; 64];
    stream.read_exact(&mut line).ok()?;
    String::from_utf8_lossy(&line).trim().parse().ok()
}

/// Whether the proxy still answers on a connection.
pub(crate) fn echoes(mut stream: TcpStream) -> bool {
    let mut buffer = [0; 6];
    stream.write_all(b"still?").is_ok() && stream.read_exact(&mut buffer).is_ok() && &buffer == b"still?"
}

/// A connected socket: it takes answers from exactly the address and port that it sent to.
pub(crate) fn udp_client(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket
}

pub(crate) fn ask(socket: &UdpSocket) -> Fate {
    // A local sender is told at once (EPERM) when the packet is refused on its way out.
    let sent = socket.send(b"anybody?");
    if sent.is_err_and(|error| matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ConnectionRefused)) {
        return Fate::Refused;
    }
    match socket.recv(&mut [0; 64]) {
        Ok(_) => Fate::Served(socket.peer_addr().unwrap()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Fate::Refused,
        Err(error) if error.kind() == ErrorKind::WouldBlock => Fate::Silence,
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn ask_once(to: SocketAddr) -> Fate {
    ask(&udp_client(to))
}

pub(crate) fn lone_fin_is_answered(to: &str) -> bool {
    const FIN: u8 = 1;
    let (IpAddr::V4(from), IpAddr::V4(to)) = (ip(Client::V4), ip(to)) else { panic!("IPv4 only") };
    let mut segment = Vec::new();
    segment.extend(4000u16.to_be_bytes());
    segment.extend(80u16.to_be_bytes());
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, FIN, 0xff, 0xff, 0, 0, 0, 0]);
    let pseudo = [&from.octets()[..], &to.octets()[..], &[0, 6, 0, segment.len() as u8], &segment].concat();
    segment[16..18].copy_from_slice(&checksum(&pseudo));
    raw_exchange(socket2::Protocol::TCP, &segment, to.into()).is_some()
}

pub(crate) fn echo_request_is_refused(to: &str) -> bool {
    const UNREACHABLE: u8 = 3;
    let mut request = [8, 0, 0, 0, 0, 1, 0, 1];
    let sum = checksum(&request);
    request[2..4].copy_from_slice(&sum);
    raw_exchange(socket2::Protocol::ICMPV4, &request, ip(to)) == Some(UNREACHABLE)
}

/// Sends by a raw socket, and returns the first byte behind the IP header of the first answer.
fn raw_exchange(protocol: socket2::Protocol, bytes: &[u8], to: IpAddr) -> Option<u8> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(protocol)).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.send_to(bytes, &SocketAddr::new(to, 0).into()).unwrap();
    let mut answer = [0; 256];
    let length = (&socket).read(&mut answer).ok()?;
    answer[..length].get(usize::from(answer[0] & 0xf) * 4).copied()
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!(folded as u16)).to_be_bytes()
}
