//! Hosts in network namespaces: the node (the test's own thread), a client, and a host with the back ends.
//!
//! ```text
//!   client 10.1.0.2 ──── 10.1.0.1 node 10.2.0.1 ──── back ends 10.2.0.11 … 10.2.0.13
//!          fd01::2       fd01::1       fd02::1                 fd02::11  … fd02::13
//! ```

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::mpsc::{Sender, channel},
    thread,
    time::Duration,
};

use nix::{
    sched::{CloneFlags, unshare},
    unistd::gettid,
};
use socket2::{Domain, Socket, Type};
use vipd_netlink::testing::run;

/// Far above what a refusal takes, and below the second try of a SYN that was dropped (1 s).
pub(crate) const SOON: Duration = Duration::from_millis(900);

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip(address), port)
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Answered by this address, which saw that source.
    Served { by: SocketAddr, seen: IpAddr },
    /// Refused at once.
    Refused,
    /// No answer.
    Silence,
}

impl Fate {
    pub(crate) fn by(&self) -> Option<SocketAddr> {
        match self {
            Self::Served { by, .. } => Some(*by),
            _ => None,
        }
    }

    pub(crate) fn seen(&self) -> Option<IpAddr> {
        match self {
            Self::Served { seen, .. } => Some(*seen),
            _ => None,
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own.
pub(crate) struct Host {
    jobs: Sender<Job>,
}

impl Host {
    /// Makes a host with one cable to the node, and the node as its gateway. `v4` and `v6` are networks without their
    /// last part; the node is 1, the host is each of `hosts`.
    fn beside_the_node(name: &'static str, v4: &'static str, v6: &'static str, hosts: &'static [u8]) -> Self {
        let (jobs, work) = channel::<Job>();
        let (report, ready) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            no_duplicate_address_detection();
            report.send(gettid()).unwrap();
            work.into_iter().for_each(|job| job());
        });
        let host = Self { jobs };
        let tid = ready.recv().unwrap().to_string();
        run("ip", &["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", &tid]);
        plug(name, v4, v6, &[1]);
        host.run(move || {
            run("ip", &["link", "set", "lo", "up"]);
            plug("eth0", v4, v6, hosts);
            run("ip", &["route", "add", "default", "via", &format!("{v4}1")]);
            run("ip", &["route", "add", "default", "via", &format!("{v6}1")]);
            for node in [format!("{v4}1"), format!("{v6}1")] {
                let discard = SocketAddr::new(ip(&node), 9);
                let reached = || {
                    let attempt = TcpStream::connect_timeout(&discard, Duration::from_millis(100));
                    attempt.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
                };
                assert!((0..100).any(|_| reached()), "no way to {node}");
            }
        });
        host
    }

    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (report, result) = channel();
        self.jobs.send(Box::new(move || report.send(job()).unwrap())).unwrap();
        result.recv().expect("the host's job panicked")
    }

    pub(crate) fn connect(&self, to: SocketAddr) -> Fate {
        self.run(move || connect(to))
    }

    pub(crate) fn ask(&self, to: SocketAddr) -> Fate {
        self.run(move || ask(to))
    }

    /// So many attempts, one after the other.
    pub(crate) fn connect_many(&self, count: usize, to: SocketAddr) -> Vec<Fate> {
        self.run(move || (0..count).map(|_| connect(to)).collect())
    }
}

/// Until it is over, a second after a cable is plugged in, nobody on it is looked for.
fn no_duplicate_address_detection() {
    for name in ["all", "default"] {
        fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0").unwrap();
        fs::write(format!("/proc/sys/net/ipv6/conf/{name}/dad_transmits"), "0").unwrap();
    }
}

fn plug(device: &str, v4: &str, v6: &str, hosts: &[u8]) {
    for host in hosts {
        run("ip", &["addr", "add", &format!("{v4}{host}/24"), "dev", device]);
        run("ip", &["addr", "add", &format!("{v6}{host}/64"), "dev", device, "nodad"]);
    }
    run("ip", &["link", "set", device, "up"]);
}

