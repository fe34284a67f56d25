//! One look at everything that is counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use vipd_engine::ServiceCounters;
use vipd_model::{EngineKind, Millis, ServiceKey};
use vipd_userspace::Proxy;
use vipd_userspace::stats::ProxyStatistics;

use crate::api::intake::Intake;
use crate::api::transport::Seats;
use crate::reconcile::core::Figures;
use crate::reconcile::run::Clock;
use crate::reconcile::{Control, Core, ServiceState};

/// Services with series of their own: beyond it a scrape would cost more than it tells. GetStats has all.
pub(super) const SERVICE_SERIES: usize = 1_000;

/// Where figures come from.
#[derive(Clone)]
pub struct Sources {
    /// The reconciler.
    pub control: Control,
    /// The time of day.
    pub clock: Clock,
    /// The data path.
    pub proxy: Arc<Proxy>,
    /// Connections to the API.
    pub seats: Seats,
    /// Requests under way.
    pub intake: Intake,
    /// Watch and Events streams.
    pub streams: Arc<dyn Fn() -> usize + Send + Sync>,
}

/// What was found.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) node: Node,
    pub(super) proxy: ProxyStatistics,
    pub(super) counters: Vec<ServiceCounters>,
    pub(super) connections: usize,
    pub(super) turned_away: usize,
    pub(super) streams: usize,
    pub(super) intake_bytes: usize,
    pub(super) process: Process,
}

/// Of the reconciler.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) ready: bool,
    pub(super) healthy: bool,
    pub(super) holding: bool,
    pub(super) store_writable: bool,
    pub(super) store_synced: bool,
    pub(super) drained: (u64, u64),
    pub(super) revision: u64,
    pub(super) programmed_revision: u64,
    pub(super) started: Millis,
    pub(super) stalled_since: Option<Millis>,
    pub(super) owners: usize,
    pub(super) expired_leases: usize,
    pub(super) states: BTreeMap<&'static str, u64>,
    pub(super) engines: BTreeMap<EngineKind, u64>,
    pub(super) endpoints: u64,
    pub(super) events: u64,
    pub(super) findings: usize,
    pub(super) figures: Figures,
}

/// Of the process and the kernel; absent: not to be had here.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) open_fds: Option<u64>,
    pub(super) max_fds: Option<u64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) conntrack: Option<u64>,
    pub(super) conntrack_max: Option<u64>,
}

impl Snapshot {
    /// Looks. Counters that an engine cannot give now are left out.
    pub async fn take(sources: &Sources) -> Self {
        let now = (sources.clock)();
        let (node, keys) = sources.control.read(|core| (Node::of(core, now), keys(core)));
        let counters = if keys.is_empty() { Ok(Vec::new()) } else { sources.control.counters(keys).await };
        let live = sources.control.findings().await.unwrap_or_default().problems.len();
        Self {
            node: Node { findings: node.findings + live, ..node },
            proxy: sources.proxy.totals(),
            counters: counters.unwrap_or_default(),
            connections: sources.seats.taken(),
            turned_away: sources.seats.turned_away(),
            streams: (sources.streams)(),
            intake_bytes: sources.intake.used(),
            process: Process::look(),
        }
    }
}

fn keys(core: &Core) -> Vec<ServiceKey> {
    core.desired.services().take(SERVICE_SERIES).map(|service| service.key.clone()).collect()
}

impl Node {
    fn of(core: &Core, now: Millis) -> Self {
        let mut states = BTreeMap::from([("in_force", 0), ("pending", 0), ("failed", 0), ("withdrawn", 0)]);
        for (_, track) in core.tracks.iter() {
            let state = match track.state() {
                ServiceState::InForce => "in_force",
                ServiceState::Pending => "pending",
                ServiceState::Failed => "failed",
                ServiceState::Withdrawn => "withdrawn",
            };
            *states.entry(state).or_default() += 1;
        }
        Self {
            ready: core.ready,
            healthy: core.unhealthy(now).is_none(),
            holding: core.holding().is_some(),
            store_writable: core.store_problem.is_none(),
            store_synced: core.store_trouble.is_none(),
            drained: core.drained(),
            revision: core.desired.revision().0,
            programmed_revision: core.programmed_revision().0,
            started: core.started,
            stalled_since: core.stalled.as_ref().map(|(_, since)| *since),
            owners: core.desired.owners().count(),
            expired_leases: core.expired.len(),
            states,
            engines: core.services_by_engine(),
            endpoints: core.desired.owners().map(|r| core.desired.tally(&r.owner.name).endpoints as u64).sum(),
            events: core.journal.newest(),
            findings: core.findings.len(),
            figures: core.figures.clone(),
        }
    }
}

impl Process {
    fn look() -> Self {
        use nix::sys::resource::{Resource, getrlimit};
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse().ok();
        // Second field of statm: resident pages. The page size of every kernel we run on divides by 4 KiB.
        let pages = std::fs::read_to_string("/proc/self/statm").ok();
        let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
        let page = page.and_then(|bytes| u64::try_from(bytes).ok());
        Self {
            open_fds: std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as u64),
            max_fds: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
            resident_bytes: pages.zip(page).map(|(pages, page)| pages * page),
            conntrack: number("/proc/sys/net/netfilter/nf_conntrack_count"),
            conntrack_max: number("/proc/sys/net/netfilter/nf_conntrack_max"),
        }
    }
}
