//! An engine and a guard on a kernel in memory, for tests of everything above them. The names of objects begin with who
//! programs them, so that several engines and the guard share one [`FakeKernel`] as they share the real one.

mod guard;
mod kernel;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use vipd_model::feature::Ability;
use vipd_model::select::Serve;
use vipd_model::{Algorithm, At, EngineKind, Family, Feature, FrontendSelection, Selected, ServiceKey};

use crate::assignments::Assignments;
use crate::flow::FlowFilter;
use crate::guard::{GuardEntry, Place, Spot};
use crate::node::Node;
use crate::plan::{Objects, Operation};
use crate::steps::{ApplyError, Counters, Engine, EngineError, Observed, RenderError, ServiceCounters, Steps};

pub use guard::FakeGuard;
pub use kernel::{Count, FakeKernel};

/// An engine that programs a [`FakeKernel`]: an object for each frontend of a service and one for each endpoint that
/// may be chosen. As `userspace` and as `ipvs` it needs the guard, as the real ones do.
pub struct FakeEngine {
    kind: EngineKind,
    ability: Ability,
    kernel: FakeKernel,
    prefix: String,
    carries: bool,
    /// Objects whose names begin so bear others.
    bearing: Option<String>,
}

impl FakeEngine {
    /// An engine that can do everything and says it is `kind`.
    #[must_use]
    pub fn new(kind: EngineKind, kernel: FakeKernel) -> Self {
        let ability = Ability {
            usable: true,
            reason: String::new(),
            features: Feature::ALL.iter().copied().collect(),
            algorithms: Algorithm::ALL.into_iter().collect(),
        };
        Self { kind, ability, kernel, prefix: format!("{kind} "), carries: false, bearing: None }
    }

    /// The same with other abilities.
    #[must_use]
    pub fn with_ability(mut self, ability: Ability) -> Self {
        self.ability = ability;
        self
    }

    /// The same, with flows that hang on its objects, as the proxy's do.
    #[must_use]
    pub fn carrying(mut self) -> Self {
        self.carries = true;
        self
    }

    /// The same, with others standing on the objects of this name: `frontend`.
    #[must_use]
    pub fn bearing(mut self, name: &str) -> Self {
        self.bearing = Some(format!("{}{name} ", self.prefix));
        self
    }

    /// The port that the guard captures to.
    #[must_use]
    pub fn port(kind: EngineKind) -> u16 {
        20_001 + kind as u16
    }

    /// Where a held frontend is; the objects of two services that have one after the other have one name.
    fn spot(service: &Selected, selection: &FrontendSelection) -> Option<Spot> {
        let declared = &service.service.definition;
        let frontend = declared.frontends.get(selection.index as usize)?;
        let place = match &frontend.at {
            At::Address(address) => Place::Vip(*address),
            At::NodePort(_) => Place::Node { family: selection.family, addresses: Vec::new() },
        };
        Some(Spot { place, protocol: declared.protocol, ports: frontend.ports })
    }
}

fn serve_text(serve: Serve) -> String {
    match serve {
        Serve::All => "all".to_owned(),
        Serve::Local => "local".to_owned(),
        Serve::Refuse(how) => format!("{how:?}").to_lowercase(),
    }
}

impl Steps for FakeEngine {
    type Input = Selected;
    type Key = String;
    type Value = String;

    fn render_node(&self, node: &Node, _: &mut Assignments) -> Objects<String, String> {
        let interfaces = node.network.local_source_interfaces.iter();
        interfaces.map(|name| (format!("{}inside {name}", self.prefix), "local".to_owned())).collect()
    }

