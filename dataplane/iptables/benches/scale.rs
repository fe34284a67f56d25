//! What many services cost, on each back end: load, one change, restart with nothing changed, first packets.
//!
//! Everything happens in namespaces of the bench's own. CPU is that of this process and of the programs that it runs.
//! First packets are connections to a server behind the node, first/middle/last service, none of ours, and the same
//! before there was any rule.
//!
//! `cargo bench -p vipd-iptables --bench scale [-- back-end services endpoints]`

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench stops where it cannot go on")]

use std::env;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::unistd::gettid;
use vipd_engine::{Node, Runner, Steps as _};
use vipd_iptables::{Backend, Choice, Iptables, Options};
use vipd_model::service::{Definition, Revisions, Service};
use vipd_model::{Algorithm, Endpoint, EngineKind, Frontend, Scheduler, Selected, ServiceKey, select};
use vipd_netlink::testing::{in_namespace, run};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 2);
const CONNECTIONS: usize = 3000;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<u32>().ok());
    let only = arguments.first().map_or("", String::as_str);
    println!(
        "{:<7} {:>7} {:>4} {:>8} {:>8} {:>9} {:>19} {:>9} {:>9} {:>9}  connect p50, µs",
        "", "svc", "ep", "load CPU", "wall", "change CPU", "p50/max", "add p50", "restart", "wall"
    );
    for backend in Backend::ALL.into_iter().filter(|backend| backend.as_str().contains(only)) {
        let sizes = match (number(1), number(2)) {
            (Some(services), Some(endpoints)) => vec![(services, endpoints)],
            _ => vec![(1000, 5), (5000, 5), (10_000, 5)],
        };
        for (services, endpoints) in sizes {
            in_namespace(|| measure(backend, services, endpoints));
        }
    }
}

fn vip(n: u32) -> IpAddr {
    IpAddr::from((u32::from(Ipv4Addr::new(10, 96, 0, 0)) + 1 + n).to_be_bytes())
}

/// Every endpoint is the one server, on a port of its own: so each is another rule.
fn selected(n: u32, endpoints: u32) -> (ServiceKey, Option<Selected>) {
    let key = ServiceKey::new("bench", &format!("service-{n}")).unwrap();
    let definition = Definition { frontends: vec![Frontend::vip(vip(n), 80)], ..Definition::default() };
    let endpoint = |m: u32| Endpoint::new(SERVER.into(), u16::try_from(8000 + m % 8).unwrap());
    let mut all: Vec<Endpoint> = (0..endpoints.min(8)).map(endpoint).collect();
    all.extend((8..endpoints).map(|m| Endpoint::new(IpAddr::from([10, 2, 1, u8::try_from(m % 250).unwrap()]), 80)));
    all.sort();
    let service = Service {
        key: key.clone(),
        definition: Arc::new(definition),
        scheduler: Scheduler::default(),
        endpoints: all.into(),
        leaving: Arc::new([]),
        revisions: Revisions::default(),
        waiting: Vec::new(),
    };
    (key, Some(select(&Arc::new(service), EngineKind::Iptables, Algorithm::Random)))
}

fn put(runner: &mut Runner<Iptables>, batch: Vec<(ServiceKey, Option<Selected>)>) {
    let keys: Vec<_> = batch.iter().map(|(key, _)| key.clone()).collect();
    runner.make(batch).outcomes.into_iter().for_each(|(_, outcome)| outcome.unwrap());
    runner.finish(&keys).outcomes.into_iter().for_each(|(_, outcome)| outcome.unwrap());
}

fn started(backend: Backend) -> Runner<Iptables> {
    let options = Options { backend: Choice::Only(backend), ..Options::default() };
    let mut runner = Runner::start(Iptables::open(&options).unwrap()).unwrap();
    runner.set_node(Node { addresses: vec![IpAddr::from([10, 1, 0, 1])], ..Node::default() }).unwrap();
    runner
}

