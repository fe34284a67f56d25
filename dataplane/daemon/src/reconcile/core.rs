//! The state of the node as the API sees it. The reconciler alone writes it, in short sections; readers take the read
//! lock, copy what they need (values are shared by `Arc`) and let go.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use vipd_engine::Node;
use vipd_model::choose::choose;
use vipd_model::select::{Selected, Serve, select};
use vipd_model::{
    Algorithm, Desired, EndpointState, EngineKind, Frontend, Millis, Network, OwnerName, OwnerRecord, Problem,
    ProblemCode, Revision, Revisions, Service, ServiceKey,
};

use super::changes::Changes;
use super::journal::{Event, EventKind, Journal};
use super::totals::Totals;
use super::track::{NodeTrack, ServiceState, Tracks};

/// Why objects in the kernel that nobody declared are kept for now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// Started without a store over a kernel that has objects of ours.
    Unknown,
    /// This owner has to send its whole state first.
    Owner(OwnerName),
    /// The stored state is being programmed.
    Starting,
}

/// Counts since the start, for metrics.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Commands taken in.
    pub commands: u64,
    /// Of those, refused.
    pub refused: u64,
    /// Calls that wait until what they asked for is in force.
    pub waiting: u64,
    /// Transactions of the store.
    pub commits: u64,
    /// Batches handed to engines.
    pub batches: u64,
    /// Services programmed.
    pub programmed: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// Objects found missing, changed or left over.
    pub drifts: u64,
    /// Repairs made.
    pub repairs: u64,
    /// Seconds from acceptance to in force, as sums for a histogram: see `LATENCY_BUCKETS`.
    pub latency: [u64; LATENCY_BUCKETS.len() + 1],
    /// Their sum, in seconds.
    pub latency_sum: f64,
}

/// Upper bounds of the programming latency histogram, in seconds.
pub const LATENCY_BUCKETS: [f64; 12] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

impl Figures {
    /// Counts one latency.
    pub fn latency(&mut self, seconds: f64) {
        let bucket = LATENCY_BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(LATENCY_BUCKETS.len());
        self.latency[bucket] += 1;
        self.latency_sum += seconds;
    }
}

/// Everything that the API reads.
pub struct Core {
    /// What was declared.
    pub desired: Desired,
    /// What of it is in force.
    pub tracks: Tracks,
    /// What of the node's own rules is in force.
    pub node_track: NodeTrack,
    /// For `Watch`.
    pub changes: Changes,
    /// For `Events`.
    pub journal: Journal,
    /// What services are rendered for.
    pub node: Arc<Node>,
    /// Identity of the store.
    pub epoch: String,
    /// When this process began to serve.
    pub started: Millis,
    /// Why strays are kept; empty: they are not.
    pub holds: BTreeSet<Hold>,
    /// Owners whose lease has run out.
    pub expired: BTreeSet<OwnerName>,
    /// The store takes no writes, and why.
    pub store_problem: Option<Problem>,
    /// What is stored does not get to the disk, and why.
    pub store_trouble: Option<Problem>,
    /// An engine or the guard has not answered for long: which, since when.
    pub stalled: Option<(String, Millis)>,
    /// Of the host, the store at start, and the engines.
    pub findings: Vec<Problem>,
    /// The state declared at start has been tried once.
    pub ready: bool,
    /// For metrics.
    pub figures: Figures,
    /// What engines have counted for services that they gave up.
    pub totals: Totals,
    /// Counters have not gone back since.
    pub counted_since: Millis,
}

/// Everything about a service that was not declared.
#[derive(Clone, Debug)]
pub struct Status {
    /// Where it stands.
    pub state: ServiceState,
    /// Of its parts.
    pub revisions: Revisions,
    /// What of it is in force.
    pub programmed_revision: Revision,
    /// Since when.
    pub programmed_at: Option<Millis>,
    /// What serves it.
    pub engine: Option<EngineKind>,
    /// Still carries established flows after a switch.
    pub draining_engine: Option<EngineKind>,
    /// What runs.
    pub algorithm: Option<Algorithm>,
    /// What a person should know.
    pub problems: Vec<Problem>,
    /// Endpoints that may take new flows.
    pub usable_endpoints: u32,
    /// READY and local.
    pub local_ready_endpoints: u32,
    /// Frontends that another service holds.
    pub waiting: Vec<u32>,
}

