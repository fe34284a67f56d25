//! Loads, with their back ends and clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

const CLIENTS: usize = 64;
const MESSAGE: usize = 128;
const CHUNK: usize = 256 * 1024;
const BACKENDS: usize = 2;

/// What is asked of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Connect, ask, be answered, close.
    Connections,
    /// Ask and be answered, on a connection that stays.
    Requests,
    /// One way, as fast as it goes, on four connections.
    Transfer,
    /// Ask and be answered by datagrams, eight on their way for each client.
    Datagrams,
    /// A new client for each datagram.
    NewDatagramClients,
}

/// What came of it.
pub(crate) struct Measured {
    pub(crate) rate: f64,
    p50: Duration,
    p99: Duration,
    /// Processor time of the proxy for each unit; absent: no proxy.
    cost: Option<Duration>,
}

impl Load {
    pub(crate) const ALL: [Self; 5] =
        [Self::Connections, Self::Requests, Self::Transfer, Self::Datagrams, Self::NewDatagramClients];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connections => "TCP connections, 64 clients",
            Self::Requests => "TCP requests, 64 clients",
            Self::Transfer => "TCP transfer, 4 connections",
            Self::Datagrams => "UDP requests, 64 clients × 8",
            Self::NewDatagramClients => "UDP new clients",
        }
    }

    pub(crate) fn is_udp(self) -> bool {
        matches!(self, Self::Datagrams | Self::NewDatagramClients)
    }

    pub(crate) fn show(self, measured: &Measured) -> String {
        let Measured { rate, p50, p99, cost } = measured;
        let cost = cost.map_or_else(String::new, |cost| {
            if self == Self::Transfer {
                format!("{:.0} ms/GB", cost.as_secs_f64() * 1e3)
            } else {
                format!("{cost:.1?}")
            }
        });
        let rate = if self == Self::Transfer { format!("{rate:.2} GB/s") } else { format!("{rate:.0}/s") };
        let time = |time: &Duration| if time.is_zero() { String::new() } else { format!("{time:.0?}") };
        format!("{rate:>12} {:>10} {:>10} {cost:>14}", time(p50), time(p99))
    }

    pub(crate) async fn start_backends(self) -> Vec<SocketAddr> {
        let mut places = Vec::new();
        for _ in 0..BACKENDS {
            places.push(if self.is_udp() { udp_backend().await } else { tcp_backend(self).await });
        }
        places
    }

    /// Loads the proxy at `to`; `proxy` is its process.
    pub(crate) async fn run(self, to: SocketAddr, length: Duration, proxy: Option<u32>) -> Measured {
        let before = proxy.map(processor_time);
        let begun = Instant::now();
        let end = begun + length;
        let done = Arc::new(AtomicU64::new(0));
        let mut clients = JoinSet::new();
        let count = if self == Self::Transfer { 4 } else { CLIENTS };
        for _ in 0..count {
            let done = Arc::clone(&done);
            clients.spawn(async move {
                match self {
                    Self::Connections => connections(to, end, &done).await,
                    Self::Requests => requests(to, end, &done).await,
                    Self::Transfer => transfer(to, end, &done).await,
                    Self::Datagrams => datagrams(to, end, &done).await,
                    Self::NewDatagramClients => new_datagram_clients(to, end, &done).await,
                }
            });
        }
        let mut times: Vec<Duration> = clients.join_all().await.into_iter().flatten().collect();
        let took = begun.elapsed();
        times.sort();
        let part = |of: usize| times.get(times.len() * of / 100).copied().unwrap_or_default();
        let done = done.load(Ordering::Relaxed) as f64 / if self == Self::Transfer { 1e9 } else { 1.0 };
        let cost = proxy.zip(before).map(|(proxy, before)| (processor_time(proxy) - before).div_f64(done.max(1e-9)));
        Measured { rate: done / took.as_secs_f64(), p50: part(50), p99: part(99), cost }
    }
}

/// User and system time of a process and its children, from /proc (proc(5)): fields 14 and 15, in ticks of 10 ms.
fn processor_time(process: u32) -> Duration {
    let of = |process: &str| {
        let Ok(text) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return 0 };
        let fields: Vec<u64> =
            text.rsplit(')').next().unwrap_or("").split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
        fields.get(11).unwrap_or(&0) + fields.get(12).unwrap_or(&0)
    };
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let ticks: u64 = of(&process.to_string()) + children.split_whitespace().map(of).sum::<u64>();
    Duration::from_millis(ticks * 10)
}

async fn tcp_backend(load: Load) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(async move {
                if load == Load::Transfer {
                    let chunk = vec![7; CHUNK];
                    while stream.write_all(&chunk).await.is_ok() {}
                    return;
                }
                let mut message = [0; MESSAGE];
                while stream.read_exact(&mut message).await.is_ok() && stream.write_all(&message).await.is_ok() {}
            });
        }
    });
    at
}

async fn udp_backend() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut message = [0; 2_048];
        loop {
            if let Ok((length, from)) = socket.recv_from(&mut message).await {
                let _ = socket.send_to(&message[..length], from).await;
            }
        }
    });
    at
}

async fn exchange(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut message = [1; MESSAGE];
    stream.write_all(&message).await?;
    stream.read_exact(&mut message).await.map(drop)
}

async fn connections(to: SocketAddr, end: Instant, done: &AtomicU64) -> Vec<Duration> {
    let mut times = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(to).await.unwrap();
        exchange(&mut stream).await.unwrap();
        drop(stream);
        times.push(begun.elapsed());
        done.fetch_add(1, Ordering::Relaxed);
    }
    times
}

async fn requests(to: SocketAddr, end: Instant, done: &AtomicU64) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    while Instant::now() < end {
        let begun = Instant::now();
        exchange(&mut stream).await.unwrap();
        times.push(begun.elapsed());
        done.fetch_add(1, Ordering::Relaxed);
    }
    times
}

async fn transfer(to: SocketAddr, end: Instant, done: &AtomicU64) -> Vec<Duration> {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let mut chunk = vec![0; CHUNK];
    while Instant::now() < end {
        let read = stream.read(&mut chunk).await.unwrap();
        done.fetch_add(read as u64, Ordering::Relaxed);
    }
    Vec::new()
}

async fn datagrams(to: SocketAddr, end: Instant, done: &AtomicU64) -> Vec<Duration> {
    const WINDOW: usize = 8;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(to).await.unwrap();
    let mut times = Vec::new();
    let mut message = [1; MESSAGE];
    while Instant::now() < end {
        let begun = Instant::now();
        for _ in 0..WINDOW {
            let _ = socket.send(&message).await;
        }
        for _ in 0..WINDOW {
            // What is lost on a full buffer is not waited for long.
            match tokio::time::timeout(Duration::from_millis(100), socket.recv(&mut message)).await {
                Ok(Ok(_)) => done.fetch_add(1, Ordering::Relaxed),
                _ => break,
            };
        }
        times.push(begun.elapsed());
    }
    times
}

async fn new_datagram_clients(to: SocketAddr, end: Instant, done: &AtomicU64) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut message = [1; MESSAGE];
    while Instant::now() < end {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(to).await.unwrap();
        let begun = Instant::now();
        let _ = socket.send(&message).await;
        if let Ok(Ok(_)) = tokio::time::timeout(Duration::from_millis(500), socket.recv(&mut message)).await {
            times.push(begun.elapsed());
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
    times
}
