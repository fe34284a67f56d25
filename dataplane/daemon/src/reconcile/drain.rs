//! Established flows that an engine still carries after another one took the service over: counted from time to time,
//! until the last has ended or the drain of the switch is over.
//!
//! The kernel's connection tracking does not say which engine made a flow, so the flows are noted by number when the
//! switch is through, and those of them that are left are counted. An engine that carries flows itself counts them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use vipd_model::{Drain, EngineKind, OnExpiry, Revision, ServiceKey};

use super::CallError;
use super::clean::Watched;
use super::core::Core;
use super::flows;
use super::journal::EventKind;
use super::lanes::Lanes;
use super::run::{Done, Reconciler};
use super::track::Draining;
use super::worker::Gone;

type Reply = oneshot::Sender<Result<u64, CallError>>;

/// From one count to the next at least.
const PAUSE: Duration = Duration::from_secs(1);
/// A count of all flows may take this part of the time.
const PART: u32 = 20;

/// What is counted.
#[derive(Debug, Default)]
pub(super) struct Drains {
    services: BTreeSet<ServiceKey>,
    under_way: bool,
    not_before: Option<Instant>,
    /// Of the last SetDefaultEngine.
    drain: Drain,
    /// Who asked for a fresh count.
    replies: Vec<Reply>,
}

impl Drains {
    /// The switches that follow are under this drain.
    pub(super) fn set(&mut self, drain: Drain) {
        self.drain = drain;
    }

    /// When flows are cut that a switch leaves behind now; absent: never.
    pub(super) fn cut_at(&self) -> Option<Instant> {
        let timeout = self.drain.timeout.filter(|_| self.drain.on_expiry == OnExpiry::Reset)?;
        Instant::now().checked_add(timeout)
    }

    /// An engine has been replaced.
    pub(super) fn begin(&mut self, service: ServiceKey) {
        self.services.insert(service);
    }
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Flows at engines that carry them.
    active: BTreeMap<(ServiceKey, EngineKind), u64>,
    /// Flows in the kernel.
    carried: BTreeMap<ServiceKey, Vec<u32>>,
    /// Could not be counted: what is known stays.
    blind: bool,
    /// To judge by whether a service may be done with.
    at: Option<Instant>,
    lasted: Duration,
}

/// What is to be counted.
#[derive(Debug, Default)]
struct Work {
    at_carriers: BTreeMap<EngineKind, Vec<ServiceKey>>,
    watched: Watched,
    /// Flows of the kernel whose drain is over.
    cut: Vec<u32>,
}

impl Reconciler {
    pub(super) fn start_counting(&mut self) {
        let asked = !self.drains.replies.is_empty();
        let due = asked || self.drains.not_before.is_none_or(|at| at <= Instant::now());
        if self.drains.under_way || self.drains.services.is_empty() || !due {
            if self.drains.services.is_empty() {
                self.drains.replies.drain(..).for_each(|reply| drop(reply.send(Ok(0))));
            }
            return;
        }
        self.drains.under_way = true;
        let work = self.work();
        let lanes = self.lanes.clone();
        let replies = std::mem::take(&mut self.drains.replies);
        self.spawn(async move { Done::Counted(count(&lanes, work).await, replies) });
    }

    fn work(&self) -> Work {
        let core = self.read();
        let mut work = Work::default();
        let now = Instant::now();
        for key in &self.drains.services {
            let Some(track) = core.tracks.get(key) else { continue };
            for draining in &track.draining {
                if self.lanes.carriers.contains(&draining.engine) {
                    work.at_carriers.entry(draining.engine).or_default().push(key.clone());
                } else if let Some(service) = &track.programmed {
                    if draining.cut_at.is_some_and(|at| at <= now) {
                        work.cut.extend(&draining.ids);
                    }
                    let answerers = flows::answerers(service);
                    for (address, ports) in flows::places(service, &core.node) {
                        let value = (key.clone(), std::sync::Arc::clone(&answerers));
                        work.watched.insert(service.definition.protocol, address, ports, value);
                    }
                }
            }
        }
        work.cut.sort_unstable();
        work
    }

