//! Services in few words, and a runner on a fresh namespace.

use std::sync::Arc;

use vipd_engine::{FlowFilter, Node, Runner, Steps as _};
use vipd_iptables::{Backend, Choice, Iptables, Options};
use vipd_model::service::{Definition, Revisions, Service};
use vipd_model::{
    Algorithm, At, Endpoint, EngineKind, Family, Frontend, NodePort, PortRange, Protocol, Scheduler, Selected,
    ServiceKey, select,
};
use vipd_netlink::testing::in_namespace;

use crate::lab::ip;

/// Runs a test on each back end, in a fresh namespace.
pub(crate) fn on_both(test: impl Fn(Backend) + Send + Sync) {
    for backend in Backend::ALL {
        in_namespace(|| {
            println!("on {backend}");
            test(backend);
        });
    }
}

pub(crate) fn options(backend: Backend) -> Options {
    Options { backend: Choice::Only(backend), ..Options::default() }
}

/// An engine whose node objects are known.
pub(crate) fn started(backend: Backend, node: Node) -> Runner<Iptables> {
    let mut runner = Runner::start(Iptables::open(&options(backend)).unwrap()).unwrap();
    runner.set_node(node).unwrap();
    runner.release().unwrap();
    runner
}

/// The lab's node.
pub(crate) fn node() -> Node {
    let mut addresses: Vec<_> =
        ["127.0.0.1", "10.1.0.1", "10.2.0.1", "::1", "fd01::1", "fd02::1"].map(ip).into_iter().collect();
    addresses.sort();
    Node { addresses, ..Node::default() }
}

/// A service under construction.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) key: ServiceKey,
    pub(crate) definition: Definition,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) algorithm: Algorithm,
}

pub(crate) fn spec(name: &str, protocol: Protocol) -> Spec {
    Spec {
        key: ServiceKey::new("test", name).unwrap(),
        definition: Definition { protocol, ..Definition::default() },
        endpoints: Vec::new(),
        algorithm: Algorithm::Random,
    }
}

impl Spec {
    pub(crate) fn vip(self, address: &str, port: u16) -> Self {
        self.frontend(Frontend::vip(ip(address), port))
    }

    pub(crate) fn node_port(self, port: u16) -> Self {
        let at = At::NodePort(NodePort { v4: true, v6: true, addresses: Vec::new() });
        self.frontend(Frontend { at, ports: PortRange::one(port), ..Frontend::vip(ip("10.96.0.1"), port) })
    }

    pub(crate) fn frontend(mut self, frontend: Frontend) -> Self {
        self.definition.frontends.push(frontend);
        self
    }

    /// The lab's back ends 11 to 13 that are named, in both families.
    pub(crate) fn to(mut self, hosts: &[u8]) -> Self {
        self.endpoints = hosts
            .iter()
            .flat_map(|host| [format!("10.2.0.{host}"), format!("fd02::{host}")])
            .map(|address| Endpoint::new(ip(&address), 8080))
            .collect();
        self.endpoints.sort();
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub(crate) fn by(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    pub(crate) fn selected(&self) -> Selected {
        let service = Service {
            key: self.key.clone(),
            definition: Arc::new(self.definition.clone()),
            scheduler: Scheduler::default(),
            endpoints: self.endpoints.clone().into(),
            leaving: Arc::new([]),
            revisions: Revisions::default(),
            waiting: Vec::new(),
        };
        select(&Arc::new(service), EngineKind::Iptables, self.algorithm)
    }
}

/// Puts services in force together; returns the flows that became stale.
pub(crate) fn put(runner: &mut Runner<Iptables>, specs: &[&Spec]) -> Vec<FlowFilter> {
    change(runner, specs.iter().map(|spec| (spec.key.clone(), Some(spec.selected()))).collect())
}

pub(crate) fn remove(runner: &mut Runner<Iptables>, specs: &[&Spec]) -> Vec<FlowFilter> {
    change(runner, specs.iter().map(|spec| (spec.key.clone(), None)).collect())
}

fn change(runner: &mut Runner<Iptables>, batch: Vec<(ServiceKey, Option<Selected>)>) -> Vec<FlowFilter> {
    let keys: Vec<_> = batch.iter().map(|(key, _)| key.clone()).collect();
    let made = runner.make(batch);
    made.outcomes.into_iter().for_each(|(key, outcome)| outcome.unwrap_or_else(|problem| panic!("{key}: {problem:?}")));
    let finished = runner.finish(&keys);
    finished.outcomes.into_iter().for_each(|(key, outcome)| outcome.unwrap_or_else(|p| panic!("{key}: {p:?}")));
    let mut stale = made.stale;
    stale.extend(finished.stale);
    stale
}

/// What the kernel has is what is wanted.
pub(crate) fn settled(runner: &mut Runner<Iptables>) {
    let drift = runner.check().unwrap();
    assert!(drift.is_empty(), "{drift:#?}");
}

/// Reads the kernel with a fresh engine.
pub(crate) fn observed(backend: Backend) -> vipd_engine::Objects<vipd_iptables::Key, vipd_iptables::Value> {
    Iptables::open(&options(backend)).unwrap().observe().unwrap().objects
}

pub(crate) fn vip_of(family: Family, n: u8) -> String {
    match family {
        Family::V4 => format!("10.96.0.{n}"),
        Family::V6 => format!("fd96::{n}"),
    }
}
