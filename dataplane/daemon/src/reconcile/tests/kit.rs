//! A node under test: fake engines and guard on one kernel, a store that fails on demand, and virtual time.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use vipd_engine::chaos::{Chaos, ChaosEngine, Mischief};
use vipd_engine::fake::{FakeEngine, FakeGuard, FakeKernel};
use vipd_engine::{Assignments, Engine as _, FlowFilter, GuardInput, Judge, Runner, Steps};
use vipd_model::feature::{Ability, Engines};
use vipd_model::{
    Actor, Algorithm, Command, Delta, Desired, EngineKind, Feature, Limits, Millis, Mode, Operation, Problem, Protocol,
    Request, ServiceKey, Wait,
};

use super::words::key;
use crate::reconcile::beside::{Beside, beside, is_on_loopback};
use crate::reconcile::run::Fatal;
use crate::reconcile::{
    Accepted, Balancer, CallError, Cleaner, Control, Core, GuardLane, Lanes, Persist, PersistError, Reconciler,
    ServiceState, Settings, Start, Watched, Worker,
};

use crate::store::totals::Kept;

/// The instant at which every test begins.
pub(super) const BEGIN: Millis = Millis(1_000_000_000);

/// What a node starts from.
pub(super) struct Setup {
    pub(super) engines: Vec<EngineKind>,
    pub(super) abilities: BTreeMap<EngineKind, Ability>,
    pub(super) kernel: FakeKernel,
    pub(super) store: TestStore,
    pub(super) desired: Option<Desired>,
    pub(super) known: bool,
    pub(super) settings: Settings,
    /// Wrapped around every engine and the guard.
    pub(super) chaos: Chaos,
    /// How long a job at an engine lasts, in microseconds.
    pub(super) pace: Pace,
    pub(super) store_problem: Option<Problem>,
    /// Engines whose flows hang on their objects.
    pub(super) carriers: Vec<EngineKind>,
    /// Engines that have nothing in the kernel while they serve nobody.
    pub(super) resting: Vec<EngineKind>,
    /// Of this node.
    pub(super) addresses: Vec<IpAddr>,
    /// Hold the order of captures and balancers at every step; not where somebody else writes to the kernel too.
    pub(super) watch_order: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            engines: vec![EngineKind::Userspace, EngineKind::Nftables],
            abilities: BTreeMap::new(),
            kernel: FakeKernel::default(),
            store: TestStore::default(),
            desired: None,
            known: true,
            settings: Settings::default(),
            chaos: Chaos::new(1, Mischief::default()),
            pace: Pace::default(),
            store_problem: None,
            carriers: Vec::new(),
            resting: Vec::new(),
            addresses: Vec::new(),
            watch_order: true,
        }
    }
}

/// A number that tests change while workers read it.
#[derive(Clone, Default)]
pub(super) struct Pace(Arc<AtomicU64>);

impl Pace {
    pub(super) fn set(&self, lasts: Duration) {
        self.0.store(u64::try_from(lasts.as_micros()).unwrap(), Ordering::Relaxed);
    }

    pub(super) fn of(lasts: Duration) -> Self {
        let pace = Self::default();
        pace.set(lasts);
        pace
    }

    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// A store in memory.
#[derive(Clone, Default)]
pub(super) struct TestStore(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    commits: u64,
    deltas: Vec<Arc<Delta>>,
    failing: Option<PersistError>,
    kept: Option<Kept>,
}

impl TestStore {
    pub(super) fn commits(&self) -> u64 {
        self.0.lock().unwrap().commits
    }

    pub(super) fn deltas(&self) -> Vec<Arc<Delta>> {
        self.0.lock().unwrap().deltas.clone()
    }

    /// What was counted, as it was last kept.
    pub(super) fn kept(&self) -> Option<Kept> {
        self.0.lock().unwrap().kept.clone()
    }

    pub(super) fn fail(&self, failing: bool, read_only: bool) {
        let error = PersistError { message: "disk full (test)".to_owned(), read_only };
        self.0.lock().unwrap().failing = failing.then_some(error);
    }
}

impl Persist for TestStore {
    fn commit(&mut self, deltas: &[Arc<Delta>]) -> Result<(), PersistError> {
        let mut stored = self.0.lock().unwrap();
        if let Some(error) = &stored.failing {
            return Err(error.clone());
        }
        stored.commits += 1;
        stored.deltas.extend(deltas.iter().cloned());
        Ok(())
    }

