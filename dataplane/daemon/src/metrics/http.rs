//! A few fixed answers over HTTP/1.1: bounded in connections, in bytes and in time, so that a stray client cannot hurt.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::snapshot::{Snapshot, Sources};

/// Requests at once; more wait to be accepted.
const CONNECTIONS: usize = 32;
/// From connection to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Request line and headers.
const REQUEST_BYTES: usize = 8 * 1024;

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
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match server.listener.accept().await {
            Ok((stream, _)) => {
                let sources = sources.clone();
                tokio::spawn(async move {
                    // Whoever is too slow, or gone, gets no answer.
                    let _ = timeout(PATIENCE, answer(stream, &sources)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("metrics: cannot take a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, sources: &Sources) -> std::io::Result<()> {
    let Some(request) = read_request(&mut stream).await? else { return Ok(()) };
    let (status, kind, body) = respond(&request, sources).await;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    if !request.starts_with("HEAD ") {
        stream.write_all(body.as_bytes()).await?;
    }
    stream.shutdown().await
}

/// The head of a request; `None` if there is none, or it is too long.
async fn read_request(stream: &mut TcpStream) -> std::io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1_024];
    while !bytes.windows(4).any(|window| window == b"\r\n\r\n") {
        let read = stream.read(&mut piece).await?;
        if read == 0 || bytes.len() + read > REQUEST_BYTES {
            return Ok(None);
        }
        bytes.extend_from_slice(&piece[..read]);
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

const PLAIN: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

async fn respond(request: &str, sources: &Sources) -> (&'static str, &'static str, String) {
    let mut words = request.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !matches!(method, "GET" | "HEAD") {
        return ("405 Method Not Allowed", PLAIN, "only GET and HEAD\n".to_owned());
    }
    let now = (sources.clock)();
    let verdict = |problem: Option<String>| match problem {
        None => ("200 OK", PLAIN, "ok\n".to_owned()),
        Some(why) => ("503 Service Unavailable", PLAIN, format!("{why}\n")),
    };
    match target.split('?').next().unwrap_or_default() {
        "/metrics" => match super::text(Snapshot::take(sources).await) {
            Ok(text) => ("200 OK", PROMETHEUS, text),
            Err(error) => ("500 Internal Server Error", PLAIN, format!("{error}\n")),
        },
        "/livez" => verdict(None),
        "/readyz" => {
            let ready = sources.control.read(|core| core.ready);
            verdict((!ready).then(|| "the stored state is still being programmed".to_owned()))
        }
        "/healthz" => verdict(sources.control.read(|core| core.unhealthy(now))),
        _ => ("404 Not Found", PLAIN, "there are /metrics, /healthz, /livez and /readyz\n".to_owned()),
    }
}
