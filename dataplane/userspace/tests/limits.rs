//! Cases 106 and 107: the proxy as a process with 256 descriptors, and 2,000 clients. Established connections go on, the
//! rest are turned away and counted, nothing spins, and it recovers. Once by the budget, and once with a budget that
//! promises more than the process has, so that accept itself fails.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod kit;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kit::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use vipd_userspace::{Admission, Door, Proxy, ProxyConfig};

const CLIENTS: usize = 2_000;
/// The connections that the process can hold at most: two descriptors each.
const MOST: usize = 256 / 2;
/// And by its budget: a quarter is the control side's, and of the rest a quarter the pipes'.
const MOST_BY_BUDGET: usize = MOST * 3 / 4 * 3 / 4;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("proxy") => return proxy_process(&arguments[2], arguments[3].parse().unwrap()),
        // cargo and IDEs ask for a list of tests.
        Some("--list") => return,
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for (name, descriptors, most) in [("by_the_budget", 0, MOST_BY_BUDGET), ("without_a_budget", 100_000, MOST)] {
        runtime.block_on(shed_and_recover(descriptors, most));
        println!("test case_106_107_{name} ... ok");
    }
}

/// The child: serves until its standard input ends, and says what it counted for each line that comes there.
fn proxy_process(endpoint: &str, descriptors: usize) {
    let proxy = Proxy::start(&ProxyConfig { workers: 2, descriptors, ..ProxyConfig::default() }).unwrap();
    let vip = free_address();
    proxy.set(Build::tcp("limited", vip, &[endpoint.parse().unwrap()]).selected());
    proxy.open(Door::Tcp(vip), &Admission::Everybody).unwrap();
    println!("{vip}");
    for _ in std::io::stdin().lines() {
        let totals = proxy.totals();
        println!("{} {} {}", totals.connections, totals.shed_descriptors, totals.shedding_for_ms.is_some());
    }
}

struct ProxyProcess {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl ProxyProcess {
    fn start(endpoint: SocketAddr, descriptors: usize) -> (Self, SocketAddr) {
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 256; exec \"$0\" proxy \"$1\" \"$2\""]).arg(own);
        command.arg(endpoint.to_string()).arg(descriptors.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        (Self { child, answers }, line.trim().parse().unwrap())
    }

    /// Connections now, turned away so far, whether it is said to be shedding.
    fn totals(&mut self) -> (u64, u64, bool) {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].parse().unwrap(), words[1].parse().unwrap(), words[2].parse().unwrap())
    }

    /// In ticks of 10 ms (proc(5)).
    fn processor_ticks(&self) -> u64 {
        let mut text = String::new();
        let path = format!("/proc/{}/stat", self.child.id());
        std::fs::File::open(path).unwrap().read_to_string(&mut text).unwrap();
        let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn echo_backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    at
}

async fn exchange(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 4];
    let both = async { stream.write_all(b"ping").await.is_ok() && stream.read_exact(&mut answer).await.is_ok() };
    tokio::time::timeout(PATIENCE, both).await.unwrap_or(false)
}

async fn client(vip: SocketAddr) -> Option<TcpStream> {
    let mut stream = tokio::time::timeout(PATIENCE, TcpStream::connect(vip)).await.ok()?.ok()?;
    exchange(&mut stream).await.then_some(stream)
}

async fn shed_and_recover(descriptors: usize, most: usize) {
    let (mut proxy, vip) = ProxyProcess::start(echo_backend().await, descriptors);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(client(vip));
    }
    let mut established: Vec<TcpStream> = clients.join_all().await.into_iter().flatten().collect();
    let (connections, shed, shedding) = proxy.totals();
    assert!((30..=most).contains(&established.len()), "{} established", established.len());
    assert_eq!(connections, established.len() as u64);
    assert_eq!(shed, (CLIENTS - established.len()) as u64, "every other one was turned away and counted");
    assert!(shedding);
    for stream in &mut established {
        assert!(exchange(stream).await, "an established connection goes on");
    }
    // Some more knock; meanwhile nothing spins.
    let before = proxy.processor_ticks();
    let knocking: Vec<_> = (0..20).map(|_| tokio::spawn(client(vip))).collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let spent = proxy.processor_ticks() - before;
    assert!(spent < 60, "{spent} ticks of 10 ms in 2 s");
    for knock in knocking {
        assert!(knock.await.unwrap().is_none());
    }
    established.truncate(5);
    let begun = Instant::now();
    while client(vip).await.is_none() {
        assert!(begun.elapsed() < PATIENCE, "it recovers");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for stream in &mut established {
        assert!(exchange(stream).await);
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(!proxy.totals().2, "and says so");
}
