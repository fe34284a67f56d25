//! Services in few words, and a runner that has them in force.

use std::{net::IpAddr, sync::Arc};

use vipd_engine::{FlowFilter, Node, Runner, Steps};
use vipd_model::{
    Algorithm, At, ClientAffinity, Definition, Endpoint, EngineKind, Frontend, Problem, Protocol, Revisions, Scheduler,
    Selected, Service, ServiceKey, frontend::NodePort, select,
};
use vipd_nftables::Nftables;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A service under construction.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    name: String,
    algorithm: Algorithm,
    pub(crate) definition: Definition,
    pub(crate) scheduler: Scheduler,
    endpoints: Vec<Endpoint>,
}

pub(crate) fn tcp(name: &str) -> Made {
    Made {
        name: name.into(),
        algorithm: Algorithm::Random,
        definition: Definition::default(),
        scheduler: Scheduler::default(),
        endpoints: Vec::new(),
    }
}

pub(crate) fn udp(name: &str) -> Made {
    let mut made = tcp(name);
    made.definition.protocol = Protocol::Udp;
    made
}

impl Made {
    pub(crate) fn vip(self, address: &str, port: u16) -> Self {
        self.frontend(Frontend::vip(ip(address), port))
    }

    pub(crate) fn frontend(mut self, frontend: Frontend) -> Self {
        self.definition.frontends.push(frontend);
        self
    }

    pub(crate) fn node_port(self, port: u16, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|net| net.parse().unwrap()).collect();
        let at = At::NodePort(NodePort { v4: true, v6: true, addresses });
        self.frontend(Frontend { at, ..Frontend::vip(ip("0.0.0.0"), port) })
    }

    /// Endpoints by their address, port 8080.
    pub(crate) fn to(mut self, addresses: &[&str]) -> Self {
        self.endpoints.extend(addresses.iter().map(|address| Endpoint::new(ip(address), 8080)));
        self
    }

    pub(crate) fn endpoint(mut self, address: &str, change: impl FnOnce(&mut Endpoint)) -> Self {
        let mut endpoint = Endpoint::new(ip(address), 8080);
        change(&mut endpoint);
        self.endpoints.push(endpoint);
        self
    }

    pub(crate) fn endpoints(mut self, endpoints: Vec<Endpoint>) -> Self {
        self.endpoints = endpoints;
        self
    }

    pub(crate) fn by(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    pub(crate) fn affinity(mut self, milliseconds: u64, prefix_v4: u8) -> Self {
        let timeout = std::time::Duration::from_millis(milliseconds);
        self.definition.client_affinity = Some(ClientAffinity { timeout, prefix_v4, prefix_v6: 128 });
        self
    }

    pub(crate) fn key(&self) -> ServiceKey {
        key(&self.name)
    }

    pub(crate) fn selected(mut self) -> Selected {
        self.endpoints.sort();
        let service = Service {
            key: key(&self.name),
            definition: Arc::new(self.definition),
            scheduler: self.scheduler,
            endpoints: self.endpoints.into(),
            leaving: Arc::from([]),
            revisions: Revisions::default(),
            waiting: Vec::new(),
        };
        select(&Arc::new(service), EngineKind::Nftables, self.algorithm)
    }
}

pub(crate) fn key(name: &str) -> ServiceKey {
    ServiceKey::new("k8s", name).unwrap()
}

/// A balancer in the current namespace whose node objects are in force.
pub(crate) fn started(engine: Nftables, node: Node) -> Runner<Nftables> {
    let mut runner = Runner::start(engine).unwrap();
    runner.set_node(node).unwrap();
    runner.release().unwrap();
    runner
}

/// Both halves of a change.
pub(crate) fn change(
    runner: &mut Runner<Nftables>,
    batch: Vec<(ServiceKey, Option<Selected>)>,
) -> Result<Vec<FlowFilter>, Problem> {
    let keys: Vec<_> = batch.iter().map(|(key, _)| key.clone()).collect();
    let made = runner.make(batch);
    let finished = runner.finish(&keys);
    for (_, outcome) in made.outcomes.into_iter().chain(finished.outcomes) {
        outcome?;
    }
    let mut stale = made.stale;
    stale.extend(finished.stale);
    Ok(stale)
}

/// In force, or the test fails.
pub(crate) fn put(runner: &mut Runner<Nftables>, service: Made) -> Vec<FlowFilter> {
    change(runner, vec![(key(&service.name), Some(service.selected()))]).unwrap()
}

pub(crate) fn remove(runner: &mut Runner<Nftables>, name: &str) -> Vec<FlowFilter> {
    change(runner, vec![(key(name), None)]).unwrap()
}

pub(crate) fn wanted_is_in_kernel(runner: &mut Runner<Nftables>) {
    let wanted = runner.wanted();
    let observed = runner.steps_mut().observe().unwrap().objects;
    for (key, value) in &wanted {
        match observed.get(key) {
            Some(found) => assert!(found == value, "{key}\n  is    {found}\n  wants {value}"),
            None => panic!("{key} is missing: {value}"),
        }
    }
    let more: Vec<_> = observed.keys().filter(|key| !wanted.contains_key(key)).map(ToString::to_string).collect();
    assert!(more.is_empty(), "{more:?}");
}
