//! A node with a client host on one side and a host of endpoints on the other.
//!
//! The endpoints 10.2.1.1 to .9 and fd02::1:1 to ::1:9 answer on port 8080 (TCP and UDP) with their own address and the
//! one that they see.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use nix::{
    sched::{CloneFlags, unshare},
    unistd::gettid,
};
use socket2::{Domain, Socket, Type};
use vipd_engine::Node;
use vipd_netlink::testing::run;

use crate::service::ip;

/// Far above what an answer takes, and below the second try of a SYN that was dropped (1 s).
pub(crate) const SOON: Duration = Duration::from_millis(950);
const PORT: u16 = 8080;

type Job = Box<dyn FnOnce() + Send>;

/// Another host: a thread in a network namespace of its own, one cable away.
pub(crate) struct Host {
    jobs: Sender<Job>,
}

impl Host {
    fn beside_this_node(name: &str, node: [&str; 2], own: [&str; 2]) -> Self {
        let (jobs, work) = channel::<Job>();
        let (report, ready) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            report.send(gettid()).unwrap();
            work.into_iter().for_each(|job| job());
        });
        let host = Self { jobs };
        let tid = ready.recv().unwrap().to_string();
        run("ip", &["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", &tid]);
        plug(name, node);
        let [own, gateways] = [own, node].map(|pair| pair.map(str::to_owned));
        host.run(move || {
            run("ip", &["link", "set", "lo", "up"]);
            plug("eth0", [&own[0], &own[1]]);
            for gateway in gateways {
                run("ip", &["route", "add", "default", "via", gateway.split('/').next().unwrap()]);
            }
        });
        host
    }

    /// Runs something on that host.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(job).recv().expect("a host's job panicked")
    }

    /// The same without waiting for it.
    pub(crate) fn start<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (report, result) = channel();
        self.jobs.send(Box::new(move || drop(report.send(job())))).unwrap();
        result
    }

    /// One connection, answered by an endpoint.
    pub(crate) fn connect(&self, to: &str, port: u16) -> Fate {
        let to = SocketAddr::new(ip(to), port);
        self.run(move || connect(None, to))
    }

    /// From one of its addresses.
    pub(crate) fn connect_from(&self, from: &str, to: &str, port: u16) -> Fate {
        let (from, to) = (ip(from), SocketAddr::new(ip(to), port));
        self.run(move || connect(Some(from), to))
    }

    /// One question by UDP.
    pub(crate) fn ask(&self, to: &str, port: u16) -> Fate {
        let to = SocketAddr::new(ip(to), port);
        self.run(move || ask(to))
    }

    /// The endpoints that so many connections came to, with their counts.
    pub(crate) fn spread(&self, to: &str, port: u16, connections: usize) -> Vec<(IpAddr, usize)> {
        let to = SocketAddr::new(ip(to), port);
        let fates = self.run(move || (0..connections).map(|_| connect_patiently(to).unwrap()).collect::<Vec<_>>());
        let mut counts = std::collections::BTreeMap::new();
        for fate in fates {
            *counts.entry(fate.endpoint()).or_default() += 1;
        }
        counts.into_iter().collect()
    }
}

fn plug(name: &str, addresses: [&str; 2]) {
    run("ip", &["addr", "add", addresses[0], "dev", name]);
    run("ip", &["addr", "add", addresses[1], "dev", name, "nodad"]);
    run("ip", &["link", "set", name, "up"]);
}

/// The three.
pub(crate) struct Lab {
    pub(crate) client: Host,
    pub(crate) backend: Host,
}

impl Lab {
    pub(crate) const CLIENT: &str = "10.1.0.2";
    pub(crate) const CLIENT6: &str = "fd01::2";
    /// Not in [`Lab::node`]'s local sources.
    pub(crate) const STRANGER: &str = "10.1.0.200";
    pub(crate) const NODE: &str = "10.1.0.1";
    pub(crate) const NODE6: &str = "fd01::1";
    /// The node as endpoints see it.
    pub(crate) const INNER: &str = "10.2.0.1";

    pub(crate) fn new() -> Self {
        let client = Host::beside_this_node("client", ["10.1.0.1/24", "fd01::1/64"], ["10.1.0.2/24", "fd01::2/64"]);
        let backend = Host::beside_this_node("backend", ["10.2.0.1/16", "fd02::1/64"], ["10.2.0.2/16", "fd02::2/64"]);
        for (file, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            // Else the second ICMP refusal within a second is not sent.
            ("ipv4/icmp_ratelimit", "0"),
            ("ipv6/icmp/ratelimit", "0"),
        ] {
            fs::write(format!("/proc/sys/net/{file}"), value).unwrap();
        }
        run("ip", &["route", "add", "10.96.0.0/16", "via", Self::CLIENT]);
        run("ip", &["route", "add", "fd96::/64", "via", Self::CLIENT6]);
        client.run(|| {
            for last in (3..=40).chain([200]) {
                run("ip", &["addr", "add", &format!("10.1.0.{last}/24"), "dev", "eth0"]);
            }
        });
        backend.run(|| {
            for n in 1..=9 {
                run("ip", &["addr", "add", &format!("10.2.1.{n}/16"), "dev", "eth0"]);
                run("ip", &["addr", "add", &format!("fd02::1:{n}/64"), "dev", "eth0", "nodad"]);
                serve_udp(Ipv4Addr::new(10, 2, 1, n).into());
                serve_udp(Ipv6Addr::new(0xfd02, 0, 0, 0, 0, 0, 1, n.into()).into());
            }
            serve_tcp();
        });
        let lab = Self { client, backend };
        lab.wait_until_the_cables_carry();
        lab
    }

