//! The whole daemon as a value: the node, its API and its metrics, started and stopped in order.
//!
//! It installs no signal handlers and no logger; the binary (`main.rs`) does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use vipd_model::OwnerName;
use vipd_userspace::Proxy;

use crate::api::relay::Relay;
use crate::api::transport::ListenError;
use crate::api::transport::listen::Door;
use crate::api::{Access, Api, Listeners, Room};
use crate::config::{Config, ConfigError, DEFAULT_METRICS};
use crate::metrics::{self, HealthServer, Sources};
use crate::node::{Node, StartError};
use crate::reconcile::Control;
use crate::reconcile::run::{Clock, Fatal};

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The node: store, engines, addresses.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Nobody could get in.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Metrics.
    #[error("metrics cannot be served on {address}: {error}; set another address, or off")]
    Metrics {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// The reconciler has lost sight of the kernel.
    #[error(transparent)]
    Fatal(#[from] Fatal),
    /// A task of ours has panicked.
    #[error("a task has died: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The gRPC server.
    #[error("the API cannot be served: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// See the module.
#[derive(Debug)]
pub struct Daemon;

/// A daemon that runs. Dropping it leaves it running in its runtime; [`Handle::stop`] ends it.
pub struct Handle {
    control: Control,
    clock: Clock,
    door: Door,
    stopping: CancellationToken,
    reconciler: JoinHandle<Result<(), Fatal>>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    metrics: Option<JoinHandle<()>>,
    proxy: Arc<Proxy>,
    stop_patience: Duration,
    /// Where metrics are served.
    pub metrics_address: Option<SocketAddr>,
    /// Where the API is served with mutual TLS.
    pub tls_address: Option<SocketAddr>,
    /// Where the API is served on loopback, insecurely.
    pub loopback_address: Option<SocketAddr>,
}

impl Daemon {
    /// Starts everything in the current tokio runtime, which is then the control runtime; traffic has threads of its own.
    ///
    /// # Errors
    /// Why not. Nothing was written to the kernel then.
    pub async fn start(config: Config) -> Result<Handle, DaemonError> {
        let node = Node::start(&config)?;
        let listeners = Listeners::open(&config).await?;
        let metrics = bind_metrics(&config).await?;
        let stopping = CancellationToken::new();
        let Node { control, reconciler, proxy, clock, guarded } = node;
        let room = Room { calls: config.limits.calls, streams: config.limits.streams };
        let access = access(&config, guarded)?;
        let api = Api::new(control.clone(), Arc::clone(&clock), access, room, stopping.clone());
        let api = api.with_relay(Arc::clone(&proxy) as Arc<dyn Relay>);
        let streams = {
            let api = api.clone();
            Arc::new(move || api.open_streams())
        };
        let sources = Sources {
            control: control.clone(),
            clock: Arc::clone(&clock),
            proxy: Arc::clone(&proxy),
            seats: listeners.seats.clone(),
            intake: listeners.intake.clone(),
            streams,
        };
        Ok(Handle {
            door: listeners.door(),
            tls_address: listeners.tls,
            loopback_address: listeners.loopback,
            metrics_address: metrics.as_ref().and_then(|server| server.address().ok()),
            reconciler: tokio::spawn(reconciler.run()),
            server: tokio::spawn(crate::api::serve(api, listeners)),
            metrics: metrics.map(|server| tokio::spawn(metrics::serve(server, sources))),
            control,
            clock,
            stopping,
            proxy,
            stop_patience: config.stop_patience.duration(),
        })
    }
}

impl Handle {
    /// A channel to this daemon that leaves the process never, for the generated clients.
    ///
    /// # Errors
    /// If the daemon has stopped.
    pub async fn channel(&self) -> Result<Channel, tonic::transport::Error> {
        self.door.channel().await
    }

    /// The reconciler, for what the API has no word for.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The time of day as the daemon sees it.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Waits until the daemon ends by itself, which it does only if something is broken.
    ///
    /// # Errors
    /// What broke.
    pub async fn ended(&mut self) -> Result<(), DaemonError> {
        tokio::select! {
            ended = &mut self.reconciler => Ok(ended??),
            ended = &mut self.server => Ok(ended??),
        }
    }

    /// Stops in order: nobody is let in any more, open calls finish, what was accepted is stored, established connections
    /// of the proxy get `stop-patience`. What the kernel has stays.
    pub async fn stop(mut self) {
        self.stopping.cancel();
        if !self.server.is_finished() {
            // Its own patience with open calls is bounded.
            let _ = (&mut self.server).await;
        }
        self.control.stop().await;
        if !self.reconciler.is_finished() {
            let _ = (&mut self.reconciler).await;
        }
        if let Some(metrics) = self.metrics.take() {
            metrics.abort();
        }
        let (proxy, patience) = (Arc::clone(&self.proxy), self.stop_patience);
        let drained = tokio::task::spawn_blocking(move || proxy.drain(patience)).await;
        if !drained.unwrap_or(false) {
            tracing::warn!("connections of the proxy were still open after {} s and are cut", patience.as_secs());
        }
    }
}

/// Metrics, where they are to be served. If nobody chose the address, one that is taken is no reason not to start: a
/// second daemon on the host is the usual cause.
async fn bind_metrics(config: &Config) -> Result<Option<HealthServer>, DaemonError> {
    let Ok(Some(address)) = config.metrics_address() else { return Ok(None) };
    match HealthServer::bind(address).await {
        Ok(server) => Ok(Some(server)),
        Err(error) if config.metrics == DEFAULT_METRICS => {
            tracing::warn!("no metrics: {address}: {error}");
            Ok(None)
        }
        Err(error) => Err(DaemonError::Metrics { address, error }),
    }
}

fn access(config: &Config, guarded: bool) -> Result<Access, DaemonError> {
    let default_owner = OwnerName::new(&config.default_owner)
        .map_err(|why| ConfigError::Contradiction(format!("default-owner {why}")))?;
    let own_addresses = Arc::new(|| match crate::node::addresses::list() {
        Ok(addresses) => addresses.into_iter().filter(|address| !address.is_loopback()).collect(),
        Err(error) => {
            tracing::warn!("this node's addresses cannot be read: {error}");
            Vec::new()
        }
    });
    Ok(Access::new(config.access.clone(), default_owner, guarded, own_addresses))
}
