//! Batches: from what is due to what is in force, and what its callers are told.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use vipd_engine::{FlowFilter, Node};
use vipd_model::{At, Frontend, Millis, Policy, Problem, ProblemCode, Revision, Scope, ServiceKey};

use super::core::{Core, network};
use super::journal::EventKind;
use super::program::{Item, Programmed, program, program_node};
use super::run::{Done, Reconciler};
use super::track::Failure;

impl Reconciler {
    /// Takes what is due, up to a batch, and programs it.
    pub(super) fn start_batch(&mut self) {
        let core = self.core.read().unwrap_or_else(PoisonError::into_inner);
        let keys: Vec<_> = self.due.iter().take(self.settings.batch).cloned().collect();
        let mut items = Vec::with_capacity(keys.len());
        let mut refused = Vec::new();
        for key in keys {
            self.due.remove(&key);
            match item(&core, &key) {
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
        self.write().figures.batches += 1;
        self.applying = Some((items.clone(), Instant::now()));
        let lanes = self.lanes.clone();
        self.spawn(async move { Done::Applied(program(&lanes, &items).await) });
    }

    /// A batch is through the engines.
    pub(super) fn applied(&mut self, programmed: Programmed) {
        let Some((items, _)) = self.applying.take() else { return };
        self.write().stalled = None;
        let clean = programmed.stale.is_empty() || self.lanes.cleaner.is_none();
        for item in items {
            match programmed.failures.get(&item.key) {
                Some(problem) => self.failed(&item.key, item.at, problem),
                None => {
                    self.record(&item);
                    if clean {
                        self.in_force(&item.key, item.at);
                    } else {
                        self.to_clean.0.push((item.key, item.at));
                    }
                }
            }
        }
        if !clean {
            self.to_clean.1.extend(programmed.stale);
        }
        self.announce();
    }

    /// The rules are in.
    fn record(&self, item: &Item) {
        let now = self.now();
        let mut core = self.write();
        core.figures.programmed += 1;
        let moved = core.tracks.update(&item.key, |track| {
            track.failure = None;
            track.programmed.clone_from(&item.service);
            track.programmed_at = Some(now);
            track.notes.clone_from(&item.notes);
            track.withdrawn.clone_from(&item.withdrawn);
            track.algorithm = item.to.as_ref().map(|selected| selected.algorithm);
            let engine = item.to.as_ref().map(|selected| selected.engine);
            let moved = (track.engine, engine);
            track.engine = engine;
            moved
        });
        if let (Some(from), Some(to)) = moved
            && from != to
        {
            let text = format!("served by {to}, before by {from}");
            core.log(now, EventKind::Engine, "", &item.key, item.at, text);
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
        } else {
            core.changes.touch_status(key);
        }
        drop(core);
        if let Some(since) = self.accepted_at.remove(key) {
            self.write().figures.latency(since.elapsed().as_secs_f64());
        }
        let outcome = match &withdrawn {
            Some(problem) if problem.code == ProblemCode::NotProgrammed => Err(problem),
            _ => Ok(()),
        };
        self.waiters.decide(key, at, outcome);
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
            track.failure = Some(Failure { problem: problem.clone(), attempts, retry_at });
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
        self.waiters.decide(key, at, Err(&problem));
    }

    /// Doubles, with a spread by name so that services that failed together do not come back together.
    fn pause(&self, key: &ServiceKey, attempts: u32) -> Duration {
        let doubled = self.settings.retry_first.saturating_mul(1 << attempts.saturating_sub(1).min(16));
        let spread = key.name.as_str().bytes().fold(u32::from(7u8), |sum, byte| sum.wrapping_mul(31) + u32::from(byte));
        doubled.min(self.settings.retry_most).mul_f64(0.75 + f64::from(spread % 256) / 512.0)
    }

    pub(super) fn start_cleaning(&mut self) {
        let (services, mut filters) = std::mem::take(&mut self.to_clean);
        filters.sort();
        filters.dedup();
        let Some(cleaner) = self.lanes.cleaner.clone() else { return };
        self.cleaning = true;
        self.spawn(async move {
            let result = cleaner.call(move |cleaner| cleaner.clean(&filters)).await;
            Done::Cleaned(services, result)
        });
    }

    /// The shared walk is done for these services.
    pub(super) fn cleaned(&mut self, services: Vec<(ServiceKey, Revision)>, result: Result<(), String>) {
        self.cleaning = false;
        for (key, at) in services {
            match &result {
                Ok(()) => self.in_force(&key, at),
                Err(message) => {
                    let text = format!("rules are in force, but stale UDP flows could not be forgotten: {message}");
                    self.failed(&key, at, &Problem::new(ProblemCode::NotProgrammed, "", text));
                }
            }
        }
        self.announce();
    }

    /// Renders the node's own objects, then makes every service with a node port due.
    pub(super) fn start_node(&mut self) {
        self.node_due = None;
        self.setting_node = true;
        let node = {
            let mut core = self.write();
            let node = Node { network: network(&core.desired), ..Node::clone(&core.node) };
            core.node = Arc::new(node);
            Arc::clone(&core.node)
        };
        let lanes = self.lanes.clone();
        self.spawn(async move {
            let result = program_node(&lanes, &node).await;
            Done::NodeSet(node, result)
        });
    }

    pub(super) fn node_set(&mut self, node: &Node, result: Result<Vec<FlowFilter>, Problem>) {
        self.setting_node = false;
        match result {
            Ok(stale) => {
                self.to_clean.1.extend(stale);
                let core = self.core.read().unwrap_or_else(PoisonError::into_inner);
                self.due.extend(that_depend_on_the_node(&core));
            }
            Err(problem) => {
                tracing::warn!(problem = %problem.message, "the node's own rules are not in force; retrying");
                self.node_due = Some(Instant::now() + self.settings.retry_first);
                let now = self.now();
                let text = format!("virtual ranges {:?}: {problem}", node.network.virtual_ranges);
                self.write().log_node(now, EventKind::NotProgrammed, "", None, text);
            }
        }
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
fn item(core: &Core, key: &ServiceKey) -> Result<Item, (Revision, Problem)> {
    let track = core.tracks.get(key);
    let at = track.map_or(Revision(0), |track| track.wanted);
    let from = track.and_then(|track| track.engine);
    let service = core.desired.service(key).cloned();
    let withdrawn = service.as_ref().and_then(|_| core.withdrawn(key));
    let mut item = Item { key: key.clone(), at, from, to: None, service, notes: Vec::new(), withdrawn };
    if item.withdrawn.is_none()
        && let Some(service) = &item.service
    {
        let (selected, notes) = core.selected(service).map_err(|problem| (at, problem))?;
        (item.to, item.notes) = (Some(selected), notes);
    }
    Ok(item)
}

/// Their objects depend on the node: on its addresses, or on who is inside, where insiders get another set of endpoints.
fn that_depend_on_the_node(core: &Core) -> BTreeSet<ServiceKey> {
    let depends = |frontend: &Frontend| {
        let inside_matters = frontend.scope == Scope::External && frontend.policy == Policy::Local;
        inside_matters || matches!(frontend.at, At::NodePort(_))
    };
    let depend = |service: &vipd_model::Service| service.definition.frontends.iter().any(depends);
    core.desired.services().filter(|service| depend(service)).map(|service| service.key.clone()).collect()
}

/// How long ago, in whole seconds.
pub(super) fn seconds_since(now: Millis, then: Millis) -> u64 {
    now.0.saturating_sub(then.0) / 1000
}
