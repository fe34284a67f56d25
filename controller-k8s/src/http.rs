//! A few answers over HTTP/1.1, bounded in connections, bytes and time: load balancers and strangers may ask.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Requests at once; more wait to be accepted.
const CONNECTIONS: usize = 64;
/// From connection to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Request line and headers.
const REQUEST_BYTES: usize = 8 * 1024;
/// Between two tries to bind.
const AGAIN: Duration = Duration::from_secs(5);

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// 200, 404, 503.
    pub(crate) code: u16,
    /// Content-Type.
    pub(crate) kind: &'static str,
    /// What is said.
    pub(crate) body: String,
}

impl Page {
    /// Text for people.
    #[must_use]
    pub(crate) fn text(code: u16, body: impl Into<String>) -> Self {
        Self { code, kind: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// Answers GET and HEAD at an address with what `respond` makes of the path, until it is dropped. A taken address is
/// tried again.
pub(crate) async fn serve<F: Future<Output = Page> + Send + 'static>(
    address: SocketAddr,
    respond: impl Fn(String) -> F + Clone + Send + 'static,
) {
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => tracing::error!("cannot listen on {address}: {error}; trying again"),
        }
        tokio::time::sleep(AGAIN).await;
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let respond = respond.clone();
                tokio::spawn(async move {
                    // Who is too slow, or gone, gets no answer.
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
        Page::text(405, "only GET and HEAD\n")
    };
    let reason = match page.code {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    let length = page.body.len();
    let head = format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nX-Content-Type-Options: nosniff\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n",
        page.code, page.kind
    );
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
