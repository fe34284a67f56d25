//! A few fixed answers over HTTP/1.1: bounded in connections, in bytes and in time, so that a stray client cannot hurt.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Requests at once; more wait to be accepted.
const CONNECTIONS: usize = 32;
/// From connection to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Request line and headers.
const REQUEST_BYTES: usize = 8 * 1024;

/// The kind of body that people read.
pub const PLAIN: &str = "text/plain; charset=utf-8";

/// One answer.
#[derive(Clone, Debug)]
pub struct Page {
    /// `200 OK`
    pub status: &'static str,
    /// Content-Type.
    pub kind: &'static str,
    /// Other headers.
    pub headers: Vec<(&'static str, String)>,
    /// What is said.
    pub body: String,
}

impl Page {
    /// A page with no headers of its own.
    pub fn new(status: &'static str, kind: &'static str, body: impl Into<String>) -> Self {
        Self { status, kind, headers: Vec::new(), body: body.into() }
    }

    /// "ok", or why not.
    pub fn verdict(problem: Option<String>) -> Self {
        match problem {
            None => Self::new("200 OK", PLAIN, "ok\n"),
            Some(why) => Self::new("503 Service Unavailable", PLAIN, format!("{why}\n")),
        }
    }
}

/// Answers GET and HEAD with what `respond` makes of the path, until it is dropped; its connections end with it.
pub async fn serve<F: Future<Output = Page> + Send + 'static>(
    listener: TcpListener,
    respond: impl Fn(String) -> F + Clone + Send + 'static,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let respond = respond.clone();
                connections.spawn(async move {
                    // Whoever is too slow, or gone, gets no answer.
                    let _ = timeout(PATIENCE, answer(stream, respond)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("http: cannot take a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer<F: Future<Output = Page>>(mut stream: TcpStream, respond: impl Fn(String) -> F) -> std::io::Result<()> {
    let Some(request) = read_request(&mut stream).await? else { return Ok(()) };
    let mut words = request.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let page = if matches!(method, "GET" | "HEAD") {
        respond(target.split('?').next().unwrap_or_default().to_owned()).await
    } else {
        Page::new("405 Method Not Allowed", PLAIN, "only GET and HEAD\n")
    };
    let mut head = format!("HTTP/1.1 {}\r\nContent-Type: {}\r\n", page.status, page.kind);
    for (name, value) in &page.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\nConnection: close\r\n\r\n", page.body.len());
    stream.write_all(head.as_bytes()).await?;
    if method != "HEAD" {
        stream.write_all(page.body.as_bytes()).await?;
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
