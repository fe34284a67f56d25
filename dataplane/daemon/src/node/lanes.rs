//! Probes what this node can run, and starts it: engines and guard, each with its thread.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use vipd_engine::{Engine, EngineError, Runner};
use vipd_model::{Ability, EngineKind, Engines};
use vipd_nftables::{Guard, Nftables};
use vipd_userspace::{Proxy, ProxyConfig, Userspace, Way};

use super::cleaner::ConntrackCleaner;
use super::iptables;
use crate::config::Config;
use crate::reconcile::{Balancer, Cleaner, GuardLane, Lanes, Worker};

/// What moves packets on this node, started, with the kernel read and nothing written.
pub struct NodeLanes {
    /// For the reconciler.
    pub lanes: Lanes,
    /// For acceptance and GetInfo.
    pub engines: Engines,
    /// How many objects of ours the kernel had.
    pub kernel_objects: u64,
    /// The proxy, for its graceful end and its totals.
    pub proxy: Arc<Proxy>,
    /// Why there is no guard; absent: there is one.
    pub no_guard: Option<String>,
}

/// Why the node cannot run at all.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// No threads, no event queues.
    #[error("the proxy cannot start: {0}")]
    Proxy(#[source] io::Error),
    /// No thread for an engine.
    #[error("a thread cannot be had: {0}")]
    Thread(#[source] io::Error),
    /// The kernel could not be read.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine that was named cannot run here, and the configuration wants no other.
    #[error("engine {wanted} cannot run here ({reason}), and engine-fallback is off")]
    Wanted {
        /// As configured.
        wanted: EngineKind,
        /// In words.
        reason: String,
    },
}

/// What was found of each engine.
#[derive(Default)]
struct Found {
    lanes: Lanes,
    abilities: BTreeMap<EngineKind, Ability>,
    kernel_objects: u64,
}

impl Found {
    /// An engine that can run: reads what the kernel has of it. One that serves nobody has nothing there, if it `rests`.
    fn start<E: Engine + 'static>(&mut self, engine: E, rests: bool) -> Result<(), Unavailable> {
        let (kind, ability) = (engine.kind(), engine.ability());
        let mut runner = Runner::start(engine)?;
        self.kernel_objects += runner.object_count() as u64;
        if rests {
            runner = runner.resting();
        }
        if runner.steps().carries_flows() {
            self.lanes.carriers.insert(kind);
        }
        let balancer: Box<dyn Balancer> = Box::new(runner);
        let worker = Worker::thread(&kind.to_string(), balancer).map_err(Unavailable::Thread)?;
        self.lanes.balancers.insert(kind, worker);
        self.abilities.insert(kind, ability);
        Ok(())
    }

    /// One that cannot: what it is good for is known, so that a refusal can name it.
    fn without(&mut self, kind: EngineKind, reason: String) {
        self.abilities.insert(kind, Ability { reason, ..vipd_model::feature::designed(kind) });
    }

    fn guard(&mut self, guard: Guard) -> Result<(), Unavailable> {
        let guard: Box<dyn GuardLane> = Box::new(Runner::start(guard)?);
        self.kernel_objects += guard.object_count() as u64;
        self.lanes.guard = Some(Worker::thread("guard", guard).map_err(Unavailable::Thread)?);
        self.lanes.cleaner = cleaner()?;
        Ok(())
    }
}

impl NodeLanes {
    /// Probes and starts.
    ///
    /// # Errors
    /// If nothing can run, or the engine that was insisted on cannot.
    pub fn start(config: &Config) -> Result<Self, Unavailable> {
        let mut found = Found::default();
        let no_guard = match Guard::open() {
            Ok(guard) => found.guard(guard).map(|()| None)?,
            Err(unusable) => Some(unusable.to_string()),
        };
        let way = if no_guard.is_none() { Way::Captured } else { Way::Direct };
        let proxy = Arc::new(Proxy::start(&ProxyConfig::default()).map_err(Unavailable::Proxy)?);
        found.start(Userspace::new(Arc::clone(&proxy), way), false)?;
        match Nftables::open() {
            Ok(engine) => found.start(engine, true)?,
            Err(unusable) => found.without(EngineKind::Nftables, unusable.to_string()),
        }
        match iptables::engine(config, no_guard.as_deref()) {
            Ok(engine) => found.start(engine, true)?,
            Err(reason) => found.without(EngineKind::Iptables, reason),
        }
        for kind in EngineKind::ALL {
            if !found.abilities.contains_key(&kind) {
                found.without(kind, format!("engine {kind} comes in a later version"));
            }
        }
        let engines = engines(config, found.abilities)?;
        Ok(Self { lanes: found.lanes, engines, kernel_objects: found.kernel_objects, proxy, no_guard })
    }
}

fn cleaner() -> Result<Option<Worker<dyn Cleaner>>, Unavailable> {
    match ConntrackCleaner::open() {
        Ok(cleaner) => {
            let cleaner: Box<dyn Cleaner> = Box::new(cleaner);
            Worker::thread("conntrack", cleaner).map(Some).map_err(Unavailable::Thread)
        }
        Err(error) => {
            tracing::warn!(%error, "stale UDP flows cannot be forgotten on this kernel");
            Ok(None)
        }
    }
}

/// What is known of every engine, in the configured order, with the default first.
fn engines(config: &Config, abilities: BTreeMap<EngineKind, Ability>) -> Result<Engines, Unavailable> {
    let mut order: Vec<EngineKind> = config.engine_order.iter().filter_map(|choice| choice.kind()).collect();
    for kind in EngineKind::ALL {
        if !order.contains(&kind) {
            order.push(kind);
        }
    }
    let usable = |kind: &EngineKind| abilities.get(kind).is_some_and(|ability| ability.usable);
    let reason = |kind| abilities.get(&kind).map_or(String::new(), |ability| ability.reason.clone());
    let first = order.iter().copied().find(usable).unwrap_or(EngineKind::Userspace);
    let (default, default_reason) = match config.engine.kind() {
        None => (first, format!("auto: {first} is the first of the configured order that can run here")),
        Some(wanted) if usable(&wanted) => (wanted, "configured".to_owned()),
        Some(wanted) if config.engine_fallback => {
            let reason = reason(wanted);
            tracing::warn!(%wanted, serving = %first, reason, "the configured engine cannot run here");
            (first, format!("{wanted} wanted; {reason}: fell back"))
        }
        Some(wanted) => return Err(Unavailable::Wanted { wanted, reason: reason(wanted) }),
    };
    order.retain(|kind| *kind != default);
    order.insert(0, default);
    Ok(Engines { abilities, order, default_reason })
}
