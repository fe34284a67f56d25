//! What happens by itself: retries, leases, drift, holds, stalls.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use tokio::sync::oneshot;
use tokio::time::Instant;
use vipd_engine::FlowFilter;
use vipd_engine::runner::{Drift, Made};
use vipd_model::{LeaseExpiry, Millis, OwnerName, OwnerRecord, Problem, Restart, Revision, ServiceKey};

use super::CallError;
use super::apply::seconds_since;
use super::core::{Core, Hold};
use super::journal::EventKind;
use super::lanes::Lane;
use super::program::Lanes;
use super::run::{Done, Reconciler, Start};
use super::worker::{Gone, Worker};

/// What a read of the kernel found and mended.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// By lane: `guard`, `userspace`, …
    drifts: Vec<(String, Drift)>,
    /// Services that could not be repaired.
    failures: Vec<(ServiceKey, Problem)>,
    stale: Vec<FlowFilter>,
    /// The kernel could not be read.
    blind: Vec<String>,
    /// Whether everything was read, or only what had been disturbed.
    full: bool,
}

/// Nothing that the kernel has is removed while somebody has still to say what is wanted.
pub(super) fn holds_at_start(start: &Start) -> BTreeSet<Hold> {
    let mut holds = BTreeSet::from([Hold::Starting]);
    for record in start.desired.owners() {
        if awaits_sync(record, (start.clock)()) {
            holds.insert(Hold::Owner(record.owner.name.clone()));
        }
    }
    if !start.known && start.kernel_objects > 0 {
        if start.settings.wait_for_owners.is_empty() {
            holds.insert(Hold::Unknown);
        }
        holds.extend(start.settings.wait_for_owners.iter().cloned().map(Hold::Owner));
    }
    holds
}

/// Whether an owner's stored state is not served before its next Sync.
fn awaits_sync(record: &OwnerRecord, now: Millis) -> bool {
    let too_old = record
        .owner
        .restore_max_age
        .is_some_and(|age| u128::from(now.0.saturating_sub(record.last_write.0)) > age.as_millis());
    record.owner.on_restart == Restart::AwaitSync || too_old
}

impl Reconciler {
    /// Every 50 ms.
    pub(super) fn upkeep(&mut self) {
        let now = Instant::now();
        self.retry(now);
        self.leases();
        self.stall(now);
        if self.idle() {
            self.settle();
        }
        self.look_for_drift(now);
    }

    fn retry(&mut self, now: Instant) {
        let core = self.core.read().unwrap_or_else(PoisonError::into_inner);
        let due = |key: &&ServiceKey| {
            let failure = core.tracks.get(key).and_then(|track| track.failure.as_ref());
            failure.is_some_and(|failure| failure.retry_at <= now)
        };
        let keys: Vec<_> = core.tracks.failed().iter().filter(due).cloned().collect();
        drop(core);
        self.due.extend(keys);
    }

    fn leases(&mut self) {
        let now = self.now();
        let mut core = self.write();
        let expired: Vec<(OwnerName, LeaseExpiry)> = core
            .desired
            .owners()
            .filter(|record| !core.expired.contains(&record.owner.name))
            .filter(|record| core.lease_expires(record).is_some_and(|at| at <= now))
            .filter_map(|record| Some((record.owner.name.clone(), record.owner.lease?.on_expiry)))
            .collect();
        if expired.is_empty() {
            return;
        }
        let mut due = Vec::new();
        for (name, on_expiry) in expired {
            core.expired.insert(name.clone());
            let keys: Vec<_> = core.desired.services_of(&name).map(|service| service.key.clone()).collect();
            let what = if on_expiry == LeaseExpiry::Withdraw { "are withdrawn" } else { "stay in force" };
            let text = format!("lease expired; its {} services {what}", keys.len());
            tracing::warn!(owner = %name, "{text}");
            core.log_node(now, EventKind::Lease, "", Some(&name), text);
            keys.iter().for_each(|key| core.changes.touch_status(key));
            if on_expiry == LeaseExpiry::Withdraw {
                due.extend(keys);
            }
        }
        drop(core);
        self.due.extend(due);
        self.announce();
    }