    fn keep(&mut self, kept: Kept) {
        self.0.lock().unwrap().kept = Some(kept);
    }
}

/// Counts the walks and what they were to forget; fails on demand. Has the flows that a test gives it.
#[derive(Clone, Default)]
pub(super) struct TestCleaner(Arc<Mutex<Tracked>>);

#[derive(Default)]
struct Tracked {
    walks: Vec<Vec<FlowFilter>>,
    judged: Vec<Judge>,
    failing: bool,
    /// By number: protocol, where the client sent it, who answers.
    flows: BTreeMap<u32, (Protocol, SocketAddr, SocketAddr)>,
}

impl TestCleaner {
    pub(super) fn walks(&self) -> Vec<Vec<FlowFilter>> {
        self.0.lock().unwrap().walks.clone()
    }

    /// The rules by which it was to judge.
    pub(super) fn judged(&self) -> Vec<Judge> {
        self.0.lock().unwrap().judged.clone()
    }

    /// The kernel tracks these flows: protocol, where the client sent it, who answers.
    pub(super) fn track(&self, flows: &[(Protocol, &str, &str)]) {
        let flows = flows.iter().map(|(protocol, to, from)| (*protocol, to.parse().unwrap(), from.parse().unwrap()));
        self.0.lock().unwrap().flows = (1..).zip(flows).collect();
    }

    pub(super) fn tracked(&self) -> usize {
        self.0.lock().unwrap().flows.len()
    }

    pub(super) fn fail(&self, failing: bool) {
        self.0.lock().unwrap().failing = failing;
    }
}

impl Cleaner for TestCleaner {
    fn clean(&mut self, filters: &[FlowFilter], judge: &Judge) -> Result<(), String> {
        let mut state = self.0.lock().unwrap();
        if state.failing {
            return Err("conntrack: test".to_owned());
        }
        state.walks.push(filters.to_vec());
        if !judge.is_empty() {
            state.judged.push(judge.clone());
        }
        Ok(())
    }

    fn carried(&mut self, watched: &Watched) -> Result<BTreeMap<ServiceKey, Vec<u32>>, String> {
        let state = self.0.lock().unwrap();
        let mut carried: BTreeMap<ServiceKey, Vec<u32>> = BTreeMap::new();
        for (id, (protocol, to, from)) in &state.flows {
            if let Some((key, answerers)) = watched.find(*protocol, to.ip(), to.port())
                && answerers.allow(from.ip(), from.port(), to.port())
            {
                carried.entry(key.clone()).or_default().push(*id);
            }
        }
        Ok(carried)
    }

    fn cut(&mut self, flows: &[u32]) -> Result<(), String> {
        self.0.lock().unwrap().flows.retain(|id, _| !flows.contains(id));
        Ok(())
    }
}

/// A running node.
pub(super) struct Node {
    pub(super) control: Control,
    pub(super) kernel: FakeKernel,
    pub(super) store: TestStore,
    pub(super) chaos: Chaos,
    pub(super) pace: Pace,
    /// Of the walk that forgets flows.
    pub(super) cleaning_pace: Pace,
    pub(super) cleaner: TestCleaner,
    pub(super) lanes: Lanes,
    resting: Vec<EngineKind>,
    dead: Arc<AtomicBool>,
    began: Instant,
    violations: Arc<Mutex<Vec<String>>>,
    pub(super) run: JoinHandle<Result<(), Fatal>>,
}

/// What every engine can do, in the configured order.
pub(super) fn engines(order: &[EngineKind], abilities: &BTreeMap<EngineKind, Ability>) -> Engines {
    let all = order.iter().map(|kind| (*kind, FakeEngine::new(*kind, FakeKernel::default()).ability()));
    let mut engines = Engines { abilities: all.collect(), order: order.to_vec(), default_reason: "test".to_owned() };
    engines.abilities.extend(abilities.clone());
    engines
}

/// An ability without some features and algorithms.
pub(super) fn lacking(features: &[Feature], algorithms: &[Algorithm]) -> Ability {
    let mut ability = FakeEngine::new(EngineKind::Userspace, FakeKernel::default()).ability();
    ability.features.retain(|feature| !features.contains(feature));
    ability.algorithms.retain(|algorithm| !algorithms.contains(algorithm));
    ability
}

impl Node {
    pub(super) async fn new() -> Self {
        Self::start(Setup::default()).await
    }

