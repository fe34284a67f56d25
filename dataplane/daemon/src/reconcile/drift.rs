//! Reading back: whether the kernel is as programmed, and repair where it is not. Also under load: a check takes its turn
//! between two batches.

use tokio::time::Instant;
use vipd_engine::FlowFilter;
use vipd_engine::runner::{Drift, Made};
use vipd_model::{Problem, Revision, ServiceKey};

use super::journal::EventKind;
use super::lanes::Lane;
use super::program::Lanes;
use super::run::{Done, Reconciler, UnderWay};
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

/// Objects named in the journal after one check; more are counted.
const NAMED: usize = 20;

impl Reconciler {
    pub(super) fn check_is_due(&self) -> bool {
        let now = Instant::now();
        self.check_due <= now || self.poll_due <= now
    }

    pub(super) fn start_check(&mut self) {
        let full = self.check_due <= Instant::now();
        self.under_way = Some(UnderWay::Check);
        self.busy.begin("reading the kernel back");
        let lanes = self.lanes.clone();
        self.spawn(async move { Done::Checked(check(&lanes, full).await) });
    }

    pub(super) fn checked(&mut self, checked: Checked) {
        self.under_way = None;
        self.busy.end("reading the kernel back");
        // Counted from the end, so that a slow engine still has time for what is due.
        let now = Instant::now();
        self.poll_due = now + self.settings.poll_every;
        if checked.full {
            self.check_due = now + self.settings.check_every;
        }
        for message in &checked.blind {
            tracing::warn!(error = %message, "the kernel could not be read back; trying again");
            self.check_due = now + self.settings.retry_first;
        }
        if checked.drifts.is_empty() {
            return;
        }
        self.journal_drift(&checked);
        for (key, problem) in checked.failures {
            let at = self.read().tracks.get(&key).map_or(Revision(0), |track| track.in_force);
            self.failed(&key, at, &problem);
        }
        self.cleaning.add(checked.stale);
        self.announce();
    }

    fn journal_drift(&self, checked: &Checked) {
        let (count, failed) = (checked.drifts.len(), checked.failures.len());
        tracing::warn!(objects = count, failed, full = checked.full, "drift repaired");
        let now = self.now();
        let mut core = self.write();
        core.figures.drifts += count as u64;
        core.figures.repairs += 1;
        for (lane, drift) in checked.drifts.iter().take(NAMED) {
            let text = format!("{lane}: {}", drift.problem().message);
            match drift.services.first() {
                Some(key) => core.log(now, EventKind::Drifted, "", key, Revision(0), text),
                None => core.log_node(now, EventKind::Drifted, "", None, text),
            }
        }
        let text = format!("{count} objects differed from what is programmed; {failed} services could not be repaired");
        core.log_node(now, EventKind::Repaired, "", None, text);
    }
}

/// Reads back every lane (`full`), or those that somebody else has disturbed, and repairs. Balancers first: captures
/// lead to them.
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
