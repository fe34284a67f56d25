//! Questions that need an engine: plan, verify, counters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;
use vipd_engine::runner::Seen;
use vipd_engine::{GuardEntry, GuardInput, Hashed, ServiceCounters};
use vipd_model::{
    Actor, Command, Delta, EngineKind, Mode, Operation, Place, Problem, ProblemCode, Refused, Request, Selected,
    Service, ServiceKey,
};

use super::beside::{beside, is_on_loopback};
use super::control::{CallError, Findings, Planned, Verified};
use super::core::Core;
use super::lanes::{Lane, Lanes, Pins};
use super::run::{Done, Reconciler};
use super::track::Track;
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
        let (work, refused) = would_do(&core, &self.lanes, &delta);
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

    pub(super) fn counters(&self, services: Vec<ServiceKey>, reply: Reply<Vec<ServiceCounters>>) {
        let lanes = self.lanes.clone();
        let core = Arc::clone(&self.core);
        let asked = asked(&self.read(), &services);
        self.spawn(async move {
            let mut all = Vec::new();
            for (engine, services) in asked {
                let Some(worker) = lanes.balancers.get(&engine) else { continue };
                match worker.call(move |balancer| balancer.counters(&services)).await {
                    Ok(Ok(counters)) => all.extend(counters.into_iter().map(|one| (engine, one))),
                    Ok(Err(error)) => {
                        let _ = reply.send(Err(CallError::Engine(error.to_string())));
                        return Done::Query(None);
                    }
                    Err(gone) => return Done::Query(Some(gone)),
                }
            }
            let core = core.read().unwrap_or_else(PoisonError::into_inner);
            let serves = |key: &ServiceKey| core.tracks.get(key).and_then(|track| track.engine);
            let _ = reply.send(Ok(core.totals.sum(all, serves)));
            Done::Query(None)
        });
    }

    pub(super) fn findings(&self, reply: Reply<Findings>) {
        let lanes = self.lanes.clone();
        self.spawn(async move {
            let mut all = Findings::default();
            let busy = |who: &str| {
                let text = format!("{who} is busy and has not answered for {} s", AT_ONCE.as_secs());
                Problem::new(ProblemCode::Host, "", text)
            };
            for (engine, worker) in &lanes.balancers {
                let ask = worker.call(|balancer| (balancer.findings(), balancer.sysctls()));
                match tokio::time::timeout(AT_ONCE, ask).await {
                    Ok(Ok((problems, sysctls))) => {
                        all.problems.extend(problems);
                        all.sysctls.extend(sysctls);
                    }
                    Ok(Err(gone)) => return Done::Query(Some(gone)),
                    Err(_) => all.problems.push(busy(&format!("engine {engine}"))),
                }
            }
            if let Some(guard) = &lanes.guard {
                match tokio::time::timeout(AT_ONCE, guard.call(|guard| guard.sysctls())).await {
                    Ok(Ok(sysctls)) => all.sysctls.extend(sysctls),
                    Ok(Err(gone)) => return Done::Query(Some(gone)),
                    Err(_) => all.problems.push(busy("the guard")),
                }
            }
            all.sysctls.sort();
            all.sysctls.dedup();
            let _ = reply.send(Ok(all));
            Done::Query(None)
        });
    }

    pub(super) fn pins(
        &self,
        engine: EngineKind,
        service: Arc<Selected>,
        client: Option<IpAddr>,
        flow: Option<Hashed>,
        reply: Reply<Pins>,
    ) {
        let Some(worker) = self.lanes.balancers.get(&engine).cloned() else {
            let _ = reply.send(Ok(Pins::default()));
            return;
        };
        self.spawn(async move {
            let ask = worker.call(move |balancer| balancer.pins(&service, client, flow.as_ref()));
            let (answer, gone) = match tokio::time::timeout(AT_ONCE, ask).await {
                Ok(Ok(pins)) => (Ok(pins), None),
                Ok(Err(gone)) => (Err(CallError::Stopping), Some(gone)),
                Err(_) => (Err(CallError::Engine(format!("engine {engine} is busy"))), None),
            };
            let _ = reply.send(answer);
            Done::Query(gone)
        });
    }

    pub(super) fn view(&self, key: ServiceKey, at: Option<(Place, u16)>, reply: Reply<Vec<(String, Vec<Seen>)>>) {
        let lanes = self.lanes.clone();
        self.spawn(async move {
            let look = lanes.ask(move |lane| lane.view(&key, at));
            let (answer, gone) = match tokio::time::timeout(AT_ONCE, look).await {
                Err(_) => {
                    let text = format!("an engine is busy and has not answered for {} s", AT_ONCE.as_secs());
                    (Err(CallError::Engine(text)), None)
                }
                Ok(Ok(Ok(seen))) => (Ok(seen.into_iter().filter(|(_, seen)| !seen.is_empty()).collect()), None),
                Ok(Ok(Err(error))) => (Err(CallError::Engine(error.to_string())), None),
                Ok(Err(gone)) => (Err(CallError::Stopping), Some(gone)),
            };
            let _ = reply.send(answer);
            Done::Query(gone)
        });
    }
}

