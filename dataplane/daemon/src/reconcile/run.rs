//! The loop. Each turn starts what can be started (a commit, one thing at the engines, a cleaning walk), then waits for a
//! result, the clock or a caller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use vipd_engine::{FlowFilter, Node};
use vipd_model::{Desired, EngineKind, Millis, OwnerName, Problem, Revision, ServiceKey};

use super::accept::Committing;
use super::busy::Busy;
use super::changes::Changes;
use super::clean::{Cleaning, Walk};
use super::control::{Ask, CallError, Control};
use super::core::{Core, Figures, network};
use super::drain::{Counted, Drains};
use super::drift::Checked;
use super::holds::{self, Release, Released};
use super::journal::Journal;
use super::lanes::Lanes;
use super::persist::{Persist, PersistError};
use super::program::{Item, Programmed};
use super::totals::Totals;
use super::track::{NodeTrack, Tracks};
use super::upkeep::KEEP_EVERY;
use super::waiters::Waiters;
use super::worker::{Gone, Worker};
use crate::health::HealthPorts;
use crate::store::totals::Kept;

/// Knobs, with the defaults of the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// First retry of a failed service; doubled each time.
    pub retry_first: Duration,
    /// Longest pause between retries.
    pub retry_most: Duration,
    /// From one read of the whole kernel to the next.
    pub check_every: Duration,
    /// From one cheap look whether somebody else wrote to the kernel to the next.
    pub poll_every: Duration,
    /// Whatever lasts longer (a batch, a commit of the store, a read-back) makes the node unhealthy.
    pub stalled_after: Duration,
    /// Services in one batch. Bounds how long a change waits behind a large load.
    pub batch: usize,
    /// Events kept.
    pub journal: usize,
    /// Owners that must have synced before strays are removed, when there was no store.
    pub wait_for_owners: BTreeSet<OwnerName>,
    /// Which of the node's addresses serve node ports; empty: all.
    pub node_port_addresses: Vec<ipnet::IpNet>,
    /// What happens to INVALID packets that concern a frontend.
    pub invalid_packets: vipd_engine::InvalidPackets,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            retry_first: Duration::from_secs(1),
            retry_most: Duration::from_secs(60),
            check_every: Duration::from_secs(60),
            poll_every: Duration::from_millis(250),
            stalled_after: Duration::from_secs(30),
            batch: 4096,
            journal: 10_000,
            wait_for_owners: BTreeSet::new(),
            node_port_addresses: Vec::new(),
            invalid_packets: vipd_engine::InvalidPackets::default(),
        }
    }
}

/// Tells the time of day.
pub type Clock = Arc<dyn Fn() -> Millis + Send + Sync>;

/// What the reconciler starts from.
pub struct Start {
    /// Restored from the store, or empty.
    pub desired: Desired,
    /// Identity of the store.
    pub epoch: String,
    /// The store was there: what was declared is known to be complete.
    pub known: bool,
    /// Takes Deltas.
    pub persist: Worker<dyn Persist>,
    /// Takes no Deltas, and why: changes are refused.
    pub store_problem: Option<Problem>,
    /// Move packets; they have read the kernel.
    pub lanes: Lanes,
    /// How many objects of ours the kernel had.
    pub kernel_objects: u64,
    /// Of this node.
    pub addresses: Vec<std::net::IpAddr>,
    /// Of the host and of the store.
    pub findings: Vec<Problem>,
    /// What was counted before this start.
    pub counted: Kept,
    /// Tells the time.
    pub clock: Clock,
    /// Knobs.
    pub settings: Settings,
}

/// Why the loop ended without being told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// What it knew of the kernel is lost; a restart reads it back.
    #[error("a worker thread died; restart to read the kernel back")]
    Worker(#[from] Gone),
}

/// Something that was started is done.
pub(super) enum Done {
    Committed(Result<Result<(), PersistError>, Gone>),
    Applied(Result<(Vec<Item>, Programmed), Gone>),
    NodeSet(Result<Result<Vec<FlowFilter>, Problem>, Gone>),
    Cleaned(Result<(Walk, Result<(), String>), Gone>),
    Checked(Result<Checked, Gone>),
    Released(Result<Result<Released, Problem>, Gone>),
    Counted(Result<Counted, Gone>, Vec<oneshot::Sender<Result<u64, CallError>>>),
    Query(Option<Gone>),
    StoreSeen(Result<Option<String>, Gone>),
}

/// What is under way at the engines and the guard: one thing at a time.
pub(super) enum UnderWay {
    /// Services, to be served by these engines.
    Batch(BTreeSet<EngineKind>),
    /// The node's own rules, up to this change.
    Node(Revision),
    /// A read-back.
    Check,
    /// The end of the hold.
    Release,
}

