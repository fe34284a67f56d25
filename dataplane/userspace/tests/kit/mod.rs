//! What the socket tests share: a service by hand, back ends, and clients with time-outs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vipd_model::{
    Algorithm, Definition, Endpoint, EndpointKey, EngineKind, Frontend, Protocol, Scheduler, Selected, Service,
    ServiceKey,
};
use vipd_userspace::{Admission, Door, Proxy, ProxyConfig};

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A service under construction.
#[derive(Clone)]
pub(crate) struct Build {
    pub(crate) key: ServiceKey,
    pub(crate) definition: Definition,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) leaving: Vec<vipd_model::endpoint::Leaving>,
    pub(crate) algorithm: Algorithm,
}

impl Build {
    pub(crate) fn tcp(name: &str, frontend: SocketAddr, endpoints: &[SocketAddr]) -> Self {
        Self::new(name, Protocol::Tcp, frontend, endpoints)
    }

    pub(crate) fn new(name: &str, protocol: Protocol, frontend: SocketAddr, endpoints: &[SocketAddr]) -> Self {
        let definition = Definition {
            protocol,
            frontends: vec![Frontend::vip(frontend.ip(), frontend.port())],
            ..Definition::default()
        };
        let endpoints = endpoints.iter().map(|at| Endpoint::new(at.ip(), at.port())).collect();
        Self {
            key: ServiceKey::new("test", name).unwrap(),
            definition,
            endpoints,
            leaving: Vec::new(),
            algorithm: Algorithm::Rr,
        }
    }

    pub(crate) fn endpoint(&mut self, at: SocketAddr) -> &mut Endpoint {
        self.endpoints.iter_mut().find(|e| e.key == key(at)).unwrap()
    }

    pub(crate) fn selected(&self) -> Arc<Selected> {
        let mut endpoints = self.endpoints.clone();
        endpoints.sort_by_key(|endpoint| endpoint.key);
        let service = Service {
            key: self.key.clone(),
            definition: Arc::new(self.definition.clone()),
            scheduler: Scheduler { algorithm: self.algorithm, ..Scheduler::default() },
            endpoints: endpoints.into(),
            leaving: self.leaving.clone().into(),
            revisions: Default::default(),
            waiting: Vec::new(),
        };
        Arc::new(vipd_model::select(&Arc::new(service), EngineKind::Userspace, self.algorithm))
    }
}

pub(crate) fn key(at: SocketAddr) -> EndpointKey {
    EndpointKey { address: at.ip(), port: at.port() }
}

/// A proxy with a service on a free port of 127.0.0.1.
pub(crate) fn proxy() -> Proxy {
    Proxy::start(&ProxyConfig { workers: 2, ..ProxyConfig::default() }).unwrap()
}

/// A free address: ports of a test binary follow one another so that its threads do not meet.
pub(crate) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}

/// Serves `build` at its first frontend.
pub(crate) fn serve(proxy: &Proxy, build: &Build) {
    proxy.set(build.selected());
    let frontend = &build.definition.frontends[0];
    let vipd_model::At::Address(address) = frontend.at else { panic!("a VIP") };
    proxy.open(Door::Tcp(SocketAddr::new(address, frontend.ports.first)), &Admission::Everybody).unwrap();
}

/// A back end that runs `serve` for each connection, each on a thread.
pub(crate) fn backend(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    backend_on(IpAddr::V4(Ipv4Addr::LOCALHOST), serve)
}

pub(crate) fn backend_on(address: IpAddr, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
            std::thread::spawn(move || serve(stream));
        }
    });
    at
}

/// A back end that says its name and closes.
pub(crate) fn named(name: &'static str) -> SocketAddr {
    backend(move |mut stream| {
        let _ = stream.write_all(name.as_bytes());
    })
}

/// A back end that sends back what it gets until the end.
pub(crate) fn echo() -> SocketAddr {
    backend(|mut stream| {
        let mut copy = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut copy, &mut stream);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    })
}

pub(crate) fn connect(at: SocketAddr) -> TcpStream {
    try_connect(at).unwrap()
}

/// On loopback the reset of a connection that is turned away may come before `connect` returns.
pub(crate) fn try_connect(at: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// All that a server says on a fresh connection.
pub(crate) fn ask(at: SocketAddr) -> std::io::Result<String> {
    let mut text = String::new();
    try_connect(at)?.read_to_string(&mut text)?;
    Ok(text)
}

/// What a server says to a client at `source`; an error of kind `TimedOut` is silence.
pub(crate) fn ask_from(source: IpAddr, to: SocketAddr) -> std::io::Result<String> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    socket.connect_timeout(&to.into(), Duration::from_millis(400))?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Waits until it holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
