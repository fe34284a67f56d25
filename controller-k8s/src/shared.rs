//! What the adapter's tasks share: the world, and how far vipd is behind it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use tokio::sync::Notify;

use crate::facts::NodeFacts;
use crate::translate::{Context, LocalSources, NodePorts, owner};
use crate::world::World;
use vipd_proto::v1;

/// What the configuration decides about translation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where node ports are served.
    pub node_ports: NodePorts,
    /// The algorithm of every service.
    pub scheduler: Option<v1::scheduler::Algorithm>,
    /// Which clients live here.
    pub local_sources: LocalSources,
    /// Source NAT for cluster addresses always.
    pub source_nat_all: bool,
}

/// Shared by the watches, which write the world; the push, which reads it; and the health pages.
#[derive(Debug)]
pub struct Shared {
    /// The name of the Node that we run on.
    pub node_name: String,
    /// What the configuration decides.
    pub settings: Settings,
    world: Mutex<World>,
    changed: Notify,
    progress: Mutex<Progress>,
}

/// How far vipd is behind.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The oldest change that vipd has not been told of, or not accepted; none if there is none.
    pub waiting_since: Option<Instant>,
    /// The changes that are being told now have waited since.
    pub telling_since: Option<Instant>,
    /// vipd's last answer that everything it was told is in force.
    pub last_success: Option<SystemTime>,
    /// The last change that asked for telling.
    pub last_queued: Option<SystemTime>,
}

impl Progress {
    /// The oldest of what waits and of what is being told.
    #[must_use]
    pub fn behind_since(&self) -> Option<Instant> {
        self.waiting_since.into_iter().chain(self.telling_since).min()
    }
}

impl Shared {
    /// An empty world.
    #[must_use]
    pub fn new(node_name: String, settings: Settings) -> Self {
        Self { node_name, settings, world: Mutex::default(), changed: Notify::new(), progress: Mutex::default() }
    }

    /// Changes the world and wakes the push if something is to be told.
    pub fn update(&self, change: impl FnOnce(&mut World)) {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        let was_complete = world.is_complete();
        change(&mut world);
        if world.is_complete() && (world.has_changed() || !was_complete) {
            let mut progress = self.progress();
            progress.waiting_since.get_or_insert_with(Instant::now);
            progress.last_queued = Some(SystemTime::now());
            self.changed.notify_one();
        }
    }

    /// Waits until something may be to be told.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Reads the world, or takes from it.
    pub fn with<T>(&self, read: impl FnOnce(&mut World) -> T) -> T {
        read(&mut self.world.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How far vipd is behind.
    pub fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What translation needs beside a Service.
    #[must_use]
    pub fn context<'a>(&'a self, node: &'a NodeFacts) -> Context<'a> {
        Context { node, node_ports: &self.settings.node_ports, scheduler: self.settings.scheduler }
    }

    /// The owner's settings as of now.
    #[must_use]
    pub fn owner(&self) -> v1::Owner {
        let Settings { local_sources, source_nat_all, .. } = &self.settings;
        self.with(|world| {
            let node = world.node_facts().cloned().unwrap_or_default();
            owner(&node, local_sources, world.service_ranges(), *source_nat_all)
        })
    }
}