impl Core {
    /// The newest revision before which nothing accepted is on its way; failed services do not hold it back.
    #[must_use]
    pub fn programmed_revision(&self) -> Revision {
        let node = self.node_track.pending_since.filter(|_| self.node_track.failure.is_none());
        match self.tracks.oldest_pending().into_iter().chain(node).min() {
            Some(oldest) => Revision(oldest.0.saturating_sub(1)),
            None => self.desired.revision(),
        }
    }

    /// Why this service is deliberately not served, if so: its owner's lease, or its restart policy.
    #[must_use]
    pub fn withdrawn(&self, key: &ServiceKey) -> Option<Problem> {
        let record = self.desired.owner(&key.owner)?;
        if self.holds.contains(&Hold::Owner(key.owner.clone())) && record.last_sync.is_none_or(|at| at < self.started) {
            let text = format!("owner {} restarts with AWAIT_SYNC and has not synced yet; send a Sync", key.owner);
            return Some(Problem::new(ProblemCode::NotProgrammed, "", text));
        }
        let lease = record.owner.lease?;
        (self.expired.contains(&key.owner) && lease.on_expiry == vipd_model::LeaseExpiry::Withdraw)
            .then(|| self.lease_problem(record))
    }

    /// LEASE_EXPIRED of an owner.
    #[must_use]
    pub fn lease_problem(&self, record: &OwnerRecord) -> Problem {
        let since = self.lease_expires(record);
        let text = format!("the lease of owner {} has run out; it has to write or RenewLease", record.owner.name);
        Problem { since, ..Problem::new(ProblemCode::LeaseExpired, "", text) }
    }

    /// When a lease runs out: a start of the daemon grants a full one.
    #[must_use]
    pub fn lease_expires(&self, record: &OwnerRecord) -> Option<Millis> {
        let ttl = u64::try_from(record.owner.lease?.ttl.as_millis()).unwrap_or(u64::MAX);
        Some(Millis(record.last_write.max(self.started).0.saturating_add(ttl)))
    }

    /// What the engines are given for a service, and the standing notes of that choice.
    ///
    /// # Errors
    /// No engine is usable at all.
    pub fn selected(&self, service: &Arc<Service>) -> Result<(Selected, Vec<Problem>), Problem> {
        self.selected_by(self.desired.default_engine(), service)
    }

    /// The same if this were the default engine.
    ///
    /// # Errors
    /// As [`Self::selected`].
    pub fn selected_by(
        &self,
        default_engine: Option<EngineKind>,
        service: &Arc<Service>,
    ) -> Result<(Selected, Vec<Problem>), Problem> {
        let choice = choose(self.desired.engines(), default_engine, service).ok_or_else(|| {
            let text = "no engine is usable on this node; `vipd check` says what each of them lacks";
            Problem::new(ProblemCode::EngineUnusable, "", text)
        })?;
        Ok((select(service, choice.engine, choice.algorithm), choice.problems))
    }

    /// The status of a declared service.
    #[must_use]
    pub fn status(&self, service: &Arc<Service>) -> Status {
        let track = self.tracks.get(&service.key).cloned().unwrap_or_default();
        let mut problems = track.notes.clone();
        problems.extend(track.failure.as_ref().map(|failure| failure.problem.clone()));
        problems.extend(track.withdrawn.as_deref().cloned());
        problems.extend(track.health_port.as_deref().cloned());
        problems.extend(self.contest_problems(service));
        if track.withdrawn.is_none()
            && self.expired.contains(&service.key.owner)
            && let Some(record) = self.desired.owner(&service.key.owner)
        {
            problems.push(self.lease_problem(record));
        }
        let local_ready = |e: &&vipd_model::Endpoint| e.local && e.state == EndpointState::Ready;
        Status {
            state: track.state(),
            revisions: service.revisions,
            programmed_revision: track.programmed.as_ref().map_or(Revision(0), |s| s.revisions.newest()),
            programmed_at: track.programmed_at,
            engine: track.engine,
            draining_engine: track.draining_engine(),
            algorithm: track.algorithm,
            problems,
            usable_endpoints: usable(service),
            local_ready_endpoints: u32::try_from(service.endpoints.iter().filter(local_ready).count())
                .unwrap_or(u32::MAX),
            waiting: service.waiting.clone(),
        }
    }

