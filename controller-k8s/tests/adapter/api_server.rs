//! An API server on demand: lists, watches, bookmarks, 410 Gone, streams that end or come late, and lies. Only what a real
//! one cannot be made to do when a test needs it; HTTP by hand, a few resources.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What a request's path is about.
const RESOURCES: [(&str, &str, &str); 4] = [
    ("/api/v1/services", "Service", "v1"),
    ("/apis/discovery.k8s.io/v1/endpointslices", "EndpointSlice", "discovery.k8s.io/v1"),
    ("/apis/networking.k8s.io/v1/servicecidrs", "ServiceCIDR", "networking.k8s.io/v1"),
    ("/api/v1/nodes", "Node", "v1"),
];

/// What the server knows, and how it behaves.
#[derive(Default)]
pub(crate) struct State {
    version: u64,
    objects: BTreeMap<&'static str, BTreeMap<String, Value>>,
    log: Vec<(u64, &'static str, Value)>,
    oldest: u64,
    connections: u64,
    /// It has no streaming lists.
    pub(crate) no_streaming: bool,
    /// Requests for these kinds are not answered.
    pub(crate) held: BTreeSet<&'static str>,
    /// Kinds that it does not have.
    pub(crate) missing: BTreeSet<&'static str>,
    /// Events that were written.
    pub(crate) events: Vec<Value>,
    /// Kinds of requests that came, in order.
    pub(crate) requests: Vec<String>,
}

/// The server. It ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct ApiServer {
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<u64>>,
    address: SocketAddr,
}

