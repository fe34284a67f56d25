//! Questions that need an engine: plan, verify, counters.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use vipd_model::{Actor, Command, Delta, EngineKind, Mode, Operation, Refused, Request, Selected, Service, ServiceKey};

use super::control::{CallError, Planned, Verified};
use super::core::Core;
use super::program::Lanes;
use super::run::{Done, Reconciler};
use super::worker::Gone;

type Reply<T> = oneshot::Sender<Result<T, CallError>>;

impl Reconciler {
    /// What a call would do: planned against the declared state, then asked of the engines. Changes nothing.
    pub(super) fn plan(&self, operations: Vec<Operation>, engine: Option<EngineKind>, reply: Reply<Planned>) {
        let request = if operations.is_empty() {
            Request::SetDefaultEngine { engine, allow_degraded: true, drain: vipd_model::Drain::default() }
        } else {
            Request::Apply { operations, mode: Mode::Each }
        };
        let command = Command { actor: Actor::default(), at: self.now(), session: 0, note: String::new(), request };
        let core = self.read();
        let delta = match core.desired.plan(&command) {
            Ok(delta) => delta,
            Err(rejection) => {
                let _ = reply.send(Err(CallError::Rejected(rejection)));
                return;
            }
        };
        let (work, refused) = would_do(&core, &delta);
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
        let revision = self.read().programmed_revision();
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

    pub(super) fn findings(&self, reply: Reply<Vec<vipd_model::Problem>>) {
        let lanes = self.lanes.clone();
        self.spawn(async move {
            let mut all = Vec::new();
            for (engine, worker) in &lanes.balancers {
                match tokio::time::timeout(AT_ONCE, worker.call(|balancer| balancer.findings())).await {
                    Ok(Ok(findings)) => all.extend(findings),
                    Ok(Err(gone)) => return Done::Query(Some(gone)),
                    Err(_) => {
                        let text = format!("engine {engine} is busy and has not answered for {} s", AT_ONCE.as_secs());
                        all.push(vipd_model::Problem::new(vipd_model::ProblemCode::Host, "", text));
                    }
                }
            }
            let _ = reply.send(Ok(all));
            Done::Query(None)
        });
    }
}

/// What a question about the node may wait for an engine.
const AT_ONCE: std::time::Duration = std::time::Duration::from_secs(1);

/// By engine: services that it would serve, or serve no more.
type Work = BTreeMap<EngineKind, Vec<(ServiceKey, Option<Selected>)>>;

fn would_do(core: &Core, delta: &Delta) -> (Work, Vec<Refused>) {
    let default_engine = delta.default_engine.unwrap_or_else(|| core.desired.default_engine());
    let mut changes: Vec<(&ServiceKey, Option<&Arc<Service>>)> =
        delta.services.iter().map(|change| (&change.key, change.after.as_ref())).collect();
    if delta.default_engine.is_some() {
        let follow = core.desired.services().filter(|service| service.definition.engine.is_none());
        changes.extend(follow.map(|service| (&service.key, Some(service))));
    }
    let (mut work, mut refused) = (Work::new(), delta.refused.clone());
    for (key, after) in changes {
        let to = match after.map(|service| core.selected_by(default_engine, service)).transpose() {
            Ok(to) => to.map(|(selected, _)| selected),
            Err(problem) => {
                refused.push(refusal(key, vec![problem]));
                continue;
            }
        };
        let engine = to.as_ref().map(|selected| selected.engine);
        let touched = core.tracks.get(key).map(|track| track.touched.clone()).unwrap_or_default();
        for from in touched.into_iter().filter(|from| Some(*from) != engine) {
            work.entry(from).or_default().push((key.clone(), None));
        }
        if let Some(engine) = engine {
            work.entry(engine).or_default().push((key.clone(), to));
        }
    }
    (work, refused)
}

fn refusal(key: &ServiceKey, problems: Vec<vipd_model::Problem>) -> Refused {
    Refused { index: 0, owner: key.owner.to_string(), name: key.name.to_string(), problems }
}

async fn dry_run(lanes: &Lanes, work: Work, mut refused: Vec<Refused>) -> Result<Planned, Gone> {
    let mut changes = Vec::new();
    let mut guard_batch = BTreeMap::new();
    for (engine, batch) in work {
        let Some(worker) = lanes.balancers.get(&engine) else { continue };
        let selected: Vec<Selected> = batch.iter().filter_map(|(_, selected)| selected.clone()).collect();
        // One that moves is asked of the guard by its new engine.
        let leaves = batch.iter().filter(|(_, selected)| selected.is_none());
        leaves.for_each(|(key, _)| {
            guard_batch.entry(key.clone()).or_insert(None);
        });
        let ((made, outcomes), inputs) =
            worker.call(move |balancer| (balancer.dry_run(batch), balancer.guard(&selected))).await?;
        changes.extend(made);
        guard_batch.extend(inputs.into_iter().map(|input| (input.key.clone(), Some(input))));
        for (key, outcome) in outcomes {
            refused.extend(outcome.err().map(|problem| refusal(&key, vec![problem])));
        }
    }
    if let Some(guard) = lanes.guard.as_ref().filter(|_| !guard_batch.is_empty()) {
        let (made, _) = guard.call(move |guard| guard.dry_run(guard_batch.into_iter().collect())).await?;
        changes.extend(made);
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
