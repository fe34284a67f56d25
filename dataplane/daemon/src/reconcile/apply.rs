//! Batches: from what is due to what is in force, and what its callers are told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vipd_engine::{FlowFilter, Node};
use vipd_model::{At, Frontend, Policy, Problem, ProblemCode, Revision, Scope, ServiceKey};

use super::beside::beside;
use super::core::{Core, network};
use super::journal::EventKind;
use super::lanes::Lanes;
use super::program::{Item, Programmed, program, program_node};
use super::run::{Done, Reconciler, UnderWay};
use super::track::{Draining, Failure};
use super::waiters::Target;

impl Reconciler {
    /// Takes what is due, up to a batch, and programs it.
    pub(super) fn start_batch(&mut self) {
        let mut keys = std::mem::take(&mut self.due);
        if keys.len() > self.settings.batch
            && let Some(next) = keys.iter().nth(self.settings.batch).cloned()
        {
            self.due = keys.split_off(&next);
        }
        let mut items = Vec::with_capacity(keys.len());
        let mut refused = Vec::new();
        let core = self.read();
        for key in keys {
            match item(&core, &self.lanes, &key) {
                Ok(item) => items.push(item),
                Err((at, problem)) => refused.push((key, at, problem)),
            }
        }
        drop(core);
        for (key, at, problem) in refused {
            self.failed(&key, at, &problem);
        }
        if items.is_empty() {
            return;
        }
        let mut core = self.write();
        core.figures.batches += 1;
        for item in &items {
            for engine in item.to.iter().chain(item.beside.iter().map(|beside| &beside.selected)).map(|s| s.engine) {
                core.tracks.touch(&item.key, engine);
            }
        }
        let node = Arc::clone(&core.node);
        drop(core);
        let engines = items.iter().filter_map(|item| Some(item.to.as_ref()?.engine)).collect();
        self.under_way = Some(UnderWay::Batch(engines));
        self.busy.begin("programming");
        let lanes = self.lanes.clone();
        self.spawn(async move {
            let programmed = program(&lanes, &node, &items).await;
            Done::Applied(programmed.map(|programmed| (items, programmed)))
        });
    }

    /// A batch is through the engines.
    pub(super) fn applied(&mut self, items: Vec<Item>, programmed: Programmed) {
        self.under_way = None;
        self.busy.end("programming");
        let nothing_stale = programmed.stale.is_empty() && programmed.judge.is_empty();
        let clean = nothing_stale || self.lanes.cleaner.is_none();
        self.cleaning.add(programmed.stale);
        self.cleaning.judge(programmed.judge);
        self.write().totals.keep(programmed.counted);
        for item in items {
            match programmed.failures.get(&item.key) {
                Some(problem) => self.failed(&item.key, item.at, problem),
                None => {
                    self.record(&item);
                    if clean && !self.cleaning.is_owed(&item.key) {
                        self.in_force(&item.key, item.at);
                    } else {
                        self.cleaning.wait(item.key, item.at);
                    }
                }
            }
        }
        self.announce();
    }

    /// The rules are in.
    fn record(&mut self, item: &Item) {
        let now = self.now();
        let mut core = self.core.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let health = self.health_ports.update(&item.key, item.service.as_deref(), &core.node);
        core.figures.programmed += 1;
        let moved = core.tracks.update(&item.key, |track| {
            track.failure = None;
            track.programmed.clone_from(&item.service);
            track.programmed_at = Some(now);
            track.notes.clone_from(&item.notes);
            track.withdrawn = item.withdrawn.clone().map(Box::new);
            track.health_port = health.err().map(|problem| Box::new(Problem { since: Some(now), ..problem }));
            track.algorithm = item.to.as_ref().map(|selected| selected.algorithm);
            let engine = item.to.as_ref().map(|selected| selected.engine);
            track.touched.retain(|engine| item.stays_at(*engine));
            let carriers = &self.lanes.carriers;
            track.draining.retain(|one| {
                engine.is_some_and(|engine| engine != one.engine)
                    && (!carriers.contains(&one.engine) || item.stays_at(one.engine))
            });
            (std::mem::replace(&mut track.engine, engine), engine)
        });
        if let (Some(from), Some(to)) = moved
            && from != to
        {
            let text = format!("served by {to}, before by {from}");
            core.log(now, EventKind::Engine, "", &item.key, item.at, text);
            let cut_at = self.drains.cut_at();
            core.tracks.update(&item.key, |track| track.draining.push(Draining::new(from, cut_at)));
            self.drains.begin(item.key.clone());
        }
    }

    /// The rules are in and the stale flows are gone: callers are told.
    pub(super) fn in_force(&mut self, key: &ServiceKey, at: Revision) {
        let mut core = self.write();
        let declared = core.desired.service(key).is_some();
        let again = core.tracks.update(key, |track| {
            track.in_force = track.in_force.max(at);
            // Everything up to `at` is in force; what came later is at least one revision newer.
            track.pending_since = (track.wanted > at).then(|| at.next());
            track.pending_since.is_some()
        });
        let withdrawn = core.tracks.get(key).and_then(|track| track.withdrawn.clone());
        if !declared && !again {
            core.tracks.forget(key);
            core.totals.forget(key);
        } else {
            core.changes.touch_status(key);
        }
        drop(core);
        if let Some(since) = self.accepted_at.remove(key) {
            self.write().figures.latency(since.elapsed().as_secs_f64());
        }
        let outcome = match &withdrawn {
            Some(problem) if problem.code == ProblemCode::NotProgrammed => Err(&**problem),
            _ => Ok(()),
        };
        self.waiters.decide(&Target::Service(key.clone()), at, outcome);
    }

