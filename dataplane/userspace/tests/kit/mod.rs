//! What the socket tests share: a service by hand, back ends, and clients with time-outs.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vipd_model::select::Serve;
use vipd_model::service::NoEndpoints;
use vipd_model::{
    Algorithm, Definition, Endpoint, EndpointKey, EndpointSet, EndpointState, EngineKind, Family, Frontend,
    FrontendSelection, Protocol, Scheduler, Selected, Service, ServiceKey,
};
use vipd_userspace::{Door, Proxy, ProxyConfig};

pub const PATIENCE: Duration = Duration::from_secs(10);

/// A service under construction; `selected` does what selection does for the simple cases that these tests need.
#[derive(Clone)]
pub struct Build {
    pub key: ServiceKey,
    pub definition: Definition,
    pub endpoints: Vec<Endpoint>,
    pub leaving: Vec<vipd_model::endpoint::Leaving>,
}

impl Build {
    pub fn tcp(name: &str, frontend: SocketAddr, endpoints: &[SocketAddr]) -> Self {
        Self::new(name, Protocol::Tcp, frontend, endpoints)
    }

    pub fn new(name: &str, protocol: Protocol, frontend: SocketAddr, endpoints: &[SocketAddr]) -> Self {
        let definition = Definition {
            protocol,
            frontends: vec![Frontend::vip(frontend.ip(), frontend.port())],
            ..Definition::default()
        };
        let endpoints = endpoints.iter().map(|at| Endpoint::new(at.ip(), at.port())).collect();
        Self { key: ServiceKey::new("test", name).unwrap(), definition, endpoints, leaving: Vec::new() }
    }

    pub fn endpoint(&mut self, at: SocketAddr) -> &mut Endpoint {
        self.endpoints.iter_mut().find(|e| e.key == key(at)).unwrap()
    }

    pub fn selected(&self) -> Arc<Selected> {
        let mut endpoints = self.endpoints.clone();
        endpoints.sort_by_key(|endpoint| endpoint.key);
        let in_state = |state: EndpointState, family: Family| -> Vec<u32> {
            let of = |(_, e): &(u32, &Endpoint)| e.state == state && e.weight > 0 && e.key.family() == family;
            (0u32..).zip(&endpoints).filter(of).map(|(index, _)| index).collect()
        };
        let all = Family::ALL.map(|family| {
            let ready = in_state(EndpointState::Ready, family);
            let draining = ready.is_empty();
            EndpointSet { members: if draining { in_state(EndpointState::Draining, family) } else { ready }, draining }
        });
        let frontends = (0u32..).zip(&self.definition.frontends).map(|(index, frontend)| {
            let family = if frontend.at.has_family(Family::V4) { Family::V4 } else { Family::V6 };
            let empty = all[family as usize].members.is_empty();
            let serve = if empty { Serve::Refuse(NoEndpoints::Reject) } else { Serve::All };
            FrontendSelection { index, family, inside: serve, outside: serve }
        });
        let frontends = frontends.collect();
        Arc::new(Selected {
            service: Arc::new(Service {
                key: self.key.clone(),
                definition: Arc::new(self.definition.clone()),
                scheduler: Scheduler::default(),
                endpoints: endpoints.into(),
                leaving: self.leaving.clone().into(),
                revisions: Default::default(),
                waiting: Vec::new(),
            }),
            engine: EngineKind::Userspace,
            algorithm: Algorithm::Rr,
            frontends,
            local: all.clone(),
            all,
        })
    }
}

pub fn key(at: SocketAddr) -> EndpointKey {
    EndpointKey { address: at.ip(), port: at.port() }
}

/// A proxy with a service on a free port of 127.0.0.1.
pub fn proxy() -> Proxy {
    Proxy::start(&ProxyConfig { workers: 2, ..ProxyConfig::default() }).unwrap()
}

/// A free address: ports of a test binary follow one another so that its threads do not meet.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}

/// Serves `build` at its first frontend.
pub fn serve(proxy: &Proxy, build: &Build) {
    proxy.set(build.selected());
    let frontend = &build.definition.frontends[0];
    let vipd_model::At::Address(address) = frontend.at else { panic!("a VIP") };
    proxy.open(Door::Tcp(SocketAddr::new(address, frontend.ports.first))).unwrap();
}

/// A back end that runs `serve` for each connection, each on a thread.
pub fn backend(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    backend_on(IpAddr::V4(Ipv4Addr::LOCALHOST), serve)
}

pub fn backend_on(address: IpAddr, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
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
pub fn named(name: &'static str) -> SocketAddr {
    backend(move |mut stream| {
        let _ = stream.write_all(name.as_bytes());
    })
}

/// A back end that sends back what it gets until the end.
pub fn echo() -> SocketAddr {
    backend(|mut stream| {
        let mut copy = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut copy, &mut stream);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    })
}

pub fn connect(at: SocketAddr) -> TcpStream {
    try_connect(at).unwrap()
}

/// On loopback the reset of a connection that is turned away may come before `connect` returns.
pub fn try_connect(at: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// All that a server says on a fresh connection.
pub fn ask(at: SocketAddr) -> std::io::Result<String> {
    let mut text = String::new();
    try_connect(at)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Waits until it holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