/// The lab.
pub(crate) struct Lab {
    pub(crate) client: Host,
    pub(crate) backends: Host,
}

impl Lab {
    pub(crate) const CLIENT_V4: &str = "10.1.0.2";
    pub(crate) const NODE_V4: &str = "10.1.0.1";
    pub(crate) const NODE_V6: &str = "fd01::1";

    /// Makes it around the current namespace. Back ends answer on TCP and UDP port 8080, and 5000 to 5003.
    pub(crate) fn new() -> Self {
        no_duplicate_address_detection();
        for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            fs::write(format!("/proc/sys/net/{key}"), "1").unwrap();
        }
        // Else the second ICMP refusal within a second is not sent.
        fs::write("/proc/sys/net/ipv4/icmp_ratelimit", "0").unwrap();
        fs::write("/proc/sys/net/ipv6/icmp/ratelimit", "0").unwrap();
        let client = Host::beside_the_node("client", "10.1.0.", "fd01::", &[2]);
        let backends = Host::beside_the_node("backends", "10.2.0.", "fd02::", &[11, 12, 13]);
        // The node's own clients get as far as its hooks.
        run("ip", &["route", "add", "10.96.0.0/16", "via", Self::CLIENT_V4]);
        run("ip", &["route", "add", "fd96::/64", "via", "fd01::2"]);
        backends.run(|| {
            for host in [11, 12, 13] {
                for port in [8080, 5000, 5001, 5002, 5003] {
                    serve(at(&format!("10.2.0.{host}"), port));
                    serve(at(&format!("fd02::{host}"), port));
                }
            }
        });
        Self { client, backends }
    }
}

/// Answers every connection and datagram with where it came to and whom it saw.
pub(crate) fn serve(address: SocketAddr) {
    let listener = TcpListener::bind(address).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let line = format!("{} {}", stream.local_addr().unwrap(), stream.peer_addr().unwrap().ip());
                let _ = stream.write_all(format!("{line:<127}\n").as_bytes());
                let mut buffer = [0; 64];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    let _ = stream.write_all(&buffer[..length]);
                }
            });
        }
    });
    let socket = UdpSocket::bind(address).unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(format!("{address} {}", from.ip()).as_bytes(), from);
        }
    });
}

fn told(text: &str) -> Fate {
    let (by, seen) = text.trim().split_once(' ').unwrap();
    Fate::Served { by: by.parse().unwrap(), seen: seen.parse().unwrap() }
}

pub(crate) fn connect(to: SocketAddr) -> Fate {
    connect_from(None, to)
}

pub(crate) fn connect_from(source: Option<IpAddr>, to: SocketAddr) -> Fate {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into()).unwrap();
    }
    match socket.connect_timeout(&to.into(), SOON) {
        Ok(()) => {
            let mut stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(SOON)).unwrap();
            let mut line = [0; 128];
            stream.read_exact(&mut line).map_or(Fate::Silence, |()| told(&String::from_utf8_lossy(&line)))
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Fate::Refused,
        Err(error) if error.kind() == ErrorKind::TimedOut => Fate::Silence,
        Err(error) => panic!("{to}: {error}"),
    }
}

/// A connected socket: it takes answers from exactly the address and port that it sent to.
pub(crate) fn udp_client(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket
}

pub(crate) fn ask_by(socket: &UdpSocket) -> Fate {
    let refused = |kind| matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ConnectionRefused);
    if socket.send(b"who?").is_err_and(|error| refused(error.kind())) {
        return Fate::Refused;
    }
    let mut buffer = [0; 128];
    match socket.recv(&mut buffer) {
        Ok(length) => told(&String::from_utf8_lossy(&buffer[..length])),
        Err(error) if refused(error.kind()) => Fate::Refused,
        Err(error) if error.kind() == ErrorKind::WouldBlock => Fate::Silence,
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn ask(to: SocketAddr) -> Fate {
    ask_by(&udp_client(to))
}