impl ApiServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self { state: Arc::default(), changed: Arc::new(watch::channel(0).0), address };
        let accepting = server.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let server = accepting.clone();
                tokio::spawn(async move { server.answer(stream).await });
            }
        });
        server
    }

    /// A kubeconfig for it.
    pub(crate) fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", self.address) } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": {} }],
        })
        .to_string()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Creates an object or replaces it.
    pub(crate) fn put(&self, kind: &'static str, mut object: Value) {
        {
            let mut state = self.state();
            state.version += 1;
            object["metadata"]["resourceVersion"] = state.version.to_string().into();
            let before = state.objects.entry(kind).or_default().insert(name(&object), object.clone());
            let how = if before.is_some() { "MODIFIED" } else { "ADDED" };
            state.write(kind, how, object);
        }
        self.wake();
    }

    pub(crate) fn delete(&self, kind: &'static str, name: &str) {
        {
            let mut state = self.state();
            state.version += 1;
            let mut object = state.objects.get_mut(kind).unwrap().remove(name).unwrap();
            object["metadata"]["resourceVersion"] = state.version.to_string().into();
            state.write(kind, "DELETED", object);
        }
        self.wake();
    }

    /// Tells watchers something that is not so any more.
    pub(crate) fn lie(&self, kind: &'static str, how: &str, object: Value) {
        {
            let mut state = self.state();
            state.version += 1;
            state.write(kind, how, object);
        }
        self.wake();
    }

    /// An object as it is now.
    pub(crate) fn get(&self, kind: &'static str, name: &str) -> Value {
        self.state().objects[kind][name].clone()
    }

    /// Forgets the past and ends every watch: who comes back has to list again.
    pub(crate) fn compact(&self) {
        {
            let mut state = self.state();
            state.version += 1;
            state.oldest = state.version;
            state.connections += 1;
            state.log.clear();
        }
        self.wake();
    }

    /// Ends every watch; they can go on where they were.
    pub(crate) fn hang_up(&self) {
        self.state().connections += 1;
        self.wake();
    }

    pub(crate) fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    async fn answer(self, mut stream: TcpStream) {
        // Who hangs up has what it wants.
        while let Ok(Some((head, body))) = read(&mut stream).await {
            let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let done = if head.starts_with("POST") || head.starts_with("PATCH") {
                self.state().events.push(body.clone());
                respond(&mut stream, 201, &body).await
            } else {
                let known = RESOURCES.iter().find(|(known, _, _)| *known == path);
                match known {
                    Some(&(_, kind, version)) => self.read_objects(&mut stream, kind, version, query).await,
                    None => refuse(&mut stream, 404, "no such path").await,
                }
            };
            if done.is_err() {
                return;
            }
        }
    }

    async fn read_objects(
        &self,
        stream: &mut TcpStream,
        kind: &'static str,
        version: &str,
        query: &str,
    ) -> io::Result<()> {
        let mut changes = self.changed.subscribe();
        while self.state().held.contains(kind) {
            changes.changed().await.map_err(io::Error::other)?;
        }
        let watching = query.contains("watch=true");
        let streaming = query.contains("sendInitialEvents=true");
        {
            let mut state = self.state();
            state.requests.push(format!("{kind} {}", ["list", "watch"][usize::from(watching)]));
        }
        let missing = self.state().missing.contains(kind);
        let no_streaming = self.state().no_streaming;
        if missing {
            return refuse(stream, 404, "the server could not find the requested resource").await;
        }
        if !watching {
            let list = {
                let state = self.state();
                let items: Vec<&Value> = state.objects.get(kind).into_iter().flat_map(BTreeMap::values).collect();
                json!({
                    "kind": format!("{kind}List"), "apiVersion": version, "items": items,
                    "metadata": { "resourceVersion": state.version.to_string() },
                })
            };
            return respond(stream, 200, &list).await;
        }
        if streaming && no_streaming {
            return refuse(stream, 422, "sendInitialEvents is forbidden for watch").await;
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await?;
        self.watch(stream, kind, version, query, streaming).await
    }

    async fn watch(
        &self,
        stream: &mut TcpStream,
        kind: &'static str,
        version: &str,
        query: &str,
        streaming: bool,
    ) -> io::Result<()> {
        let mut changes = self.changed.subscribe();
        let asked = query.split('&').find_map(|part| part.strip_prefix("resourceVersion=")).unwrap_or("0");
        let mut seen: u64 = asked.parse().map_err(io::Error::other)?;
        let connections = self.state().connections;
        if streaming {
            let (objects, now) = {
                let state = self.state();
                let objects: Vec<Value> =
                    state.objects.get(kind).into_iter().flat_map(BTreeMap::values).cloned().collect();
                (objects, state.version)
            };
            for object in objects {
                chunk(stream, &json!({ "type": "ADDED", "object": object })).await?;
            }
            chunk(stream, &bookmark(kind, version, now, true)).await?;
            seen = now;
        } else if seen < self.state().oldest {
            let status = json!({ "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old" });
            chunk(stream, &json!({ "type": "ERROR", "object": status })).await?;
            return end(stream).await;
        }
        loop {
            let (news, now, over) = {
                let state = self.state();
                let news: Vec<Value> =
                    state.log.iter().filter(|(at, k, _)| *at > seen && *k == kind).map(|(_, _, e)| e.clone()).collect();
                (news, state.version, state.connections != connections)
            };
            for event in news {
                chunk(stream, &event).await?;
            }
            // What happened to others is a bookmark here.
            if now > seen && !over {
                chunk(stream, &bookmark(kind, version, now, false)).await?;
            }
            seen = now;
            if over {
                return end(stream).await;
            }
            changes.changed().await.map_err(io::Error::other)?;
        }
    }
}

impl State {
    fn write(&mut self, kind: &'static str, how: &str, object: Value) {
        self.log.push((self.version, kind, json!({ "type": how, "object": object })));
    }
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

fn bookmark(kind: &str, version: &str, at: u64, first: bool) -> Value {
    let annotations = if first { json!({ "k8s.io/initial-events-end": "true" }) } else { json!({}) };
    let metadata = json!({ "resourceVersion": at.to_string(), "annotations": annotations });
    json!({ "type": "BOOKMARK", "object": { "kind": kind, "apiVersion": version, "metadata": metadata } })
}

async fn chunk(stream: &mut TcpStream, event: &Value) -> io::Result<()> {
    let line = format!("{event}\n");
    stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).await
}

async fn end(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"0\r\n\r\n").await
}

async fn refuse(stream: &mut TcpStream, code: u16, message: &str) -> io::Result<()> {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message, "reason": "x", "metadata": {} });
    respond(stream, code, &status).await
}

async fn respond(stream: &mut TcpStream, code: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let head = format!("HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await
}

/// A request's head and its body.
async fn read(stream: &mut TcpStream) -> io::Result<Option<(String, Value)>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = bytes.split_off(end);
    while body.len() < length.unwrap_or(0) {
        stream.read_buf(&mut body).await?;
    }
    Ok(Some((head, serde_json::from_slice(&body).unwrap_or_default())))
}