/// The one owner of change.
pub struct Reconciler {
    pub(super) core: Arc<RwLock<Core>>,
    /// The accepted state with what is being stored on top of it. Only what is stored reaches `core`, so that neither a
    /// reader nor an engine ever sees what may still be taken back.
    pub(super) ahead: Desired,
    asks: mpsc::Receiver<Ask>,
    pub(super) done: mpsc::UnboundedSender<Done>,
    done_queue: mpsc::UnboundedReceiver<Done>,
    changed: watch::Sender<u64>,
    pub(super) persist: Worker<dyn Persist>,
    pub(super) lanes: Lanes,
    pub(super) clock: Clock,
    pub(super) settings: Settings,
    /// Everything up to here came from the store.
    pub(super) restored: Revision,
    /// Taken in and being stored.
    pub(super) committing: Option<Committing>,
    /// To be programmed with the next batch.
    pub(super) due: BTreeSet<ServiceKey>,
    pub(super) under_way: Option<UnderWay>,
    pub(super) busy: Busy,
    /// The node itself is to be rendered anew, not before then.
    pub(super) node_due: Option<Instant>,
    pub(super) cleaning: Cleaning,
    pub(super) release: Release,
    pub(super) drains: Drains,
    /// When the whole kernel is read again.
    pub(super) check_due: Instant,
    /// When the engines are asked again whether somebody else wrote to it.
    pub(super) poll_due: Instant,
    pub(super) waiters: Waiters,
    pub(super) health_ports: HealthPorts,
    pub(super) last_health_retry: Instant,
    /// When the store is asked again how it fares.
    pub(super) store_look_due: Instant,
    /// When what was counted is kept again.
    pub(super) keep_due: Instant,
    /// When a change was accepted, for the latency histogram; only of services that are pending.
    pub(super) accepted_at: BTreeMap<ServiceKey, Instant>,
    stopping: Option<oneshot::Sender<()>>,
}

/// Calls that wait to be taken in; more are made to wait in their own tasks.
const QUEUE: usize = 4096;
/// Calls taken in with one commit.
const INTAKE: usize = 1024;

impl Reconciler {
    /// Makes the state and its handle. Nothing runs before [`Reconciler::run`].
    #[must_use]
    pub fn new(start: Start) -> (Control, Self) {
        let now = (start.clock)();
        let newest_session = start.desired.owners().map(|record| record.session).max().unwrap_or(0);
        let holds = holds::at_start(&start);
        let keys: BTreeSet<ServiceKey> = start.desired.services().map(|service| service.key.clone()).collect();
        let known = keys.clone();
        let revision = start.desired.revision();
        let mut tracks = Tracks::default();
        for service in start.desired.services() {
            let newest = service.revisions.newest();
            tracks.update(&service.key, |track| (track.wanted, track.pending_since) = (newest, Some(newest)));
        }
        let ahead = start.desired.clone();
        let core = Core {
            tracks,
            node_track: NodeTrack { wanted: revision, pending_since: Some(revision), failure: None },
            changes: Changes::new(revision),
            journal: Journal::new(start.settings.journal),
            node: Arc::new(Node {
                network: network(&start.desired),
                addresses: start.addresses,
                node_port_addresses: start.settings.node_port_addresses.clone(),
                invalid_packets: start.settings.invalid_packets,
            }),
            desired: start.desired,
            epoch: start.epoch,
            started: now,
            holds,
            expired: BTreeSet::new(),
            store_problem: start.store_problem,
            store_trouble: None,
            stalled: None,
            findings: start.findings,
            ready: false,
            figures: Figures::default(),
            counted_since: start.counted.since,
            totals: Totals::restored(start.counted.services, |key| known.contains(key)),
        };
        let core = Arc::new(RwLock::new(core));
        let (asks_in, asks) = mpsc::channel(QUEUE);
        let (done, done_queue) = mpsc::unbounded_channel();
        let (changed, changed_out) = watch::channel(0);
        let control = Control {
            asks: asks_in,
            core: Arc::clone(&core),
            changed: changed_out,
            tickets: Arc::new(AtomicU64::new(newest_session)),
        };
        let (at, check_every) = (Instant::now(), start.settings.check_every);
        let health_core = Arc::clone(&core);
        let reconciler = Self {
            core,
            ahead,
            asks,
            done,
            done_queue,
            changed,
            persist: start.persist,
            lanes: start.lanes,
            clock: start.clock,
            settings: start.settings,
            restored: revision,
            committing: None,
            due: keys,
            under_way: None,
            busy: Busy::default(),
            node_due: Some(at),
            cleaning: Cleaning::default(),
            release: Release::default(),
            drains: Drains::default(),
            check_due: at + check_every,
            poll_due: at,
            waiters: Waiters::default(),
            health_ports: HealthPorts::new(health_core),
            last_health_retry: at,
            store_look_due: at,
            keep_due: at + KEEP_EVERY,
            accepted_at: BTreeMap::new(),
            stopping: None,
        };
        (control, reconciler)
    }

