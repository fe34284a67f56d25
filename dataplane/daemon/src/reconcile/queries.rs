//! Questions that need an engine: plan, verify, counters, and the end of a hold.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use tokio::sync::oneshot;
use vipd_model::{Actor, Command, EngineKind, Mode, Operation, Refused, Request, Selected, ServiceKey};

use super::control::{CallError, Planned, Verified};
use super::journal::EventKind;
use super::program::Lanes;
use super::run::{Done, Reconciler};
use super::worker::Gone;

type Reply<T> = oneshot::Sender<Result<T, CallError>>;

impl Reconciler {
    /// Dispatches, looks, and takes it back: the declared state is as before when this returns.
    pub(super) fn plan(&mut self, operations: Vec<Operation>, engine: Option<EngineKind>, reply: Reply<Planned>) {
        let request = if operations.is_empty() {
            Request::SetDefaultEngine { engine, allow_degraded: true, drain: vipd_model::Drain::default() }
        } else {
            Request::Apply { operations, mode: Mode::Each }
        };
        let at = self.now();
        let command = Command { actor: Actor::default(), at, session: 0, note: String::new(), request };
        let mut core = self.write();
        let before = core.desired.mark();
        let delta = match core.desired.dispatch(&command) {
            Ok(delta) => delta,
            Err(rejection) => {
                drop(core);
                let _ = reply.send(Err(CallError::Rejected(rejection)));
                return;
            }
        };
        let mut keys: Vec<ServiceKey> = delta.services.iter().map(|change| change.key.clone()).collect();
        if delta.default_engine.is_some() {
            let follow = core.desired.services().filter(|service| service.definition.engine.is_none());
            keys.extend(follow.map(|service| service.key.clone()));
        }
        let mut work: BTreeMap<EngineKind, Vec<(ServiceKey, Option<Selected>)>> = BTreeMap::new();
        let mut refused = delta.refused.clone();
        for key in keys {
            let from = core.tracks.get(&key).and_then(|track| track.engine);
            let to = core.desired.service(&key).cloned().map(|service| core.selected(&service));
            let to = match to {
                Some(Ok((selected, _))) => Some(selected),
                Some(Err(problem)) => {
                    refused.push(refusal(&key, vec![problem]));
                    continue;
                }
                None => None,
            };
            let engine = to.as_ref().map(|selected| selected.engine);
            if let Some(from) = from
                && engine != Some(from)
            {
                work.entry(from).or_default().push((key.clone(), None));
            }
            if let Some(engine) = engine {
                work.entry(engine).or_default().push((key, to));
            }
        }
        core.desired.revert([&delta], before);
        drop(core);
        let lanes = self.lanes.clone();
        self.spawn(async move {
            let result = dry_run(&lanes, work, refused).await;
            let gone = result.as_ref().err().copied();
            let _ = reply.send(result.map_err(|_| CallError::Stopping));
            Done::Query(gone)
        });
    }

    pub(super) fn verify(&self, service: Option<ServiceKey>, reply: Reply<Verified>) {
        let lanes = self.lanes.clone();
        let core = self.core.read().unwrap_or_else(PoisonError::into_inner);
        let revision = core.programmed_revision();
        drop(core);
        self.spawn(async move {
            let (answer, gone) = match verify(&lanes, service).await {
                Ok(Ok(verified)) => (Ok(Verified { revision, ..verified }), None),
                Ok(Err(message)) => (Err(CallError::Engine(message)), None),
                Err(gone) => (Err(CallError::Stopping), Some(gone)),
            };
            let _ = reply.send(answer);
            Done::Query(gone)
        });
    }

    pub(super) fn counters(&self, services: Vec<ServiceKey>, reply: Reply<Vec<vipd_engine::ServiceCounters>>) {
        let lanes = self.lanes.clone();
        self.spawn(async move {
            let mut all = Vec::new();
            for worker in lanes.balancers.values() {
                let services = services.clone();
                match worker.call(move |balancer| balancer.counters(&services)).await {
                    Ok(Ok(counters)) => all.extend(counters),
                    Ok(Err(error)) => {
                        let _ = reply.send(Err(CallError::Engine(error.to_string())));
                        return Done::Query(None);
                    }
                    Err(gone) => return Done::Query(Some(gone)),
                }
            }
            all.sort_by(|a, b| a.key.cmp(&b.key));
            let _ = reply.send(Ok(all));
            Done::Query(None)
        });
    }

