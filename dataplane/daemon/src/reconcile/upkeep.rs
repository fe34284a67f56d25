//! What happens by itself, on every tick: retries, leases, stalls. Drift and holds have files of their own.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vipd_model::{LeaseExpiry, Millis, OwnerName, Problem, ProblemCode, ServiceKey};

use super::core::Core;
use super::journal::EventKind;
use super::run::{Done, Reconciler, UnderWay};
use crate::store::totals::Kept;

/// From one keeping of what was counted to the next: what a kill may cost.
pub(super) const KEEP_EVERY: Duration = Duration::from_secs(30);
/// An engine that does not answer so long is left out.
const KEEP_PATIENCE: Duration = Duration::from_secs(2);

/// From one look at the store to the next.
const STORE_LOOK: Duration = Duration::from_secs(2);

impl Reconciler {
    /// Every 50 ms.
    pub(super) fn upkeep(&mut self) {
        self.retry();
        self.retry_health_ports(Instant::now());
        self.leases();
        self.stall();
        self.look_at_store(Instant::now());
        if self.keep_due <= Instant::now() {
            self.keep_due = Instant::now() + KEEP_EVERY;
            tokio::spawn(self.keep_totals(false));
        }
        self.waiters.forget_gone();
        let waiting = self.waiters.len() as u64;
        if self.read().figures.waiting != waiting {
            self.write().figures.waiting = waiting;
        }
        if self.idle() && !self.read().ready {
            self.write().ready = true;
            self.announce();
        }
    }

    /// Services whose pause is over. Not while a batch is under way: it may have them.
    fn retry(&mut self) {
        if matches!(self.under_way, Some(UnderWay::Batch(_))) {
            return;
        }
        let now = Instant::now();
        let core = Arc::clone(&self.core);
        let core = core.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let failure = |key: &ServiceKey| core.tracks.get(key).and_then(|track| track.failure.as_ref());
        let due = |key: &&ServiceKey| failure(key).is_some_and(|failure| failure.retry_at <= now);
        let mut keys: Vec<ServiceKey> = core.tracks.failed().iter().filter(due).cloned().collect();
        // What one waits for another may be about to give up, and the other way round: only together can they swap.
        let taken = |key: &ServiceKey| failure(key).is_some_and(|f| f.problem.code == ProblemCode::FrontendTaken);
        if keys.iter().any(taken) {
            keys.extend(core.tracks.failed().iter().cloned());
        }
        self.due.extend(keys);
    }

    /// A port that another program had may be free by now.
    fn retry_health_ports(&mut self, now: Instant) {
        if now.duration_since(self.last_health_retry) < self.settings.retry_first {
            return;
        }
        self.last_health_retry = now;
        let mut core = self.core.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        for key in self.health_ports.failed() {
            let service = core.desired.service(&key).cloned();
            let outcome = self.health_ports.update(&key, service.as_deref(), &core.node);
            let Err(problem) = outcome else {
                core.tracks.update(&key, |track| track.health_port = None);
                core.changes.touch_status(&key);
                continue;
            };
            tracing::debug!(service = %key, problem = %problem.message, "health port");
        }
    }

    /// Keeps what was counted and would be lost with this process. `whole`: nothing is counted after it.
    pub(super) fn keep_totals(&self, whole: bool) -> impl Future<Output = ()> + Send + 'static {
        let (lanes, persist, core) = (self.lanes.clone(), self.persist.clone(), Arc::clone(&self.core));
        async move {
            let mut now = Vec::new();
            for engine in &lanes.carriers {
                let Some(worker) = lanes.balancers.get(engine) else { continue };
                let asked = tokio::time::timeout(KEEP_PATIENCE, worker.call(|balancer| balancer.counters(&[])));
                if let Ok(Ok(Ok(counted))) = asked.await {
                    now.extend(counted);
                }
            }
            let kept = {
                let core = core.read().unwrap_or_else(std::sync::PoisonError::into_inner);
                Kept { services: core.totals.with(now), since: core.counted_since, whole }
            };
            let _ = persist.call(move |persist| persist.keep(kept)).await;
        }
    }

    fn look_at_store(&mut self, now: Instant) {
        if now < self.store_look_due {
            return;
        }
        self.store_look_due = now + STORE_LOOK;
        let persist = self.persist.clone();
        self.spawn(async move { Done::StoreSeen(persist.call(|persist| persist.trouble()).await) });
    }

    pub(super) fn store_seen(&mut self, trouble: Option<String>) {
        if self.read().store_trouble.is_some() == trouble.is_some() {
            return;
        }
        let since = Some(self.now());
        self.write().store_trouble = trouble.map(|why| {
            let text = format!(
                "what is accepted is stored and does not get to the disk ({why}): a power cut would lose it; a crash of \
                 vipd would not"
            );
            Problem { since, ..Problem::new(ProblemCode::Host, "", text) }
        });
        self.announce();
    }

    fn leases(&mut self) {
        let now = self.now();
        let expired = expired(&self.read(), now);
        if expired.is_empty() {
            return;
        }
        let mut due = Vec::new();
        let mut core = self.write();
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

    fn stall(&mut self) {
        let stalled = self.busy.stalled(self.settings.stalled_after);
        if stalled.is_some() == self.read().stalled.is_some() {
            return;
        }
        let news = stalled.map(|(what, lasted)| {
            let what = self.with_engines(what);
            tracing::error!("{what} has stalled for {lasted:?}; `vipctl node` shows since when");
            (what, Millis(self.now().0.saturating_sub(millis(lasted))))
        });
        self.write().stalled = news;
        self.announce();
    }

    /// Says which engines are meant, where a batch hangs.
    fn with_engines(&self, what: &str) -> String {
        let Some(UnderWay::Batch(engines)) = &self.under_way else { return what.to_owned() };
        let engines: Vec<String> = engines.iter().map(ToString::to_string).collect();
        format!("{what} ({})", engines.join(", "))
    }
}

fn expired(core: &Core, now: Millis) -> Vec<(OwnerName, LeaseExpiry)> {
    core.desired
        .owners()
        .filter(|record| core.lease_expires(record).is_some_and(|at| at <= now))
        .filter(|record| !core.expired.contains(&record.owner.name))
        .filter_map(|record| Some((record.owner.name.clone(), record.owner.lease?.on_expiry)))
        .collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How long ago, in whole seconds.
fn seconds_since(now: Millis, then: Millis) -> u64 {
    now.0.saturating_sub(then.0) / 1000
}

impl Core {
    /// Why `/healthz` says 503; absent: the node is fine.
    #[must_use]
    pub fn unhealthy(&self, now: Millis) -> Option<String> {
        if let Some((what, since)) = &self.stalled {
            return Some(format!("{what} has stalled for {} s", seconds_since(now, *since)));
        }
        if let Some(record) = self.desired.owners().find(|record| record.owner.node_draining) {
            return Some(format!("owner {} drains this node", record.owner.name));
        }
        if let Some(problem) = &self.node_track.failure {
            return Some(format!("the node's own rules could not be programmed: {}", problem.message));
        }
        let failed = self.tracks.failed().len();
        (failed > 0).then(|| format!("{failed} services could not be programmed"))
    }
}
