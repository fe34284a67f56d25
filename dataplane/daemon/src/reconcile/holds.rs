//! Holds: nothing that the kernel has is removed while somebody has still to say what is wanted. Then the release: objects
//! of ours that no declared service needs go, the guard's captures first.

use std::collections::BTreeSet;

use tokio::sync::oneshot;
use tokio::time::Instant;
use vipd_model::{OwnerRecord, Problem, Restart, ServiceKey};

use super::CallError;
use super::core::{Core, Hold};
use super::journal::EventKind;
use super::program::Lanes;
use super::run::{Done, Reconciler, Start, UnderWay};
use super::worker::Gone;

/// The end of the hold, on its way.
#[derive(Debug, Default)]
pub(super) struct Release {
    /// Operators that asked for it.
    replies: Vec<oneshot::Sender<Result<u64, CallError>>>,
    /// After a failure.
    not_before: Option<Instant>,
}

/// Attempts that a restored service gets before left-over objects go without it: about a quarter of a minute with the
/// default pauses.
const PATIENCE: u32 = 5;

/// What is waited for at a start.
pub(super) fn at_start(start: &Start) -> BTreeSet<Hold> {
    let mut holds = BTreeSet::from([Hold::Starting]);
    let now = (start.clock)();
    let awaited = start.desired.owners().filter(|record| awaits_sync(record, now));
    holds.extend(awaited.map(|record| Hold::Owner(record.owner.name.clone())));
    if !start.known && start.kernel_objects > 0 {
        if start.settings.wait_for_owners.is_empty() {
            holds.insert(Hold::Unknown);
        }
        holds.extend(start.settings.wait_for_owners.iter().cloned().map(Hold::Owner));
    }
    holds
}

/// Whether an owner's stored state is not served before its next Sync.
fn awaits_sync(record: &OwnerRecord, now: vipd_model::Millis) -> bool {
    let age = u128::from(now.0.saturating_sub(record.last_write.0));
    let too_old = record.owner.restore_max_age.is_some_and(|most| age > most.as_millis());
    record.owner.on_restart == Restart::AwaitSync || too_old
}

impl Reconciler {
    /// Whether strays may go now: nobody is waited for, and what was restored is in force. A restored service that the
    /// kernel refuses may live by objects that look like strays, so it gets some attempts first.
    pub(super) fn release_is_due(&self) -> bool {
        if !self.idle() || self.release.not_before.is_some_and(|at| at > Instant::now()) {
            return false;
        }
        let core = self.read();
        let hopeful = |key: &ServiceKey| {
            let restored = core.desired.service(key).is_some_and(|s| s.revisions.created <= self.restored);
            let track = core.tracks.get(key).filter(|track| restored && track.programmed.is_none());
            track.and_then(|track| track.failure.as_ref()).is_some_and(|failure| failure.attempts < PATIENCE)
        };
        core.holds.len() == 1
            && core.holds.contains(&Hold::Starting)
            && (!self.release.replies.is_empty() || !core.tracks.failed().iter().any(hopeful))
    }

    pub(super) fn start_release(&mut self) {
        self.under_way = Some(UnderWay::Release);
        self.busy.begin("removing left-over objects");
        let lanes = self.lanes.clone();
        self.spawn(async move { Done::Released(release(&lanes).await) });
    }

    pub(super) fn released(&mut self, result: Result<u64, Problem>) {
        self.under_way = None;
        self.busy.end("removing left-over objects");
        match &result {
            Ok(count) => {
                let mut core = self.write();
                core.holds.remove(&Hold::Starting);
                if *count > 0 {
                    let text = format!("{count} objects of ours that no declared service needs were removed");
                    core.log_node((self.clock)(), EventKind::Repaired, "", None, text);
                }
            }
            Err(problem) => {
                self.release.not_before = Some(Instant::now() + self.settings.retry_first);
                tracing::warn!(problem = %problem.message, "left-over objects could not be removed yet; retrying");
            }
        }
        for reply in self.release.replies.drain(..) {
            let _ = reply.send(result.clone().map_err(|problem| CallError::Engine(problem.message)));
        }
        self.announce();
    }

    /// ReleaseHold: what was withheld is served first, then the strays go.
    pub(super) fn release_hold(&mut self, actor: &str, note: &str, reply: oneshot::Sender<Result<u64, CallError>>) {
        let mut core = self.write();
        let holding = !core.holds.is_empty();
        let because = core.holding();
        core.holds.retain(|hold| *hold == Hold::Starting);
        if holding {
            core.holds.insert(Hold::Starting);
        }
        let text = match (because, note) {
            (None, _) => "release of a hold asked for; there was none".to_owned(),
            (Some(because), "") => format!("hold released; it was because {because}"),
            (Some(because), note) => format!("hold released ({note}); it was because {because}"),
        };
        core.log_node((self.clock)(), EventKind::Changed, actor, None, text);
        let withheld: Vec<_> =
            core.tracks.iter().filter(|(_, track)| track.withdrawn.is_some()).map(|(key, _)| key.clone()).collect();
        drop(core);
        self.due.extend(withheld);
        if holding {
            self.release.replies.push(reply);
        } else {
            let _ = reply.send(Ok(0));
        }
    }
}

/// Captures go before the balancers that they lead to.
async fn release(lanes: &Lanes) -> Result<Result<u64, Problem>, Gone> {
    let mut count = 0;
    if let Some(guard) = &lanes.guard {
        match guard.call(|guard| guard.release()).await? {
            Ok(removed) => count += removed as u64,
            Err(problem) => return Ok(Err(problem)),
        }
    }
    let mut failed = None;
    for worker in lanes.balancers.values() {
        match worker.call(|balancer| balancer.release()).await? {
            Ok(removed) => count += removed as u64,
            Err(problem) => failed = Some(problem),
        }
    }
    Ok(failed.map_or(Ok(count), Err))
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
}
