//! The gRPC server over all listeners: services, reflection, health, and the bounds of connections.

use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use vipd_model::Millis;
use vipd_proto::v1::dataplane_server::{DataplaneServer, SERVICE_NAME as DATAPLANE};
use vipd_proto::v1::node_server::{NodeServer, SERVICE_NAME as NODE};

use super::call::Api;
use super::intake::Intake;
use super::limits::{REPLY_BYTES, REQUEST_BYTES};
use super::transport::connection::Seats;
use super::transport::listen::{Door, Incoming, SocketFile, door};
use super::transport::tls::{Tls, TlsFiles};
use super::transport::{Connection, ListenError};
use crate::config::Config;
use crate::reconcile::Control;

/// A peer that is silent for so long is asked whether it lives.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// If it does not answer by then its connection is closed.
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(10);
/// Calls at once on one connection; more wait in the client.
const STREAMS_PER_CONNECTION: u32 = 256;
/// What open calls get to finish when the daemon stops.
const GRACE: Duration = Duration::from_secs(5);

/// Where callers come in.
pub struct Listeners {
    incoming: Incoming,
    door: Door,
    /// Connections.
    pub seats: Seats,
    /// Bytes of requests.
    pub intake: Intake,
    /// The TCP address with mutual TLS, if there is one.
    pub tls: Option<SocketAddr>,
    /// The loopback address without, if there is one.
    pub loopback: Option<SocketAddr>,
    _socket: SocketFile,
}

impl Listeners {
    /// Listens as the configuration says. Calls wait until [`serve`] runs.
    ///
    /// # Errors
    /// Where it cannot listen, and why.
    pub async fn open(config: &Config) -> Result<Self, ListenError> {
        let limits = &config.limits;
        let seats = Seats::new(limits.connections.min(seats_most()));
        let (door, incoming) = door(seats.clone());
        let socket = door.unix(&config.socket, config.socket_mode.0, config.socket_group.as_deref())?;
        let tls = match (config.listen, tls_files(config)) {
            (Some(address), Some(files)) => Some(door.tcp(address, Some(Tls::new(files)?)).await?),
            _ => None,
        };
        let loopback = match config.insecure_loopback {
            Some(address) => Some(door.tcp(address, None).await?),
            None => None,
        };
        let intake = Intake::new(REQUEST_BYTES, limits.intake_bytes, limits.intake_idle.duration());
        Ok(Self { incoming, door, seats, intake, tls, loopback, _socket: socket })
    }

    /// For the program that holds the daemon as a library: its way in.
    #[must_use]
    pub fn door(&self) -> Door {
        self.door.clone()
    }
}

fn tls_files(config: &Config) -> Option<TlsFiles> {
    Some(TlsFiles {
        cert: config.tls_cert.clone()?,
        key: config.tls_key.clone()?,
        client_ca: config.tls_client_ca.clone()?,
    })
}

/// A quarter of the file descriptors that this process may have: the rest is for traffic.
fn seats_most() -> usize {
    use nix::sys::resource::{Resource, getrlimit};
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(1_024, |(soft, _)| soft);
    usize::try_from(soft / 4).unwrap_or(usize::MAX).max(1)
}

/// Serves until `api`'s token says to stop; then open calls get some seconds to finish.
///
/// # Errors
/// If the server cannot run at all.
pub async fn serve(api: Api, listeners: Listeners) -> Result<(), tonic::transport::Error> {
    let stopping = api.stopping.clone();
    let (health, health_service) = tonic_health::server::health_reporter();
    let watch = tokio::spawn(report_health(api.control.clone(), std::sync::Arc::clone(&api.clock), health));
    let dataplane = DataplaneServer::new(api.clone())
        .max_decoding_message_size(REQUEST_BYTES)
        .max_encoding_message_size(REPLY_BYTES);
    let node = NodeServer::new(api).max_decoding_message_size(REQUEST_BYTES).max_encoding_message_size(REPLY_BYTES);
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_ANSWER))
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .layer(listeners.intake.clone())
        .add_service(dataplane)
        .add_service(node)
        .add_service(health_service)
        .add_optional_service(reflection().build_v1().ok())
        .add_optional_service(reflection().build_v1alpha().ok());
    let connections = ReceiverStream::new(listeners.incoming).map(Ok::<Connection, std::io::Error>);
    let stop = stopping.clone();
    let serving = server.serve_with_incoming_shutdown(connections, async move { stop.cancelled().await });
    let result = tokio::select! {
        result = serving => result,
        () = after(stopping, GRACE) => Ok(()),
    };
    watch.abort();
    result
}

async fn after(stopping: CancellationToken, grace: Duration) {
    stopping.cancelled().await;
    tokio::time::sleep(grace).await;
}

/// Our services and messages, health, and the details of errors, so that grpcurl can print all of them.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(vipd_proto::DESCRIPTOR)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
}

/// `grpc.health.v1`: Node serves while the server runs; Dataplane, and the server as a whole, once what was stored has
/// been programmed and as long as `/healthz` would be content.
async fn report_health(
    control: Control,
    clock: crate::reconcile::run::Clock,
    health: tonic_health::server::HealthReporter,
) {
    health.set_service_status(NODE, ServingStatus::Serving).await;
    let mut changed = control.changed();
    let mut told = None;
    loop {
        let now: Millis = clock();
        let fine = control.read(|core| core.ready && core.unhealthy(now).is_none());
        if told != Some(fine) {
            let status = if fine { ServingStatus::Serving } else { ServingStatus::NotServing };
            health.set_service_status(DATAPLANE, status).await;
            health.set_service_status("", status).await;
            told = Some(fine);
        }
        // A stall is found by time, everything else announces itself.
        let _ = tokio::time::timeout(Duration::from_secs(1), changed.changed()).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