    fn render(
        &self,
        _: &Node,
        service: &Selected,
        _: &mut Assignments,
    ) -> Result<Objects<String, String>, RenderError> {
        let mut objects = Objects::new();
        let (key, prefix) = (&service.service.key, &self.prefix);
        for selection in &service.frontends {
            let Some(spot) = Self::spot(service, selection) else { continue };
            let (inside, outside) = (serve_text(selection.inside), serve_text(selection.outside));
            objects.insert(
                format!("{prefix}frontend {spot}"),
                format!("{key} {} inside {inside} outside {outside}", service.algorithm),
            );
        }
        let protocol = service.service.definition.protocol;
        let sets = service.all.iter().zip(["all4", "all6"]).chain(service.local.iter().zip(["local4", "local6"]));
        for (set, name) in sets {
            for index in &set.members {
                let Some(endpoint) = service.service.endpoints.get(*index as usize) else { continue };
                objects.insert(
                    format!("{prefix}endpoint {key} {name} {}", endpoint.key),
                    format!("{protocol} weight {}", endpoint.weight),
                );
            }
        }
        Ok(objects)
    }

    fn bears_others(&self, key: &String) -> bool {
        self.bearing.as_ref().is_some_and(|name| key.starts_with(name))
    }

    fn observe(&mut self) -> Result<Observed<String, String>, EngineError> {
        Ok(Observed { objects: self.kernel.read(&self.prefix), numbers: Assignments::default() })
    }

    fn look(&mut self, keys: &[String]) -> Result<Objects<String, String>, EngineError> {
        Ok(self.kernel.look(keys))
    }

    fn apply(&mut self, operations: &[Operation<String, String>], _: &mut Assignments) -> Result<(), ApplyError> {
        self.kernel.transact(operations)?;
        if operations.iter().any(|operation| operation.after().is_none()) {
            self.kernel.forget_counts(self.kind, &self.prefix);
        }
        Ok(())
    }

    fn disturbed(&mut self) -> bool {
        self.kernel.take_disturbed(&self.prefix)
    }

    fn disturber(&mut self) -> Option<String> {
        self.kernel.stranger()
    }

    /// Its frontend at that port, and every endpoint.
    fn concerns(&self, key: &String, place: vipd_model::Place, port: u16) -> bool {
        let at = match place {
            vipd_model::Place::Address(address) => format!(" {address} . "),
            vipd_model::Place::Node(Family::V4) => " node4 . ".to_owned(),
            vipd_model::Place::Node(Family::V6) => " node6 . ".to_owned(),
        };
        key.contains(" endpoint ") || (key.contains(&at) && key.ends_with(&format!(" . {port}")))
    }

    /// UDP flows to endpoints that are gone.
    fn stale_flows(&self, operations: &[Operation<String, String>]) -> Vec<FlowFilter> {
        let gone = operations.iter().filter_map(|operation| match operation {
            Operation::Remove { key, before } if before.starts_with("udp ") => key.rsplit(' ').next()?.parse().ok(),
            _ => None,
        });
        gone.map(|endpoint: SocketAddr| FlowFilter {
            family: Family::of(endpoint.ip()),
            protocol: vipd_model::Protocol::Udp,
            destination: None,
            port: endpoint.port(),
            reply_source: Some((endpoint.ip(), endpoint.port())),
        })
        .collect()
    }
}

impl Engine for FakeEngine {
    fn kind(&self) -> EngineKind {
        self.kind
    }

    fn ability(&self) -> Ability {
        self.ability.clone()
    }

    fn carries_flows(&self) -> bool {
        self.carries
    }

    fn counters(&mut self, services: &[ServiceKey]) -> Result<Vec<ServiceCounters>, EngineError> {
        let counted = self.kernel.counted(self.kind, services).into_iter().map(|(key, count)| {
            let active = self.carries.then_some(count.active);
            let total = Counters { connections: Some(count.connections), active, ..Counters::default() };
            ServiceCounters { key, total, endpoints: Vec::new() }
        });
        Ok(counted.collect())
    }

    fn guard(&self, _: &Node, service: &Selected, _: &Assignments) -> Vec<GuardEntry> {
        if !matches!(self.kind, EngineKind::Userspace | EngineKind::Ipvs) {
            return Vec::new();
        }
        let entry = |selection: &FrontendSelection| {
            let spot = Self::spot(service, selection)?;
            Some(match selection.outside {
                Serve::Refuse(how) => GuardEntry::Refuse { spot, how },
                _ => GuardEntry::Capture { spot, port: Self::port(self.kind) },
            })
        };
        service.frontends.iter().filter_map(entry).collect()
    }
}