    /// The kernel brings a cable into use a little after both ends are up; until then it loses what is sent.
    fn wait_until_the_cables_carry(&self) {
        for to in ["10.2.1.1", "fd02::1:1"] {
            let reached = || matches!(self.client.connect(to, PORT), Fate::Served { .. });
            assert!((0..50).any(|_| reached()), "no way to {to}");
        }
    }

    /// What the daemon knows of the node.
    pub(crate) fn node() -> Node {
        let mut node = Node::default();
        node.network.local_sources = ["10.1.0.0/26", "10.2.0.0/16", "fd01::/64"].map(|net| net.parse().unwrap()).into();
        node.addresses = ["10.1.0.1", "10.2.0.1", "127.0.0.1", "::1", "fd01::1", "fd02::1"].map(ip).into();
        node
    }
}

/// What became of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// This endpoint answered, and saw this source.
    Served { endpoint: IpAddr, source: IpAddr },
    /// Refused at once.
    Refused,
    /// No answer.
    Silence,
}

impl Fate {
    pub(crate) fn endpoint(self) -> IpAddr {
        match self {
            Self::Served { endpoint, .. } => endpoint,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn source(self) -> IpAddr {
        match self {
            Self::Served { source, .. } => source,
            other => panic!("{other:?}"),
        }
    }

    fn read(text: &str) -> Self {
        let mut addresses = text.split_whitespace().map(|word| word.parse().unwrap());
        match (addresses.next(), addresses.next()) {
            (Some(endpoint), Some(source)) => Self::Served { endpoint, source },
            _ => Self::Silence,
        }
    }

    fn of_error(error: &std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied => Self::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::HostUnreachable => Self::Silence,
            _ => panic!("{error}"),
        }
    }
}

pub(crate) fn connect(from: Option<IpAddr>, to: SocketAddr) -> Fate {
    let attempt = || -> std::io::Result<Fate> {
        let mut stream = open(from, to)?;
        stream.set_read_timeout(Some(SOON))?;
        let mut text = String::new();
        stream.write_all(b"\n")?;
        stream.read_to_string(&mut text)?;
        Ok(Fate::read(&text))
    };
    attempt().unwrap_or_else(|error| Fate::of_error(&error))
}

/// One connection with an answer, and time for the client's kernel to try again.
pub(crate) fn connect_patiently(to: SocketAddr) -> std::io::Result<Fate> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    match Fate::read(&text) {
        fate @ Fate::Served { .. } => Ok(fate),
        _ => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// An established connection that nothing was said on.
pub(crate) fn open(from: Option<IpAddr>, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(from) = from {
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    socket.connect_timeout(&to.into(), SOON)?;
    Ok(socket.into())
}

pub(crate) fn ask(to: SocketAddr) -> Fate {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    ask_with(&socket, to)
}

pub(crate) fn ask_with(socket: &UdpSocket, to: SocketAddr) -> Fate {
    let attempt = || -> std::io::Result<Fate> {
        socket.connect(to)?;
        socket.set_read_timeout(Some(SOON))?;
        socket.send(b"who?")?;
        let mut answer = [0; 200];
        let length = socket.recv(&mut answer)?;
        Ok(Fate::read(std::str::from_utf8(&answer[..length]).unwrap()))
    };
    attempt().unwrap_or_else(|error| Fate::of_error(&error))
}

/// Answers the first byte of every connection, and ends it.
fn serve_tcp() {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
    socket.set_only_v6(false).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::new(ip("::"), PORT).into()).unwrap();
    socket.listen(4096).unwrap();
    let listener = TcpListener::from(socket);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || -> std::io::Result<()> {
                let (own, peer) = (stream.local_addr()?.ip().to_canonical(), stream.peer_addr()?.ip().to_canonical());
                let mut first = [0];
                while stream.read(&mut first)? > 0 {
                    // In one piece, for who reads one.
                    stream.write_all(format!("{own} {peer}").as_bytes())?;
                    if first[0] == b'\n' {
                        break;
                    }
                }
                Ok(())
            });
        }
    });
}

fn serve_udp(address: IpAddr) {
    let socket = UdpSocket::bind((address, PORT)).unwrap();
    thread::spawn(move || {
        let mut question = [0; 200];
        while let Ok((_, peer)) = socket.recv_from(&mut question) {
            let _ = socket.send_to(format!("{address} {}", peer.ip()).as_bytes(), peer);
        }
    });
}