    /// Starts it and lets it become ready.
    pub(super) async fn start(setup: Setup) -> Self {
        let node = Self::launch(setup);
        node.settle().await;
        node
    }

    pub(super) fn launch(setup: Setup) -> Self {
        let began = Instant::now();
        let violations = Arc::default();
        if setup.watch_order {
            watch_order(&setup.kernel, &violations);
        }
        let (cleaner, cleaning_pace) = (TestCleaner::default(), Pace::default());
        let engines = engines(&setup.engines, &setup.abilities);
        let dead = Arc::new(AtomicBool::new(false));
        let pause = |pace: &Pace| {
            let (pace, dead) = (pace.clone(), Arc::clone(&dead));
            move || (!dead.load(Ordering::Relaxed)).then(|| pace.get())
        };
        let mut lanes = Lanes { carriers: setup.carriers.iter().copied().collect(), ..Lanes::default() };
        for kind in &setup.engines {
            let engine = FakeEngine::new(*kind, setup.kernel.clone());
            let engine = if setup.carriers.contains(kind) { engine.carrying() } else { engine };
            let engine = ChaosEngine::new(engine, setup.chaos.clone());
            let runner = Runner::start(engine).unwrap();
            let runner = if setup.resting.contains(kind) { runner.resting() } else { runner };
            let balancer: Box<dyn Balancer> = Box::new(runner);
            lanes.balancers.insert(*kind, Worker::task(balancer, pause(&setup.pace)));
        }
        let guard = ChaosEngine::new(FakeGuard::new(setup.kernel.clone()), setup.chaos.clone());
        let guard: Box<dyn GuardLane> = Box::new(Runner::start(guard).unwrap());
        lanes.guard = Some(Worker::task(guard, pause(&setup.pace)));
        let boxed: Box<dyn Cleaner> = Box::new(cleaner.clone());
        lanes.cleaner = Some(Worker::task(boxed, pause(&cleaning_pace)));
        let store: Box<dyn Persist> = Box::new(setup.store.clone());
        let start = Start {
            desired: setup.desired.unwrap_or_else(|| Desired::new(engines, Limits::default())),
            epoch: "epoch".to_owned(),
            known: setup.known,
            persist: Worker::task(store, pause(&Pace::default())),
            store_problem: setup.store_problem,
            counted: setup.store.kept().unwrap_or(Kept { services: Vec::new(), since: BEGIN, whole: false }),
            lanes: lanes.clone(),
            kernel_objects: setup.kernel.objects().len() as u64,
            addresses: setup.addresses,
            findings: Vec::new(),
            clock: Arc::new(move || Millis(BEGIN.0 + u64::try_from(began.elapsed().as_millis()).unwrap())),
            settings: setup.settings,
        };
        let (control, reconciler) = Reconciler::new(start);
        let run = tokio::spawn(reconciler.run());
        Self {
            control,
            kernel: setup.kernel,
            store: setup.store,
            chaos: setup.chaos,
            pace: setup.pace,
            cleaning_pace,
            cleaner,
            lanes,
            resting: setup.resting,
            dead,
            began,
            violations,
            run,
        }
    }

    /// As `kill -9` does: nothing of the process runs any further, whatever it had begun.
    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.run.abort();
    }

    /// Lets time pass.
    pub(super) async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Until the node is ready, and the tick after that.
    pub(super) async fn settle(&self) {
        while !self.read(|core| core.ready) {
            self.pass(Duration::from_millis(50)).await;
        }
        self.pass(Duration::from_millis(150)).await;
    }

    pub(super) fn read<T>(&self, look: impl FnOnce(&Core) -> T) -> T {
        self.control.read(look)
    }

    pub(super) fn now(&self) -> Millis {
        Millis(BEGIN.0 + u64::try_from(self.began.elapsed().as_millis()).unwrap())
    }

    pub(super) fn command(&self, request: Request) -> Command {
        let actor = Actor { name: "test".to_owned() };
        Command { actor, at: self.now(), session: 0, note: String::new(), request }
    }

