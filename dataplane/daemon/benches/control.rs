//! The control plane's figures: the real gRPC server over a unix socket, the real store, the reconciler, and a fake kernel.
//! `cargo bench -p vipd --bench control [-- services]`; docs/performance.md has some.
//!
//! The daemon is a process of its own (this program, started with `serve`), so that its memory and its start are its own.
//! Nothing is asserted: a machine's figures are its own.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use vipd::api::{Access, Api, Listeners, Room};
use vipd::config::{Config, Sources};
use vipd::reconcile::run::Clock;
use vipd::reconcile::{Balancer, GuardLane, Lanes, Persist, Reconciler, Settings, Start, Worker};
use vipd::store::Store;
use vipd::store::totals::Kept;
use vipd_engine::fake::{FakeEngine, FakeGuard, FakeKernel};
use vipd_engine::{Engine as _, Runner};
use vipd_model::{Desired, EngineKind, Engines, Limits, Millis, OwnerName};
use vipd_proto::v1;
use vipd_proto::v1::dataplane_client::DataplaneClient;

type Failure = Box<dyn Error + Send + Sync>;

const ENDPOINTS: u32 = 10;
const CLIENTS: u32 = 8;
/// Services declared by one Apply while loading.
const APPLY: u32 = 250;
const INTAKE: Duration = Duration::from_secs(8);
const SINGLE: usize = 4000;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [serve, directory] = arguments.as_slice()
        && serve == "serve"
    {
        let began = Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        return runtime.block_on(serve_until_told(Path::new(directory), began));
    }
    let services = arguments.first().map_or(Ok(10_000), |text| text.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(services))
}

// === The daemon ===

async fn serve_until_told(directory: &Path, began: Instant) -> Result<(), Failure> {
    let flags = vec![("socket", socket(directory).display().to_string())];
    let config = Config::parse("", "bench", &Sources { flags, ..Sources::default() })?;
    let kernel = FakeKernel::default();
    let engine = FakeEngine::new(EngineKind::Userspace, kernel.clone());
    let engines = Engines {
        abilities: BTreeMap::from([(EngineKind::Userspace, engine.ability())]),
        order: vec![EngineKind::Userspace],
        default_reason: "configured".to_owned(),
    };
    let opened = Store::open(directory)?;
    let stored = vipd::store::encode::restore(opened.store.revision(), &opened.records).stored;
    let (desired, _) = Desired::restore(engines, Limits::default(), stored);
    drop(opened.records);
    let balancer: Box<dyn Balancer> = Box::new(Runner::start(engine)?);
    let guard: Box<dyn GuardLane> = Box::new(Runner::start(FakeGuard::new(kernel.clone()))?);
    let persist: Box<dyn Persist> = Box::new(opened.store);
    let clock: Clock = Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    });
    let (control, reconciler) = Reconciler::new(Start {
        desired,
        epoch: "bench".to_owned(),
        known: true,
        persist: Worker::thread("store", persist)?,
        store_problem: None,
        counted: Kept { services: Vec::new(), since: Millis(0), whole: false },
        lanes: Lanes {
            carriers: Default::default(),
            balancers: BTreeMap::from([(EngineKind::Userspace, Worker::thread("engine", balancer)?)]),
            guard: Some(Worker::thread("guard", guard)?),
            cleaner: None,
        },
        kernel_objects: 0,
        addresses: Vec::new(),
        findings: Vec::new(),
        clock: Arc::clone(&clock),
        settings: Settings::default(),
    });
    tokio::spawn(reconciler.run());
    let access = Access::new(config.access.clone(), OwnerName::new("ops")?, true, Arc::new(Vec::new));
    let room = Room { calls: config.limits.calls, streams: config.limits.streams };
    let api = Api::new(control.clone(), clock, access, room, CancellationToken::new());
    tokio::spawn(vipd::api::serve(api, Listeners::open(&config).await?));

    let mut changed = control.changed();
    while !control.read(|core| core.ready) {
        changed.changed().await?;
    }
    println!("{}", began.elapsed().as_micros());
    // Every line asked is answered with how many messages the kernel was sent.
    let lines = tokio::task::spawn_blocking(move || {
        for _ in std::io::stdin().lines() {
            println!("{}", kernel.messages());
        }
    });
    lines.await?;
    control.stop().await;
    Ok(())
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("vipd.sock")
}

// === The clients ===

struct Daemon {
    child: Child,
    answers: BufReader<ChildStdout>,
    directory: PathBuf,
    /// From `main` until everything stored is in force.
    start: Duration,
}

impl Daemon {
    fn start(directory: &Path) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let answers = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut daemon = Self { child, answers, directory: directory.to_owned(), start: Duration::ZERO };
        daemon.start = Duration::from_micros(daemon.answer()?);
        Ok(daemon)
    }

    fn answer(&mut self) -> Result<u64, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }

    fn messages(&mut self) -> Result<u64, Failure> {
        writeln!(self.child.stdin.as_mut().ok_or("no input")?)?;
        self.answer()
    }

    fn resident_mib(&self) -> Result<f64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.split_whitespace().nth(1).ok_or("no figure")?.parse::<f64>()? / 1024.0)
    }

    async fn client(&self) -> Result<DataplaneClient<Channel>, Failure> {
        let path = socket(&self.directory);
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
        });
        Ok(DataplaneClient::new(Endpoint::from_static("http://localhost").connect_with_connector(connector).await?))
    }

    fn stop(mut self) -> Result<(), Failure> {
        drop(self.child.stdin.take());
        self.child.wait()?;
        Ok(())
    }
}