fn cpu() -> Duration {
    let of = |who| {
        let usage = getrusage(who).unwrap();
        usage.user_time().num_microseconds() + usage.system_time().num_microseconds()
    };
    Duration::from_micros(u64::try_from(of(UsageWho::RUSAGE_SELF) + of(UsageWho::RUSAGE_CHILDREN)).unwrap())
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

fn measure(backend: Backend, services: u32, endpoints: u32) {
    let client = lab();
    let direct = SocketAddr::new(SERVER.into(), 8000);
    let mut connects = vec![format!("direct {}", client.connect(direct))];

    let mut runner = started(backend);
    let batch: Vec<_> = (0..services).map(|n| selected(n, endpoints)).collect();
    let (before, wall) = (cpu(), Instant::now());
    put(&mut runner, batch);
    let (load_cpu, load_wall) = (cpu() - before, wall.elapsed());

    let before = cpu();
    let mut changes: Vec<Duration> = (0..30)
        .map(|turn| {
            let which = turn * 7919 % services;
            let start = Instant::now();
            put(&mut runner, vec![selected(which, if turn % 2 == 0 { endpoints + 1 } else { endpoints - 1 })]);
            start.elapsed()
        })
        .collect();
    let change_cpu = (cpu() - before) / 30;
    let mut adds: Vec<Duration> = (0..10)
        .map(|n| {
            let start = Instant::now();
            put(&mut runner, vec![selected(services + n, endpoints)]);
            start.elapsed()
        })
        .collect();

    for (name, n) in [("first", 0), ("middle", services / 2), ("last", services - 1)] {
        connects.push(format!("{name} {}", client.connect(SocketAddr::new(vip(n), 80))));
    }
    connects.push(format!("no service's {}", client.connect(direct)));

    drop(runner);
    let mut batch: Vec<_> = (0..services + 10).map(|n| selected(n, endpoints)).collect();
    // What the changes above left.
    for turn in 0..30 {
        let which = turn * 7919 % services;
        batch[which as usize] = selected(which, if turn % 2 == 0 { endpoints + 1 } else { endpoints - 1 });
    }
    let (before, start) = (cpu(), Instant::now());
    let mut runner = started(backend);
    put(&mut runner, batch);
    runner.release().unwrap();
    let (restart_cpu, restart) = (cpu() - before, start.elapsed());
    assert!(runner.check().unwrap().is_empty(), "a restart changes nothing");
    let objects = runner.object_count() as u64;
    println!(
        "{:<7} {services:>7} {endpoints:>4} {:>8.2?} {:>8.2?} {:>9.1?} {:>9.1?}/{:>9.1?} {:>9.1?} {:>9.2?} {:>9.2?}  {}",
        backend.to_string(),
        load_cpu,
        load_wall,
        change_cpu,
        percentile(&mut changes, 50),
        percentile(&mut changes, 100),
        percentile(&mut adds, 50),
        restart_cpu,
        restart,
        connects.join(" · ")
    );
    let cleaned = runner.steps_mut().cleanup().unwrap();
    assert!(cleaned >= objects);
}

type Job = Box<dyn FnOnce() + Send>;

/// A host beside the node.
struct Host {
    jobs: Sender<Job>,
}

impl Host {
    fn new(name: &'static str, net: [u8; 2]) -> Self {
        let (jobs, work) = channel::<Job>();
        let (report, ready) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            report.send(gettid()).unwrap();
            work.into_iter().for_each(|job| job());
        });
        let host = Self { jobs };
        let tid = ready.recv().unwrap().to_string();
        let address = move |last: u8| format!("{}.{}.0.{last}", net[0], net[1]);
        run("ip", &["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", &tid]);
        run("ip", &["addr", "add", &format!("{}/24", address(1)), "dev", name]);
        run("ip", &["link", "set", name, "up"]);
        host.run(move || {
            run("ip", &["link", "set", "lo", "up"]);
            run("ip", &["addr", "add", &format!("{}/24", address(2)), "dev", "eth0"]);
            run("ip", &["link", "set", "eth0", "up"]);
            run("ip", &["route", "add", "default", "via", &address(1)]);
        });
        host
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (report, result) = channel();
        self.jobs.send(Box::new(move || report.send(job()).unwrap())).unwrap();
        result.recv().expect("the host's job panicked")
    }

    /// The median time of a connection, in microseconds.
    fn connect(&self, to: SocketAddr) -> String {
        let mut times = self.run(move || {
            let one = |_| {
                let start = Instant::now();
                let stream = TcpStream::connect_timeout(&to, Duration::from_secs(3)).unwrap();
                let time = start.elapsed();
                // Without TIME_WAIT: ports would run out.
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                time
            };
            (0..CONNECTIONS).map(one).collect::<Vec<Duration>>()
        });
        format!("{:.1}", percentile(&mut times, 50).as_secs_f64() * 1e6)
    }
}

/// Client and server beside the node; returns the client.
fn lab() -> Host {
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    let client = Host::new("client", [10, 1]);
    let server = Host::new("server", [10, 2]);
    server.run(|| {
        for port in 8000..8008 {
            let listener = TcpListener::bind((SERVER, port)).unwrap();
            thread::spawn(move || listener.incoming().for_each(drop));
        }
    });
    // Its namespace lives as long as its thread.
    std::mem::forget(server);
    client
}