    pub(super) fn counted(&mut self, counted: &Counted, replies: Vec<Reply>) {
        self.drains.under_way = false;
        self.drains.not_before = Some(Instant::now() + PAUSE.max(counted.lasted * PART));
        let mut core = self.core.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut total = 0;
        let now = (self.clock)();
        self.drains.services.retain(|key| {
            let Some(track) = core.tracks.get(key).filter(|track| !track.draining.is_empty()) else { return false };
            let mut draining = track.draining.clone();
            let mut ended = Vec::new();
            let mut to_retire = false;
            draining.retain_mut(|one| {
                let carries = self.lanes.carriers.contains(&one.engine);
                let before = one.flows;
                if !update(one, key, carries, counted) {
                    return true;
                }
                let over = one.cut_at.is_some_and(|at| Some(at) <= counted.at);
                let left = one.flows.unwrap_or(0);
                total += left;
                // Connections that an engine has taken and not yet counted are not to be missed.
                if carries && !over && counted.at.is_none_or(|at| at < one.since + PAUSE) {
                    return true;
                }
                to_retire |= carries && (left == 0 || over);
                if left == 0 && before.is_some_and(|flows| flows > 0) {
                    ended.push(one.engine);
                }
                // What is cut goes from an engine that carries it with the service's next batch.
                left > 0 && (carries || !over)
            });
            core.tracks.update(key, |track| track.draining = draining);
            if to_retire {
                self.due.insert(key.clone());
            }
            for engine in ended {
                let text = format!("the last flow that {engine} carried since the switch has ended");
                core.log(now, EventKind::Drained, "", key, Revision(0), text);
            }
            core.changes.touch_status(key);
            core.tracks.get(key).is_some_and(|track| !track.draining.is_empty())
        });
        drop(core);
        for reply in replies {
            let _ = reply.send(Ok(total));
        }
        self.announce();
    }

    /// How many flows engines still carry that were replaced, counted now.
    pub(super) fn flows_left(&mut self, reply: Reply) {
        self.drains.replies.push(reply);
    }
}

/// Takes a count over. False: there is none.
fn update(one: &mut Draining, key: &ServiceKey, carries: bool, counted: &Counted) -> bool {
    if carries {
        match counted.active.get(&(key.clone(), one.engine)) {
            Some(active) => one.flows = Some(*active),
            None => return false,
        }
        return true;
    }
    if counted.blind {
        return false;
    }
    let carried = counted.carried.get(key).map(Vec::as_slice).unwrap_or_default();
    match one.flows {
        None => one.ids = carried.to_vec(),
        Some(_) => one.ids.retain(|id| carried.binary_search(id).is_ok()),
    }
    one.flows = Some(one.ids.len() as u64);
    true
}

async fn count(lanes: &Lanes, work: Work) -> Result<Counted, Gone> {
    let began = Instant::now();
    let mut counted = Counted { at: Some(began), ..Counted::default() };
    for (engine, keys) in work.at_carriers {
        let Some(worker) = lanes.balancers.get(&engine) else { continue };
        let asked = keys.clone();
        // What does not answer now is asked again.
        let Ok(found) = worker.call(move |balancer| balancer.counters(&asked)).await? else { continue };
        counted.active.extend(keys.into_iter().map(|key| ((key, engine), 0)));
        let active = found.into_iter().map(|one| ((one.key, engine), one.total.active.unwrap_or(0)));
        counted.active.extend(active);
    }
    if work.watched.is_empty() {
        return Ok(counted);
    }
    let Some(cleaner) = &lanes.cleaner else { return Ok(counted) };
    let answer = cleaner.call(move |cleaner| {
        if !work.cut.is_empty() {
            cleaner.cut(&work.cut)?;
        }
        cleaner.carried(&work.watched)
    });
    match answer.await? {
        Ok(carried) => counted.carried = carried,
        Err(error) => {
            tracing::debug!(error, "flows could not be counted");
            counted.blind = true;
        }
    }
    counted.lasted = began.elapsed();
    Ok(counted)
}

impl Core {
    /// Services that moved between engines and the flows left behind, for metrics: how many services, how many flows.
    #[must_use]
    pub fn drained(&self) -> (u64, u64) {
        let draining = self.tracks.iter().filter(|(_, track)| !track.draining.is_empty());
        draining.fold((0, 0), |(services, flows), (_, track)| {
            (services + 1, flows + track.draining.iter().filter_map(|one| one.flows).sum::<u64>())
        })
    }
}