    fn stall(&mut self, now: Instant) {
        let Some((items, since)) = &self.applying else { return };
        let lasted = now.duration_since(*since);
        if lasted < self.settings.stalled_after {
            return;
        }
        let mut core = self.write();
        if core.stalled.is_none() {
            let engines: BTreeSet<_> =
                items.iter().filter_map(|i| i.to.as_ref()).map(|s| s.engine.to_string()).collect();
            let names = engines.into_iter().collect::<Vec<_>>().join(", ");
            tracing::error!(engines = names, services = items.len(), "programming has stalled for {lasted:?}");
            let since = Millis((self.clock)().0.saturating_sub(u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX)));
            core.stalled = Some((names, since));
        }
    }

    /// Everything that was due is done: the node is ready, and what nobody wants may go.
    fn settle(&mut self) {
        let mut core = self.write();
        let news = !std::mem::replace(&mut core.ready, true);
        let release = core.holds.contains(&Hold::Starting);
        drop(core);
        if release && self.may_release() {
            self.write().holds.clear();
            self.start_release(None);
            self.announce();
        } else if news {
            self.announce();
        }
    }

    /// Ends the hold: strays are removed everywhere, the guard's captures first.
    pub(super) fn start_release(&mut self, reply: Option<oneshot::Sender<Result<u64, CallError>>>) {
        let lanes = self.lanes.clone();
        self.spawn(async move {
            let result = release(&lanes).await;
            Done::Released(reply, result)
        });
    }

    pub(super) fn released(
        &mut self,
        reply: Option<oneshot::Sender<Result<u64, CallError>>>,
        result: Result<u64, Problem>,
    ) {
        match &result {
            Ok(0) => {}
            Ok(count) => {
                let now = self.now();
                let text = format!("{count} objects of ours that no declared service needs were removed");
                self.write().log_node(now, EventKind::Repaired, "", None, text);
            }
            Err(problem) => tracing::warn!(problem = %problem.message, "left-over objects could not be removed yet"),
        }
        if let Some(reply) = reply {
            let _ = reply.send(result.map_err(|problem| CallError::Engine(problem.message)));
        }
    }

    fn look_for_drift(&mut self, now: Instant) {
        if self.checking || !self.idle() {
            return;
        }
        let full = now.duration_since(self.last_check) >= self.settings.check_every;
        if !full && now.duration_since(self.last_poll) < self.settings.poll_every {
            return;
        }
        self.last_poll = now;
        if full {
            self.last_check = now;
        }
        self.checking = true;
        let lanes = self.lanes.clone();
        self.spawn(async move { Done::Checked(check(&lanes, full).await) });
    }

    pub(super) fn checked(&mut self, checked: Checked) {
        self.checking = false;
        for message in &checked.blind {
            tracing::warn!(error = %message, "the kernel could not be read back; trying again");
        }
        if checked.drifts.is_empty() {
            return;
        }
        let now = self.now();
        let mut core = self.write();
        core.figures.drifts += checked.drifts.len() as u64;
        core.figures.repairs += 1;
        let count = checked.drifts.len();
        for (lane, drift) in checked.drifts.iter().take(20) {
            let text = format!("{lane}: {}", drift.problem().message);
            match drift.services.first() {
                Some(key) => core.log(now, EventKind::Drifted, "", key, Revision(0), text),
                None => core.log_node(now, EventKind::Drifted, "", None, text),
            }
        }
        let text =
            format!("{count} objects differed from what is programmed; {} services failed", checked.failures.len());
        core.log_node(now, EventKind::Repaired, "", None, text);
        drop(core);
        tracing::warn!(objects = count, failed = checked.failures.len(), full = checked.full, "drift repaired");
        for (key, problem) in checked.failures {
            let core = self.core.read().unwrap_or_else(PoisonError::into_inner);
            let at = core.tracks.get(&key).map_or(Revision(0), |track| track.in_force);
            drop(core);
            self.failed(&key, at, &problem);
        }
        self.to_clean.1.extend(checked.stale);
        self.announce();
    }
}