    fn contest_problems(&self, service: &Service) -> Vec<Problem> {
        let waiting = service.waiting.iter().filter_map(|index| {
            let frontend = service.definition.frontends.get(*index as usize)?;
            let holder = self.holder(service, frontend).map_or_else(|| "another".to_owned(), ToString::to_string);
            let text = format!("{frontend} is held by service {holder}; this service has it when it is free");
            Some(Problem::new(ProblemCode::FrontendTaken, format!("service.frontends[{index}]"), text))
        });
        waiting.collect()
    }

    /// Who holds a frontend that a service waits for.
    fn holder(&self, service: &Service, frontend: &Frontend) -> Option<&ServiceKey> {
        let (protocol, ports) = (service.definition.protocol, frontend.ports);
        let holder = frontend.spans().find_map(|span| self.desired.holder(span.place, protocol, ports.first));
        holder.map(|(service, _)| &service.key)
    }

    /// Addresses of this node that a virtual range holds: its own ports there are refused.
    #[must_use]
    pub fn own_addresses_in_virtual_ranges(&self) -> Vec<Problem> {
        let ranges = &self.node.network.virtual_ranges;
        let holding = |address: &IpAddr| ranges.iter().find(|range| range.contains(address));
        let held = self.node.addresses.iter().filter_map(|address| Some((address, holding(address)?)));
        let problem = |(address, range): (&IpAddr, &ipnet::IpNet)| {
            let text = format!(
                "{address} is an address of this node and in the virtual range {range}, where every port that no service \
                 has is refused: the node's own services there do not answer; take it out of the owner's virtual_ranges"
            );
            Problem::new(ProblemCode::Host, "", text)
        };
        held.map(problem).collect()
    }

    /// What serves each service that names no engine.
    #[must_use]
    pub fn engines_of_followers(&self) -> HashMap<ServiceKey, EngineKind> {
        let follow = self.desired.services().filter(|service| service.definition.engine.is_none());
        follow.filter_map(|service| Some((service.key.clone(), self.tracks.get(&service.key)?.engine?))).collect()
    }

    /// Services by the engine that serves them.
    #[must_use]
    pub fn services_by_engine(&self) -> BTreeMap<EngineKind, u64> {
        let mut counts = BTreeMap::new();
        for (_, track) in self.tracks.iter() {
            if let Some(engine) = track.engine {
                *counts.entry(engine).or_default() += 1;
            }
        }
        counts
    }

    /// Writes a line of the journal about a service.
    pub fn log(
        &mut self,
        at: Millis,
        kind: EventKind,
        actor: &str,
        key: &ServiceKey,
        revision: Revision,
        text: String,
    ) {
        self.journal.push(Event {
            sequence: 0,
            at,
            kind,
            actor: actor.to_owned(),
            owner: Some(key.owner.clone()),
            name: Some(key.name.clone()),
            revision,
            text,
        });
    }

    /// Writes a line of the journal about the node or an owner.
    pub fn log_node(&mut self, at: Millis, kind: EventKind, actor: &str, owner: Option<&OwnerName>, text: String) {
        self.journal.push(Event {
            sequence: 0,
            at,
            kind,
            actor: actor.to_owned(),
            owner: owner.cloned(),
            name: None,
            revision: Revision(0),
            text,
        });
    }
}

/// What the owners know of the network, together.
#[must_use]
pub fn network(desired: &Desired) -> Network {
    let mut network = Network::default();
    desired.owners().for_each(|record| network.merge(&record.owner.network));
    network
}

/// Endpoints that may take a new flow through some frontend of the service.
fn usable(service: &Arc<Service>) -> u32 {
    let selected = select(service, EngineKind::Userspace, Algorithm::Rr);
    let serves = |wanted| move |s: &&vipd_model::FrontendSelection| s.inside == wanted || s.outside == wanted;
    let any_local = selected.frontends.iter().any(|s| serves(Serve::Local)(&s));
    let any_all = selected.frontends.iter().any(|s| serves(Serve::All)(&s)) || !any_local;
    let mut members: BTreeSet<u32> = BTreeSet::new();
    for (wanted, sets) in [(any_all, &selected.all), (any_local, &selected.local)] {
        if wanted {
            members.extend(sets.iter().flat_map(|set| set.members.iter().copied()));
        }
    }
    u32::try_from(members.len()).unwrap_or(u32::MAX)
}
