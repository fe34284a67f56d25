//! Probes what this node can run, and starts it: engines and guard, each with its thread.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use vipd_engine::{Engine, EngineError, Runner, Steps as _};
use vipd_model::{Ability, EngineKind, Engines};
use vipd_nftables::Guard;
use vipd_userspace::{Proxy, ProxyConfig, Userspace, Way};

use super::cleaner::ConntrackCleaner;
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

impl NodeLanes {
    /// Probes and starts.
    ///
    /// # Errors
    /// If nothing can run, or the engine that was insisted on cannot.
    pub fn start(config: &Config) -> Result<Self, Unavailable> {
        let (guard, no_guard) = match Guard::open() {
            Ok(guard) => (Some(guard), None),
            Err(unusable) => (None, Some(unusable.to_string())),
        };
        let way = if guard.is_some() { Way::Captured } else { Way::Direct };
        let proxy = Arc::new(Proxy::start(&ProxyConfig::default()).map_err(Unavailable::Proxy)?);
        let userspace = Userspace::new(Arc::clone(&proxy), way);

        let engines = engines(config, userspace.ability())?;
        let userspace = Runner::start(userspace)?;
        let mut kernel_objects = 0;
        let userspace: Box<dyn Balancer> = Box::new(userspace);
        let balancer = Worker::thread("userspace", userspace).map_err(Unavailable::Thread)?;
        let mut lanes = Lanes { balancers: BTreeMap::from([(EngineKind::Userspace, balancer)]), ..Lanes::default() };
        if let Some(guard) = guard {
            let guard: Box<dyn GuardLane> = Box::new(Runner::start(guard)?);
            kernel_objects += guard.object_count() as u64;
            lanes.guard = Some(Worker::thread("guard", guard).map_err(Unavailable::Thread)?);
            lanes.cleaner = cleaner()?;
        }
        Ok(Self { lanes, engines, kernel_objects, proxy, no_guard })
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
fn engines(config: &Config, userspace: Ability) -> Result<Engines, Unavailable> {
    let mut abilities: BTreeMap<EngineKind, Ability> = EngineKind::ALL.map(|kind| (kind, later(kind))).into();
    abilities.insert(EngineKind::Userspace, userspace);
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

/// An engine that this version does not have: what it is good for is known, so that a refusal can name it.
fn later(kind: EngineKind) -> Ability {
    Ability { reason: format!("engine {kind} comes in a later version"), ..vipd_model::feature::designed(kind) }
}

/// Removes everything of ours from the kernel, and nothing else; returns how many objects.
///
/// # Errors
/// What could not be removed, or why the kernel cannot be asked.
pub fn cleanup() -> Result<u64, String> {
    let mut guard = Guard::open().map_err(|unusable| unusable.to_string())?;
    guard.cleanup().map_err(|error| error.to_string())
}
