//! From a configuration to a node that serves: store, desired state, engines, reconciler, in that order.
//!
//! Nothing is written to the kernel before the stored state has been read; what the kernel has goes on meanwhile.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use vipd_engine::InvalidPackets;
use vipd_model::desired::Stored;
use vipd_model::{Desired, Limits, Millis, NameError, OwnerName, Problem, ProblemCode};
use vipd_userspace::Proxy;

use super::lanes::{NodeLanes, Unavailable};
use super::{addresses, findings};
use crate::config::Config;
use crate::reconcile::run::Clock;
use crate::reconcile::{Control, Persist, Reconciler, Settings, Start, Worker};
use crate::store::{self, Finding, Opened, Store, StoreError};

/// Why the node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The state directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The engines.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The node's addresses.
    #[error("the node's addresses cannot be read: {0}")]
    Addresses(#[from] vipd_netlink::Error),
    /// A thread, or a subscription to address changes.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
    /// A name in `reconcile.wait-for-owners`.
    #[error("reconcile.wait-for-owners: {name:?} {error}")]
    Owner {
        /// As configured.
        name: String,
        /// What is wrong with it.
        error: NameError,
    },
}

/// A node that has been put together. Nothing moves before `reconciler.run()`.
pub struct Node {
    /// For the API.
    pub control: Control,
    /// The loop, to be run by the control runtime.
    pub reconciler: Reconciler,
    /// Whether a guard captures VIP traffic; without one, services listen on this host's own addresses.
    pub guarded: bool,
    /// The data path: its totals, and its graceful end.
    pub proxy: Arc<Proxy>,
    /// The time of day.
    pub clock: Clock,
}

impl Node {
    /// Opens, reads, probes and starts threads; writes nothing to the kernel. Must be called in the control runtime.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let settings = settings(config)?;
        let NodeLanes { lanes, engines, kernel_objects, proxy, no_guard } = NodeLanes::start(config)?;
        let opened = Store::open(&config.state_dir)?;
        let epoch = opened.store.epoch().to_owned();
        let store_problem = opened.store.read_only_reason().map(|why| {
            let text = format!(
                "the store takes no writes: {why}; changes are refused until vipd is restarted on a store that does"
            );
            Problem::new(ProblemCode::Host, "", text)
        });
        let guarded = no_guard.is_none();
        let mut found = findings::host();
        found.extend(no_guard.map(|why| {
            let text = format!(
                "no guard ({why}): services listen on this host's own addresses, virtual IPs need CAP_NET_ADMIN"
            );
            Problem::new(ProblemCode::Host, "", text)
        }));
        let (stored, known) = stored(&opened, &mut found);
        let (desired, problems) = Desired::restore(engines, limits(config), stored);
        found.extend(problems);
        for finding in &found {
            tracing::warn!("{}", finding.message);
        }
        let store: Box<dyn Persist> = Box::new(opened.store);
        let clock: Clock = Arc::new(now);
        let (control, reconciler) = Reconciler::new(Start {
            desired,
            epoch,
            known,
            persist: Worker::thread("store", store)?,
            store_problem,
            lanes,
            kernel_objects,
            addresses: addresses::list()?,
            findings: found,
            counted: store::totals::load(&config.state_dir, clock()),
            clock: Arc::clone(&clock),
            settings,
        });
        addresses::follow(control.clone())?;
        Ok(Self { control, reconciler, guarded, proxy, clock })
    }
}

/// Milliseconds since the epoch; a clock before it reads 0.
fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// What the store declares, and whether that is known to be all that was declared.
fn stored(opened: &Opened, found: &mut Vec<Problem>) -> (Stored, bool) {
    let restored = store::encode::restore(opened.store.revision(), &opened.records);
    let findings = || opened.findings.iter().chain(&restored.findings);
    let known = !opened.fresh && !findings().any(Finding::is_loss);
    found.extend(findings().map(|finding| Problem::new(ProblemCode::Host, "", finding.to_string())));
    (restored.stored, known)
}

fn limits(config: &Config) -> Limits {
    Limits {
        services: config.limits.services,
        large_removal_percent: config.limits.large_removal_percent,
        ..Limits::default()
    }
}

fn settings(config: &Config) -> Result<Settings, StartError> {
    let reconcile = &config.reconcile;
    let owner = |name: &String| OwnerName::new(name).map_err(|error| StartError::Owner { name: name.clone(), error });
    Ok(Settings {
        retry_first: reconcile.retry_first.duration(),
        retry_most: reconcile.retry_most.duration(),
        check_every: reconcile.check_every.duration(),
        poll_every: reconcile.poll_every.duration(),
        stalled_after: reconcile.stalled_after.duration(),
        batch: reconcile.batch,
        journal: reconcile.journal,
        wait_for_owners: reconcile.wait_for_owners.iter().map(owner).collect::<Result<_, _>>()?,
        node_port_addresses: config.node_ports.addresses.clone(),
        invalid_packets: InvalidPackets::default(),
    })
}