    /// Runs until it is told to stop, or every handle is gone.
    ///
    /// # Errors
    /// [`Fatal`]: the process must be started again.
    pub async fn run(mut self) -> Result<(), Fatal> {
        let mut buffer = Vec::with_capacity(INTAKE);
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.start_what_can();
            if self.committing.is_none()
                && let Some(stopped) = self.stopping.take()
            {
                self.keep_totals(true).await;
                self.persist.call(|persist| persist.end()).await?;
                let _ = stopped.send(());
                return Ok(());
            }
            tokio::select! {
                biased;
                Some(done) = self.done_queue.recv() => self.take_done(done)?,
                _ = tick.tick() => self.upkeep(),
                taken = self.asks.recv_many(&mut buffer, INTAKE), if self.committing.is_none() => {
                    if taken == 0 {
                        return Ok(());
                    }
                    self.take_asks(&mut buffer);
                }
            }
        }
    }

    fn start_what_can(&mut self) {
        if self.under_way.is_none() {
            if self.node_due.is_some_and(|at| at <= Instant::now()) {
                self.start_node();
            } else if self.check_is_due() {
                self.start_check();
            } else if !self.due.is_empty() {
                self.start_batch();
            } else if self.release_is_due() {
                self.start_release();
            }
        }
        self.start_cleaning();
        self.start_counting();
    }

    fn take_asks(&mut self, buffer: &mut Vec<Ask>) {
        let mut commands = Vec::with_capacity(buffer.len());
        for ask in buffer.drain(..) {
            match ask {
                Ask::Submit { command, wait, reply } => commands.push((command, wait, reply)),
                Ask::Plan { operations, engine, reply } => self.plan(operations, engine, reply),
                Ask::Verify { service, reply } => self.verify(service, reply),
                Ask::Counters { services, reply } => self.counters(services, reply),
                Ask::Findings { reply } => self.findings(reply),
                Ask::Pins { engine, service, client, flow, reply } => self.pins(engine, service, client, flow, reply),
                Ask::FlowsLeft { reply } => self.flows_left(reply),
                Ask::View { service, at, reply } => self.view(service, at, reply),
                Ask::ReleaseHold { actor, note, reply } => self.release_hold(&actor, &note, reply),
                Ask::Addresses(addresses) => self.take_addresses(addresses),
                Ask::Refused { actor, service, text } => self.journal_refused(&actor, service.as_ref(), text),
                Ask::Stop { reply } => self.stopping = Some(reply),
            }
        }
        if !commands.is_empty() {
            self.accept(commands);
        }
    }

    fn take_done(&mut self, done: Done) -> Result<(), Fatal> {
        match done {
            Done::Committed(result) => self.committed(result?),
            Done::Applied(result) => {
                let (items, programmed) = result?;
                self.applied(items, programmed);
            }
            Done::NodeSet(result) => self.node_set(result?),
            Done::Cleaned(result) => {
                let (walk, result) = result?;
                self.cleaned(walk, result);
            }
            Done::Checked(result) => self.checked(result?),
            Done::Released(result) => self.released(result?),
            Done::Counted(result, replies) => self.counted(&result?, replies),
            Done::StoreSeen(trouble) => self.store_seen(trouble?),
            Done::Query(gone) => return gone.map_or(Ok(()), |gone| Err(gone.into())),
        }
        Ok(())
    }

    /// Runs something beside the loop; its result comes back as [`Done`].
    pub(super) fn spawn(&self, work: impl Future<Output = Done> + Send + 'static) {
        let done = self.done.clone();
        tokio::spawn(async move {
            let _ = done.send(work.await);
        });
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Core> {
        self.core.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Core> {
        self.core.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Millis {
        (self.clock)()
    }

    /// Wakes watchers.
    pub(super) fn announce(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Whether everything that was due has been tried, and nothing is on its way.
    pub(super) fn idle(&self) -> bool {
        let at_engines = matches!(self.under_way, Some(UnderWay::Batch(_) | UnderWay::Node(_)));
        !at_engines && self.node_due.is_none() && self.due.is_empty() && self.cleaning.is_idle()
    }
}