fn endpoints(salt: u64) -> Vec<v1::Endpoint> {
    let one = |n: u32| v1::Endpoint {
        address: format!("10.1.{}.{}", (salt + u64::from(n)) % 200, n + 1),
        port: 8080,
        ..Default::default()
    };
    (0..ENDPOINTS).map(one).collect()
}

fn set(service: u64, salt: u64) -> v1::SetEndpointsRequest {
    v1::SetEndpointsRequest { name: format!("s{service}"), endpoints: endpoints(salt), ..Default::default() }
}

async fn load(daemon: &Daemon, services: u32) -> Result<Duration, Failure> {
    let mut client = daemon.client().await?;
    let began = Instant::now();
    for first in (0..services).step_by(APPLY as usize) {
        let mut operations = Vec::new();
        for n in first..services.min(first + APPLY) {
            let [_, b, c, d] = n.to_be_bytes();
            let at = v1::frontend::At::Address(format!("100.{}.{c}.{d}", b | 64));
            let frontend = v1::Frontend { at: Some(at), port: 80, ..Default::default() };
            let service = v1::Service { name: format!("s{n}"), frontends: vec![frontend], ..Default::default() };
            let upsert = v1::UpsertServiceRequest { service: Some(service), ..Default::default() };
            operations.push(v1::operation::Operation::UpsertService(upsert));
            operations.push(v1::operation::Operation::SetEndpoints(set(n.into(), 0)));
        }
        let operations = operations.into_iter().map(|o| v1::Operation { operation: Some(o) }).collect();
        client.apply(v1::ApplyRequest { operations, ..Default::default() }).await?;
    }
    Ok(began.elapsed())
}

/// Acknowledged changes a second, with so many calls of each client on the way.
async fn intake(daemon: &Daemon, services: u32, in_flight: u32) -> Result<f64, Failure> {
    let (done, salt) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
    let began = Instant::now();
    let mut callers = Vec::new();
    for _ in 0..CLIENTS {
        let client = daemon.client().await?;
        for _ in 0..in_flight {
            let (mut client, done, salt) = (client.clone(), Arc::clone(&done), Arc::clone(&salt));
            callers.push(tokio::spawn(async move {
                while began.elapsed() < INTAKE {
                    let salt = salt.fetch_add(1, Ordering::Relaxed);
                    client.set_endpoints(set(salt * 7919 % u64::from(services), salt)).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, tonic::Status>(())
            }));
        }
    }
    for caller in callers {
        caller.await??;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}

/// One change after the other, sorted.
async fn single(daemon: &Daemon, services: u32) -> Result<Vec<Duration>, Failure> {
    let mut client = daemon.client().await?;
    let mut latencies = Vec::with_capacity(SINGLE);
    for n in 0..SINGLE as u64 {
        let began = Instant::now();
        client.set_endpoints(set(n * 7919 % u64::from(services), 1_000_000 + n)).await?;
        latencies.push(began.elapsed());
    }
    latencies.sort();
    Ok(latencies)
}

/// Kernel messages of four changes: another list, one endpoint less, another less, the same again.
async fn messages(daemon: &mut Daemon) -> Result<Vec<u64>, Failure> {
    let mut client = daemon.client().await?;
    let list = |endpoints: &[v1::Endpoint]| v1::SetEndpointsRequest {
        name: "s3".to_owned(),
        endpoints: endpoints.to_vec(),
        ..Default::default()
    };
    client.set_endpoints(list(&endpoints(77))).await?;
    let another = endpoints(78);
    let mut counts = Vec::new();
    let mut before = daemon.messages()?;
    for sent in [&another[..], &another[..9], &another[..8], &another[..8]] {
        client.set_endpoints(list(sent)).await?;
        let now = daemon.messages()?;
        counts.push(now - before);
        before = now;
    }
    Ok(counts)
}

async fn measure(services: u32) -> Result<(), Failure> {
    let small = tempfile::tempdir()?;
    let mut daemon = Daemon::start(small.path())?;
    load(&daemon, 10).await?;
    let few = messages(&mut daemon).await?;
    daemon.stop()?;

    let directory = tempfile::tempdir()?;
    let mut daemon = Daemon::start(directory.path())?;
    println!("| what | figure |\n|---|---|");
    println!("| memory, nothing declared | {:.1} MiB |", daemon.resident_mib()?);
    let loading = load(&daemon, services).await?;
    println!("| loading {services} services × {ENDPOINTS} endpoints, {APPLY} in an Apply | {loading:.2?} |");
    println!("| memory then, fake kernel and its books included | {:.1} MiB |", daemon.resident_mib()?);
    let latencies = single(&daemon, services).await?;
    let at = |share: f64| latencies[(latencies.len() as f64 * share) as usize];
    println!("| one SetEndpoints, in force | p50 {:.0?}, p99 {:.0?} |", at(0.5), at(0.99));
    for in_flight in [1, 32] {
        let rate = intake(&daemon, services, in_flight).await?;
        println!("| SetEndpoints in force, {CLIENTS} clients × {in_flight} in flight | {rate:.0}/s |");
    }
    let many = messages(&mut daemon).await?;
    println!("| kernel messages of four changes among 10 services | {few:?} |");
    println!("| the same among {services} | {many:?} |");
    println!("| memory after all that | {:.1} MiB |", daemon.resident_mib()?);
    daemon.stop()?;

    let daemon = Daemon::start(directory.path())?;
    println!("| start from the store until all is in force | {:.0?} |", daemon.start);
    println!("| memory after the start | {:.1} MiB |", daemon.resident_mib()?);
    daemon.stop()
}