    pub(super) async fn call(&self, request: Request) -> Result<Accepted, CallError> {
        self.control.submit(self.command(request), Wait::Programmed).await
    }

    pub(super) async fn accepted(&self, request: Request) -> Result<Accepted, CallError> {
        self.control.submit(self.command(request), Wait::Accepted).await
    }

    pub(super) async fn one(&self, operation: Operation) -> Result<Accepted, CallError> {
        self.call(Request::One(operation)).await
    }

    pub(super) async fn apply(&self, operations: Vec<Operation>) -> Result<Accepted, CallError> {
        self.call(Request::Apply { operations, mode: Mode::Atomic }).await
    }

    /// A call on its way.
    pub(super) fn begin(&self, request: Request) -> JoinHandle<Result<Accepted, CallError>> {
        let (control, command) = (self.control.clone(), self.command(request));
        tokio::spawn(async move { control.submit(command, Wait::Programmed).await })
    }

    pub(super) fn state(&self, name: &str) -> ServiceState {
        self.read(|core| core.status(core.desired.service(&key(name)).unwrap()).state)
    }

    pub(super) fn engine(&self, name: &str) -> Option<EngineKind> {
        self.read(|core| core.status(core.desired.service(&key(name)).unwrap()).engine)
    }

    /// What the kernel is to have for the accepted state.
    pub(super) fn expected(&self) -> BTreeMap<String, String> {
        self.read(|core| expected(core, &self.lanes, &self.resting))
    }

    /// Kernel, model and books agree, nobody waits, and captures were never without their balancer.
    pub(super) fn assert_settled(&self) {
        assert_eq!(self.kernel.objects(), self.expected());
        self.read(|core| assert_eq!(core.programmed_revision(), core.desired.revision()));
        assert_eq!(*self.violations.lock().unwrap(), Vec::<String>::new());
    }
}

/// What the kernel is to have for a state, rendered anew.
pub(super) fn expected(core: &Core, lanes: &Lanes, resting: &[EngineKind]) -> BTreeMap<String, String> {
    let kernel = FakeKernel::default();
    let mut numbers = Assignments::default();
    let guard = FakeGuard::new(kernel.clone());
    let mut objects = guard.render_node(&core.node, &mut numbers);
    for kind in core.desired.engines().abilities.iter().filter(|(_, ability)| ability.usable).map(|(kind, _)| *kind) {
        if !resting.contains(&kind) {
            objects.extend(FakeEngine::new(kind, kernel.clone()).render_node(&core.node, &mut numbers));
        }
    }
    for service in core.desired.services() {
        if core.withdrawn(&service.key).is_some() {
            continue;
        }
        let (selected, _) = core.selected(service).unwrap();
        let engine = FakeEngine::new(selected.engine, kernel.clone());
        let own = engine.render(&core.node, &selected, &mut numbers).unwrap();
        if !own.is_empty() {
            objects.extend(engine.render_node(&core.node, &mut numbers));
        }
        objects.extend(own);
        let mut entries = engine.guard(&core.node, &selected, &numbers);
        for Beside { selected, .. } in beside(core, lanes, core.tracks.get(&service.key), &selected) {
            let engine = FakeEngine::new(selected.engine, kernel.clone());
            objects.extend(engine.render(&core.node, &selected, &mut numbers).unwrap());
            entries.extend(engine.guard(&core.node, &selected, &numbers).into_iter().filter(is_on_loopback));
        }
        let input = GuardInput { key: service.key.clone(), entries };
        objects.extend(guard.render(&core.node, &input, &mut numbers).unwrap());
    }
    objects
}

/// A capture exists only while the balancer that it leads to has the frontend.
fn watch_order(kernel: &FakeKernel, violations: &Arc<Mutex<Vec<String>>>) {
    let violations = Arc::clone(violations);
    kernel.on_commit(move |objects| {
        for (name, value) in objects {
            let Some(spot) = name.strip_prefix("guard capture ") else { continue };
            let kind = EngineKind::ALL.into_iter().find(|kind| *value == format!("port {}", FakeEngine::port(*kind)));
            let balancer = format!("{} frontend {spot}", kind.unwrap());
            if !objects.contains_key(&balancer) {
                violations.lock().unwrap().push(format!("{name} leads nowhere: no {balancer}"));
            }
        }
    });
}