/// Which engines count something of these services (of all, if none is named), and of which each.
fn asked(core: &Core, services: &[ServiceKey]) -> BTreeMap<EngineKind, Vec<ServiceKey>> {
    let mut asked: BTreeMap<EngineKind, Vec<ServiceKey>> = BTreeMap::new();
    let mut ask = |key: &ServiceKey, track: &Track| {
        for engine in &track.touched {
            asked.entry(*engine).or_default().push(key.clone());
        }
    };
    if services.is_empty() {
        core.tracks.iter().for_each(|(key, track)| ask(key, track));
    } else {
        services.iter().filter_map(|key| Some((key, core.tracks.get(key)?))).for_each(|(key, track)| ask(key, track));
    }
    asked
}

/// What a question about the node may wait for an engine.
const AT_ONCE: std::time::Duration = std::time::Duration::from_secs(1);

/// By engine: services that it would be told of, or serve no more, and whether it would serve them.
type Work = BTreeMap<EngineKind, Vec<(ServiceKey, Option<Selected>, bool)>>;

fn would_do(core: &Core, lanes: &Lanes, delta: &Delta) -> (Work, Vec<Refused>) {
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
        let track = core.tracks.get(key);
        let mut told: BTreeMap<EngineKind, (Selected, bool)> = BTreeMap::new();
        if let Some(to) = to {
            // Flows that stay with an engine that carries them are for its time after the change; here counts what leads.
            let beside = beside(core, lanes, track, &to).into_iter().filter(|beside| !beside.carries);
            told.extend(beside.map(|beside| (beside.selected.engine, (beside.selected, false))));
            told.insert(to.engine, (to, true));
        }
        let touched = track.map(|track| track.touched.clone()).unwrap_or_default();
        for from in touched.into_iter().filter(|from| !told.contains_key(from)) {
            work.entry(from).or_default().push((key.clone(), None, false));
        }
        for (engine, (selected, serves)) in told {
            work.entry(engine).or_default().push((key.clone(), Some(selected), serves));
        }
    }
    (work, refused)
}

fn refusal(key: &ServiceKey, problems: Vec<vipd_model::Problem>) -> Refused {
    Refused { index: 0, owner: key.owner.to_string(), name: key.name.to_string(), problems }
}

async fn dry_run(lanes: &Lanes, work: Work, mut refused: Vec<Refused>) -> Result<Planned, Gone> {
    let mut changes = Vec::new();
    let mut asked: BTreeMap<ServiceKey, Option<Vec<GuardEntry>>> = BTreeMap::new();
    for (engine, told) in work {
        let Some(worker) = lanes.balancers.get(&engine) else { continue };
        let serves: BTreeSet<ServiceKey> =
            told.iter().filter(|(.., serves)| *serves).map(|(key, ..)| key.clone()).collect();
        // One that moves is asked of the guard by its new engine.
        told.iter().filter(|(_, selected, _)| selected.is_none()).for_each(|(key, ..)| {
            asked.entry(key.clone()).or_insert(None);
        });
        let selected: Vec<Selected> = told.iter().filter_map(|(_, selected, _)| selected.clone()).collect();
        let batch: Vec<_> = told.into_iter().map(|(key, selected, _)| (key, selected)).collect();
        let ((made, outcomes), inputs) =
            worker.call(move |balancer| (balancer.dry_run(batch), balancer.guard(&selected))).await?;
        changes.extend(made);
        for GuardInput { key, entries } in inputs {
            let serves = serves.contains(&key);
            let entries = entries.into_iter().filter(|entry| serves || is_on_loopback(entry));
            asked.entry(key).or_default().get_or_insert_default().extend(entries);
        }
        for (key, outcome) in outcomes {
            refused.extend(outcome.err().map(|problem| refusal(&key, vec![problem])));
        }
    }
    let batch: Vec<_> = asked
        .into_iter()
        .map(|(key, entries)| {
            let input = entries.map(|mut entries| {
                entries.sort();
                GuardInput { key: key.clone(), entries }
            });
            (key, input)
        })
        .collect();
    if let Some(guard) = lanes.guard.as_ref().filter(|_| !batch.is_empty()) {
        let (made, _) = guard.call(move |guard| guard.dry_run(batch)).await?;
        changes.extend(made);
    }
    Ok(Planned { changes, refused })
}

async fn verify(lanes: &Lanes, service: Option<ServiceKey>) -> Result<Result<Verified, String>, Gone> {
    let look = move |lane: &mut dyn Lane| {
        let drift = match &service {
            Some(key) => lane.check_service(key),
            None => lane.check(),
        };
        drift.map(|drift| (drift, lane.object_count() as u64))
    };
    Ok(lanes.ask(look).await?.map_err(|error| error.to_string()).map(|lanes| {
        let mut verified = Verified::default();
        for (_, (drift, objects)) in lanes {
            verified.drift.extend(drift);
            verified.objects += objects;
        }
        verified
    }))
}
