//! The engine: the four steps over selected services.

use std::path::Path;

use vipd_engine::{
    ApplyError, Assignments, Engine, EngineError, FlowFilter, Node, Objects, Observed, Operation, RenderError,
    ServiceCounters, Steps,
};
use vipd_model::feature::{Ability, Feature};
use vipd_model::{EngineKind, Family, Problem, ProblemCode, Selected, ServiceKey};

use crate::backend::Backend;
use crate::detect::{self, Options, Unusable};
use crate::lane::Lane;
use crate::layout;
use crate::names::Role;
use crate::object::{Key, Value};
use crate::render;

/// The balancer by iptables, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Iptables {
    lane: Lane,
    finding: Option<String>,
}

impl Iptables {
    /// Whether the programs are there. Executes nothing.
    ///
    /// # Errors
    /// [`Unusable`] says what is missing.
    pub fn probe(options: &Options) -> Result<(), Unusable> {
        detect::probe(options)
    }

    /// Finds out which back end this host uses, by `iptables-save`, and opens the engine on it. Writes nothing.
    ///
    /// # Errors
    /// [`Unusable`] says what is missing.
    pub fn open(options: &Options) -> Result<Self, Unusable> {
        let found = detect::open(options)?;
        Ok(Self { lane: Lane::new(Role::Balancer, found.tables), finding: found.finding })
    }

    /// The back end that was found.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.lane.tables.programs.backend
    }
}

impl Steps for Iptables {
    type Input = Selected;
    type Key = Key;
    type Value = Value;

    fn render_node(&self, node: &Node, _: &mut Assignments) -> Objects<Key, Value> {
        layout::node(Role::Balancer, node)
    }

    fn render(&self, node: &Node, service: &Selected, _: &mut Assignments) -> Result<Objects<Key, Value>, RenderError> {
        render::service(node, service)
    }

    fn observe(&mut self) -> Result<Observed<Key, Value>, EngineError> {
        self.lane.observe()
    }

    fn apply(&mut self, operations: &[Operation<Key, Value>], _: &mut Assignments) -> Result<(), ApplyError> {
        self.lane.apply(operations)
    }

    fn stale_flows(&self, operations: &[Operation<Key, Value>]) -> Vec<FlowFilter> {
        let _ = operations;
        Vec::new()
    }
}

impl Engine for Iptables {
    fn kind(&self) -> EngineKind {
        EngineKind::Iptables
    }

    fn ability(&self) -> Ability {
        let mut ability = vipd_model::feature::designed(EngineKind::Iptables);
        ability.usable = true;
        if !self.lane.tables.programs.has(Family::V6) || !Path::new("/proc/net/if_inet6").exists() {
            ability.features.remove(&Feature::Ipv6);
        }
        ability
    }

    fn counters(&mut self, services: &[ServiceKey]) -> Result<Vec<ServiceCounters>, EngineError> {
        let _ = services;
        Ok(Vec::new())
    }

    fn findings(&self) -> Vec<Problem> {
        self.finding.iter().map(|text| Problem::new(ProblemCode::Host, "", text.clone())).collect()
    }
}
