//! The proxy as an engine: render, plan, observe, apply.

use std::net::Ipv6Addr;
use std::sync::Arc;

use vipd_engine::{
    ApplyError, Assignments, Counters, Engine, EngineError, FlowFilter, GuardEntry, Node, Objects, Observed, Operation,
    RenderError, ServiceCounters, Steps,
};
use vipd_model::feature::Ability;
use vipd_model::{Algorithm, EngineKind, Family, Feature, Problem, ProblemCode, Selected, ServiceKey};

use crate::objects::{Key, Value};
use crate::proxy::Proxy;
use crate::render::{self, Way};
use crate::stats::Traffic;

/// The userspace engine.
pub struct Userspace {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) way: Way,
    families: Vec<Family>,
}

impl Userspace {
    /// An engine on a proxy that runs. With [`Way::Captured`] a guard must program what [`Engine::guard`] says.
    #[must_use]
    pub fn new(proxy: Arc<Proxy>, way: Way) -> Self {
        // The kernel may have been built or booted without IPv6.
        let v6 = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
        let families = if v6 { Family::ALL.to_vec() } else { vec![Family::V4] };
        Self { proxy, way, families }
    }
}

/// What the proxy does not do, whatever the node.
const LACKS: [Feature; 5] = [
    Feature::Sctp,
    Feature::KeepsSource,
    Feature::ProxyProtocol,
    Feature::AffinitySurvivesRestart,
    Feature::FlowsSurviveRestart,
];

impl Steps for Userspace {
    type Input = Selected;
    type Key = Key;
    type Value = Value;

    fn render_node(&self, node: &Node, _: &mut Assignments) -> Objects<Key, Value> {
        render::render_node(self.way, &self.families, node)
    }

    fn render(&self, node: &Node, input: &Selected, _: &mut Assignments) -> Result<Objects<Key, Value>, RenderError> {
        render::render(self.way, node, input)
    }

    fn observe(&mut self) -> Result<Observed<Key, Value>, EngineError> {
        Ok(crate::observe::observe(&self.proxy))
    }

    fn look(&mut self, keys: &[Key]) -> Result<Objects<Key, Value>, EngineError> {
        Ok(crate::observe::look(&self.proxy, keys))
    }

    fn apply(&mut self, operations: &[Operation<Key, Value>], numbers: &mut Assignments) -> Result<(), ApplyError> {
        crate::apply::apply(&self.proxy, operations, numbers)
    }

    fn stale_flows(&self, operations: &[Operation<Key, Value>]) -> Vec<FlowFilter> {
        operations.iter().filter_map(crate::plan::stale_flows).collect()
    }
}

impl Engine for Userspace {
    fn kind(&self) -> EngineKind {
        EngineKind::Userspace
    }

    fn ability(&self) -> Ability {
        let v6 = self.families.contains(&Family::V6);
        let has = |feature: &Feature| !LACKS.contains(feature) && (v6 || *feature != Feature::Ipv6);
        Ability {
            usable: true,
            reason: String::new(),
            features: Feature::ALL.iter().copied().filter(has).collect(),
            algorithms: Algorithm::ALL.into_iter().collect(),
        }
    }

    fn guard(&self, node: &Node, service: &Selected, numbers: &Assignments) -> Vec<GuardEntry> {
        match self.way {
            Way::Captured => render::guard(node, service, numbers),
            Way::Direct => Vec::new(),
        }
    }

    /// Its connections and sessions are sockets of this process.
    fn carries_flows(&self) -> bool {
        true
    }

    fn counters(&mut self, services: &[ServiceKey]) -> Result<Vec<ServiceCounters>, EngineError> {
        let counted = self.proxy.statistics(services).into_iter().map(|service| ServiceCounters {
            total: Counters { refused: Some(service.refused + service.full), ..counters(&service.traffic) },
            endpoints: service.endpoints.iter().map(|e| (e.key, counters(&e.traffic))).collect(),
            key: service.key,
        });
        Ok(counted.collect())
    }

    fn findings(&self) -> Vec<Problem> {
        let totals = self.proxy.totals();
        let shedding = totals.shedding_for_ms.map(|since| {
            let message = format!(
                "the proxy turns new flows away since {} s: {} of {} descriptors in use, {} connections and {} datagrams \
                 turned away so far; raise LimitNOFILE, or find out who holds so many",
                since / 1_000,
                totals.descriptors,
                totals.descriptor_limit,
                totals.shed_descriptors,
                totals.shed_sessions
            );
            Problem::new(ProblemCode::Limit, "", message)
        });
        shedding.into_iter().collect()
    }
}

fn counters(traffic: &Traffic) -> Counters {
    Counters {
        connections: Some(traffic.connections),
        active: Some(traffic.active),
        packets_in: None,
        packets_out: None,
        bytes_in: Some(traffic.bytes_in),
        bytes_out: Some(traffic.bytes_out),
        refused: None,
    }
}
