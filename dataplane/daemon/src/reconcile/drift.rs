//! Reading back: whether the kernel is as programmed, and repair where it is not. Also under load: a check takes its turn
//! between two batches.

use std::collections::BTreeSet;
use std::convert::Infallible;

use tokio::time::Instant;
use vipd_engine::FlowFilter;
use vipd_engine::runner::{Drift, Made};
use vipd_model::{Problem, Revision, ServiceKey};

use super::journal::EventKind;
use super::lanes::{Lane, Lanes};
use super::run::{Done, Reconciler, UnderWay};
use super::worker::Gone;

/// What a read of the kernel found and mended.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// By lane: `guard`, `userspace`, …
    drifts: Vec<(String, Drift)>,
    /// Services that could not be repaired.
    failures: Vec<(ServiceKey, Problem)>,
    stale: Vec<FlowFilter>,
    /// Who changed them, where the kernel tells.
    by: BTreeSet<String>,
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
        tracing::warn!(objects = count, failed, full = checked.full, by = ?checked.by, "drift repaired");
        let now = self.now();
        let mut core = self.write();
        core.figures.drifts += count as u64;
        core.figures.repairs += 1;
        let by = match checked.by.iter().map(String::as_str).collect::<Vec<_>>().join(", ") {
            nobody if nobody.is_empty() => nobody,
            who => format!("; by {who}"),
        };
        for (lane, drift) in checked.drifts.iter().take(NAMED) {
            let text = format!("{lane}: {}{by}", drift.problem().message);
            match drift.services.first() {
                Some(key) => core.log(now, EventKind::Drifted, "", key, Revision(0), text),
                None => core.log_node(now, EventKind::Drifted, "", None, text),
            }
        }
        let text =
            format!("{count} objects differed from what is programmed{by}; {failed} services could not be repaired");
        core.log_node(now, EventKind::Repaired, "", None, text);
    }
}

/// Reads back every lane (`full`), or those that somebody else has disturbed, and repairs. Balancers first: captures
/// lead to them.
async fn check(lanes: &Lanes, full: bool) -> Result<Checked, Gone> {
    let mut checked = Checked { full, ..Checked::default() };
    // What cannot be read in one lane is no reason to leave the others alone.
    let look = move |lane: &mut dyn Lane| Ok::<_, Infallible>(check_and_repair(lane, full));
    let Ok(looked) = lanes.ask(look).await?;
    for (name, look) in looked {
        match look {
            Ok((drifts, by, made)) => {
                checked.drifts.extend(drifts.into_iter().map(|drift| (name.clone(), drift)));
                checked.by.extend(by);
                checked.stale.extend(made.stale);
                let failed = made.outcomes.into_iter().filter_map(|(key, outcome)| Some((key, outcome.err()?)));
                checked.failures.extend(failed);
            }
            Err(message) => checked.blind.push(format!("{name}: {message}")),
        }
    }
    Ok(checked)
}

/// What differed, who did it, and what came of the repair.
type Look = (Vec<Drift>, Option<String>, Made);

fn check_and_repair(lane: &mut dyn Lane, full: bool) -> Result<Look, String> {
    // Asked in any case: what is answered belongs to what is read now.
    let (disturbed, by) = (lane.disturbed(), lane.disturber());
    if !full && !disturbed {
        return Ok((Vec::new(), None, Made::default()));
    }
    let drifts = lane.check().map_err(|error| error.to_string())?;
    if drifts.is_empty() {
        // Who wrote something else than what this lane programs has done nothing to it.
        return Ok((drifts, None, Made::default()));
    }
    Ok((drifts, by, lane.repair()))
}