    /// The kernel, or an engine, refuses it: what was in force stays so, and it is tried again.
    pub(super) fn failed(&mut self, key: &ServiceKey, at: Revision, problem: &Problem) {
        let now = self.now();
        let pause = |attempts: u32| self.pause(key, attempts);
        let mut core = self.write();
        let (attempts, problem) = core.tracks.update(key, |track| {
            let before = track.failure.take();
            let attempts = before.as_ref().map_or(0, |failure| failure.attempts) + 1;
            let since = before.and_then(|failure| failure.problem.since).or(Some(now));
            let problem = Problem { since, ..problem.clone() };
            let retry_at = Instant::now() + pause(attempts);
            track.failure = Some(Box::new(Failure { problem: problem.clone(), attempts, retry_at }));
            (attempts, problem)
        });
        core.figures.failed_attempts += 1;
        core.changes.touch_status(key);
        if attempts == 1 {
            core.log(now, EventKind::NotProgrammed, "", key, at, problem.message.clone());
        }
        drop(core);
        if attempts == 1 {
            tracing::warn!(service = %key, revision = at.0, problem = %problem.message, "not programmed; retrying");
        }
        self.accepted_at.remove(key);
        self.waiters.decide(&Target::Service(key.clone()), at, Err(&problem));
    }

    /// Doubles, with a spread by name so that services that failed together do not come back together.
    fn pause(&self, key: &ServiceKey, attempts: u32) -> Duration {
        let doubled = self.settings.retry_first.saturating_mul(1 << attempts.saturating_sub(1).min(16));
        let spread = key.name.as_str().bytes().fold(u32::from(7u8), |sum, byte| sum.wrapping_mul(31) + u32::from(byte));
        doubled.min(self.settings.retry_most).mul_f64(0.75 + f64::from(spread % 256) / 512.0)
    }

    /// Renders the node's own objects, then makes every service with a node port due.
    pub(super) fn start_node(&mut self) {
        self.node_due = None;
        let mut core = self.write();
        let node = Arc::new(Node { network: network(&core.desired), ..Node::clone(&core.node) });
        core.node = Arc::clone(&node);
        let at = core.node_track.wanted;
        drop(core);
        self.under_way = Some(UnderWay::Node(at));
        self.busy.begin("programming the node's own rules");
        let lanes = self.lanes.clone();
        self.spawn(async move { Done::NodeSet(program_node(&lanes, &node).await) });
    }

    pub(super) fn node_set(&mut self, result: Result<Vec<FlowFilter>, Problem>) {
        let Some(UnderWay::Node(at)) = self.under_way.take() else { return };
        self.busy.end("programming the node's own rules");
        let now = self.now();
        let mut core = self.write();
        match result {
            Ok(stale) => {
                let track = &mut core.node_track;
                track.failure = None;
                track.pending_since = (track.wanted > at).then(|| at.next());
                let due = that_depend_on_the_node(&core);
                drop(core);
                self.due.extend(due);
                self.cleaning.add(stale);
                self.waiters.decide(&Target::Node, at, Ok(()));
            }
            Err(problem) => {
                let problem = Problem { since: Some(now), ..problem };
                if core.node_track.failure.is_none() {
                    tracing::warn!(problem = %problem.message, "the node's own rules are not in force; retrying");
                    core.log_node(now, EventKind::NotProgrammed, "", None, format!("the node's own rules: {problem}"));
                }
                core.node_track.failure = Some(problem.clone());
                drop(core);
                self.node_due = Some(Instant::now() + self.settings.retry_first);
                self.waiters.decide(&Target::Node, at, Err(&problem));
            }
        }
        self.announce();
    }

    /// The node's addresses came or went.
    pub(super) fn take_addresses(&mut self, mut addresses: Vec<std::net::IpAddr>) {
        addresses.sort();
        addresses.dedup();
        let mut core = self.write();
        if core.node.addresses == addresses {
            return;
        }
        core.node = Arc::new(Node { addresses, ..Node::clone(&core.node) });
        drop(core);
        self.node_due = Some(Instant::now());
    }
}

/// What is to be done for a service now.
fn item(core: &Core, lanes: &Lanes, key: &ServiceKey) -> Result<Item, (Revision, Problem)> {
    let track = core.tracks.get(key);
    let at = track.map_or(Revision(0), |track| track.wanted);
    let from = track.map(|track| track.touched.clone()).unwrap_or_default();
    let service = core.desired.service(key).cloned();
    let withdrawn = service.as_ref().and_then(|_| core.withdrawn(key));
    let before = track.and_then(|track| track.programmed.clone().zip(track.engine));
    let (beside_it, notes) = (Vec::new(), Vec::new());
    let mut item = Item { key: key.clone(), at, from, to: None, beside: beside_it, before, service, notes, withdrawn };
    if item.withdrawn.is_none()
        && let Some(service) = &item.service
    {
        let (selected, notes) = core.selected(service).map_err(|problem| (at, problem))?;
        item.beside = beside(core, lanes, track, &selected);
        (item.to, item.notes) = (Some(selected), notes);
    }
    Ok(item)
}

/// Their objects depend on the node: on its addresses, or on who is inside, where insiders get another set of endpoints.
pub(super) fn that_depend_on_the_node(core: &Core) -> BTreeSet<ServiceKey> {
    let depends = |frontend: &Frontend| {
        let inside_matters = frontend.scope == Scope::External && frontend.policy == Policy::Local;
        inside_matters || matches!(frontend.at, At::NodePort(_))
    };
    // A health port listens on the node's addresses too.
    let depend = |service: &vipd_model::Service| {
        service.definition.health_port != 0 || service.definition.frontends.iter().any(depends)
    };
    core.desired.services().filter(|service| depend(service)).map(|service| service.key.clone()).collect()
}
