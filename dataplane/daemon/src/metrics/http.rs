//! What each path of the metrics address says.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::snapshot::{Snapshot, Sources};
use crate::http::{self, PLAIN, Page};

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Listens, and does not answer yet.
pub struct HealthServer {
    listener: TcpListener,
}

impl HealthServer {
    /// Binds.
    ///
    /// # Errors
    /// As the system says.
    pub async fn bind(address: SocketAddr) -> std::io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await? })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As the system says.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Answers until it is dropped.
pub async fn serve(server: HealthServer, sources: Sources) {
    http::serve(server.listener, move |path| {
        let sources = sources.clone();
        async move { respond(&path, &sources).await }
    })
    .await;
}

async fn respond(path: &str, sources: &Sources) -> Page {
    let now = (sources.clock)();
    match path {
        "/metrics" => match super::text(Snapshot::take(sources).await) {
            Ok(text) => Page::new("200 OK", PROMETHEUS, text),
            Err(error) => Page::new("500 Internal Server Error", PLAIN, format!("{error}\n")),
        },
        "/livez" => Page::verdict(None),
        "/readyz" => {
            let ready = sources.control.read(|core| core.ready);
            Page::verdict((!ready).then(|| "the stored state is still being programmed".to_owned()))
        }
        "/healthz" => Page::verdict(sources.control.read(|core| core.unhealthy(now))),
        _ => Page::new("404 Not Found", PLAIN, "there are /metrics, /healthz, /livez and /readyz\n"),
    }
}