async fn release(lanes: &Lanes) -> Result<Result<u64, Problem>, Gone> {
    let mut count = 0;
    if let Some(guard) = &lanes.guard {
        match guard.call(|guard| guard.release()).await? {
            Ok(removed) => count += removed as u64,
            Err(problem) => return Ok(Err(problem)),
        }
    }
    for worker in lanes.balancers.values() {
        match worker.call(|balancer| balancer.release()).await? {
            Ok(removed) => count += removed as u64,
            Err(problem) => return Ok(Err(problem)),
        }
    }
    Ok(Ok(count))
}

/// Reads back every lane (`full`), or those that somebody else has disturbed, and repairs.
async fn check(lanes: &Lanes, full: bool) -> Result<Checked, Gone> {
    let mut checked = Checked { full, ..Checked::default() };
    for (engine, worker) in &lanes.balancers {
        check_lane(worker, &engine.to_string(), full, &mut checked).await?;
    }
    if let Some(guard) = &lanes.guard {
        check_lane(guard, "guard", full, &mut checked).await?;
    }
    Ok(checked)
}

async fn check_lane<L>(worker: &Worker<L>, name: &str, full: bool, checked: &mut Checked) -> Result<(), Gone>
where
    L: ?Sized + CheckLane + 'static,
{
    match worker.call(move |lane| lane.check_and_repair(full)).await? {
        Ok((drifts, made)) => {
            checked.drifts.extend(drifts.into_iter().map(|drift| (name.to_owned(), drift)));
            checked.stale.extend(made.stale);
            let failed = made.outcomes.into_iter().filter_map(|(key, outcome)| Some((key, outcome.err()?)));
            checked.failures.extend(failed);
        }
        Err(message) => checked.blind.push(format!("{name}: {message}")),
    }
    Ok(())
}

/// A lane without its input type.
trait CheckLane {
    fn check_and_repair(&mut self, full: bool) -> Result<(Vec<Drift>, Made), String>;
}

fn check_and_repair<I, L: Lane<I> + ?Sized>(lane: &mut L, full: bool) -> Result<(Vec<Drift>, Made), String> {
    if !full && !lane.disturbed() {
        return Ok((Vec::new(), Made::default()));
    }
    let drifts = lane.check().map_err(|error| error.to_string())?;
    let made = if drifts.is_empty() { Made::default() } else { lane.repair() };
    Ok((drifts, made))
}

impl CheckLane for dyn super::lanes::Balancer {
    fn check_and_repair(&mut self, full: bool) -> Result<(Vec<Drift>, Made), String> {
        check_and_repair(self, full)
    }
}

impl CheckLane for dyn super::lanes::GuardLane {
    fn check_and_repair(&mut self, full: bool) -> Result<(Vec<Drift>, Made), String> {
        check_and_repair(self, full)
    }
}

impl Core {
    /// In words, why strays are kept; absent: they are not.
    #[must_use]
    pub fn holding(&self) -> Option<String> {
        let reasons: Vec<String> = self
            .holds
            .iter()
            .filter_map(|hold| match hold {
                Hold::Starting => None,
                Hold::Unknown => Some("no store was found, and the kernel has objects of ours".to_owned()),
                Hold::Owner(name) => Some(format!("owner {name} has not synced yet")),
            })
            .collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Why `/healthz` says 503; absent: the node is fine.
    #[must_use]
    pub fn unhealthy(&self, now: Millis) -> Option<String> {
        if let Some((engines, since)) = &self.stalled {
            return Some(format!("programming by {engines} has stalled for {} s", seconds_since(now, *since)));
        }
        if let Some(record) = self.desired.owners().find(|record| record.owner.node_draining) {
            return Some(format!("owner {} drains this node", record.owner.name));
        }
        let failed = self.tracks.failed().len();
        (failed > 0).then(|| format!("{failed} services could not be programmed"))
    }
}
