//! Holds: nothing that the kernel has is removed while somebody has still to say what is wanted. Then the release: objects
//! of ours that no declared service needs go, the guard's captures first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::oneshot;
use tokio::time::Instant;
use vipd_engine::{GuardEntry, Judge};
use vipd_model::{OwnerRecord, Problem, Protocol, Restart, Selected, ServiceKey, select};

use super::CallError;
use super::beside::beside;
use super::core::{Core, Hold};
use super::flows;
use super::journal::EventKind;
use super::lanes::Lanes;
use super::run::{Done, Reconciler, Start, UnderWay};
use super::track::Track;
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
        let core = Arc::clone(&self.core);
        self.spawn(async move { Done::Released(release(&lanes, &core).await) });
    }

    pub(super) fn released(&mut self, result: Result<Released, Problem>) {
        self.under_way = None;
        self.busy.end("removing left-over objects");
        let result = result.map(|Released { count, judge }| {
            self.cleaning.judge(judge);
            count
        });
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

/// What the end of the hold brought.
#[derive(Debug)]
pub(super) struct Released {
    /// Objects that nobody wanted.
    count: u64,
    /// UDP flows of before the start are judged by what is in force: the process may have died before it forgot them.
    judge: Judge,
}

/// Captures go before the balancers that they lead to.
async fn release(lanes: &Lanes, core: &RwLock<Core>) -> Result<Result<Released, Problem>, Gone> {
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
    let judge = if lanes.cleaner.is_some() { judge(lanes, core).await? } else { Judge::default() };
    Ok(failed.map_or(Ok(Released { count, judge }), Err))
}

/// The rule for every UDP service that is in force, and for addresses of virtual ranges that nobody has any more.
async fn judge(lanes: &Lanes, core: &RwLock<Core>) -> Result<Judge, Gone> {
    let (udp, node) = {
        let core = core.read().unwrap_or_else(PoisonError::into_inner);
        let udp: Vec<_> = core.tracks.iter().filter_map(|(_, track)| udp_in_force(&core, lanes, track)).collect();
        (udp, Arc::clone(&core.node))
    };
    let mut relays: BTreeMap<ServiceKey, Vec<u16>> = BTreeMap::new();
    for engine in &lanes.carriers {
        let Some(worker) = lanes.balancers.get(engine) else { continue };
        let told: Vec<Selected> = udp.iter().flatten().filter(|told| told.engine == *engine).cloned().collect();
        for input in worker.call(move |balancer| balancer.guard(&told)).await? {
            let captures = input.entries.iter().filter_map(GuardEntry::captured_to);
            relays.entry(input.key.clone()).or_default().extend(captures);
        }
    }
    let mut judge = Judge::default();
    for service in udp.iter().filter_map(|told| told.first()).map(|selected| &selected.service) {
        flows::judge(&mut judge, service, &node, relays.get(&service.key).map(Vec::as_slice).unwrap_or_default());
    }
    judge.refuse_unknown(&node.network.virtual_ranges);
    Ok(judge)
}

/// What engines were told of a UDP service, the serving one first.
fn udp_in_force(core: &Core, lanes: &Lanes, track: &Track) -> Option<Vec<Selected>> {
    let service = track.programmed.as_ref().filter(|service| service.definition.protocol == Protocol::Udp)?;
    let selected = select(service, track.engine?, track.algorithm?);
    let beside = beside(core, lanes, Some(track), &selected).into_iter().map(|beside| beside.selected);
    Some(std::iter::once(selected.clone()).chain(beside).collect())
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