    pub(super) fn release_hold(&mut self, actor: &str, note: &str, reply: Reply<u64>) {
        let now = self.now();
        let mut core = self.write();
        let held = core.holding();
        core.holds.retain(|hold| *hold == super::core::Hold::Starting);
        let text = match (held, note) {
            (None, _) => "release of a hold asked for; there was none".to_owned(),
            (Some(held), "") => format!("hold released; it was because {held}"),
            (Some(held), note) => format!("hold released ({note}); it was because {held}"),
        };
        core.log_node(now, EventKind::Changed, actor, None, text);
        drop(core);
        self.due.extend(self.awaiting());
        self.start_release(Some(reply));
    }

    /// Services that were withheld until their owner syncs.
    fn awaiting(&self) -> Vec<ServiceKey> {
        let core = self.core.read().unwrap_or_else(PoisonError::into_inner);
        core.tracks.iter().filter(|(_, track)| track.withdrawn.is_some()).map(|(key, _)| key.clone()).collect()
    }
}

fn refusal(key: &ServiceKey, problems: Vec<vipd_model::Problem>) -> Refused {
    Refused { index: 0, owner: key.owner.to_string(), name: key.name.to_string(), problems }
}

async fn dry_run(
    lanes: &Lanes,
    work: BTreeMap<EngineKind, Vec<(ServiceKey, Option<Selected>)>>,
    mut refused: Vec<Refused>,
) -> Result<Planned, Gone> {
    let mut changes = Vec::new();
    for (engine, batch) in work {
        let Some(worker) = lanes.balancers.get(&engine) else { continue };
        let selected: Vec<Selected> = batch.iter().filter_map(|(_, selected)| selected.clone()).collect();
        let removed: Vec<ServiceKey> =
            batch.iter().filter(|(_, selected)| selected.is_none()).map(|(key, _)| key.clone()).collect();
        let ((made, outcomes), inputs) =
            worker.call(move |balancer| (balancer.dry_run(batch), balancer.guard(&selected))).await?;
        changes.extend(made);
        for (key, outcome) in outcomes {
            refused.extend(outcome.err().map(|problem| refusal(&key, vec![problem])));
        }
        if let Some(guard) = &lanes.guard {
            let mut batch: Vec<_> = inputs.into_iter().map(|input| (input.key.clone(), Some(input))).collect();
            batch.extend(removed.into_iter().map(|key| (key, None)));
            let (made, _) = guard.call(move |guard| guard.dry_run(batch)).await?;
            changes.extend(made);
        }
    }
    Ok(Planned { changes, refused })
}

async fn verify(lanes: &Lanes, service: Option<ServiceKey>) -> Result<Result<Verified, String>, Gone> {
    let mut verified = Verified::default();
    for worker in lanes.balancers.values() {
        let service = service.clone();
        let (drift, objects) = worker
            .call(move |lane| {
                let drift = match &service {
                    Some(key) => lane.check_service(key),
                    None => lane.check(),
                };
                (drift, lane.object_count())
            })
            .await?;
        match drift {
            Ok(drift) => verified.drift.extend(drift),
            Err(error) => return Ok(Err(error.to_string())),
        }
        verified.objects += objects as u64;
    }
    if let Some(guard) = &lanes.guard {
        let (drift, objects) = guard
            .call(move |lane| {
                let drift = match &service {
                    Some(key) => lane.check_service(key),
                    None => lane.check(),
                };
                (drift, lane.object_count())
            })
            .await?;
        match drift {
            Ok(drift) => verified.drift.extend(drift),
            Err(error) => return Ok(Err(error.to_string())),
        }
        verified.objects += objects as u64;
    }
    Ok(Ok(verified))
}
