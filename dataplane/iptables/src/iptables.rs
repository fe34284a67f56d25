//! The engine: the four steps over selected services.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use vipd_engine::{
    ApplyError, Assignments, Engine, EngineError, FlowFilter, Node, Objects, Observed, Operation, RenderError,
    ServiceCounters, Steps,
};
use vipd_model::feature::{Ability, Feature};
use vipd_model::{EndpointKey, EngineKind, Family, Problem, ProblemCode, Selected, ServiceKey};

use crate::backend::Backend;
use crate::counters::{Counted, Reading};
use crate::detect::{self, Options, Unusable};
use crate::flows;
use crate::lane::Lane;
use crate::layout;
use crate::names::{self, Kind, Role};
use crate::object::{Key, Value};
use crate::remembered;
use crate::render;
use crate::tables::TablesError;

/// The balancer by iptables, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Iptables {
    lane: Lane,
    finding: Option<String>,
    counted: Counted,
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
        let found = detect::open(Role::Balancer, options)?;
        let lane = Lane::new(Role::Balancer, found.tables, found.saved);
        Ok(Self { lane, finding: found.finding, counted: Counted::default() })
    }

    /// The back end that was found.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.lane.tables.programs.backend
    }
}

/// The key whose short name this is. A name that was cut short for its comment is not found.
fn key_of(id: &str, name: &str) -> Option<ServiceKey> {
    let slashes = name.match_indices('/');
    let keys = slashes.filter_map(|(at, _)| ServiceKey::new(&name[..at], &name[at + 1..]).ok());
    keys.into_iter().find(|key| names::service(key) == id)
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
        self.lane.apply(operations)?;
        let mut may_be_gone = false;
        for operation in operations {
            if let Key::Chain(_, chain) = operation.key()
                && let Some((Kind::All | Kind::Local, service)) = Kind::parse(Role::Balancer, chain)
            {
                may_be_gone |= self.counted.rewritten(service) && operation.after().is_none();
            }
        }
        if may_be_gone {
            // One that comes back counts from zero: who asked for its last count has it.
            let services = |family| self.lane.side(family).entries().map(|(_, leaf)| Arc::clone(&leaf.service));
            self.counted.keep(&Family::ALL.into_iter().flat_map(services).collect());
        }
        Ok(())
    }

    fn disturbed(&mut self) -> bool {
        self.lane.disturbed()
    }

    fn cleanup(&mut self) -> Result<u64, EngineError> {
        self.lane.cleanup()
    }

    fn stale_flows(&self, operations: &[Operation<Key, Value>]) -> Vec<FlowFilter> {
        flows::stale(Role::Balancer, |family| self.lane.side(family), operations)
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

    fn remembered(&mut self, service: &Selected, client: IpAddr) -> Option<EndpointKey> {
        remembered::endpoint(service, client)
    }

    fn counters(&mut self, services: &[ServiceKey]) -> Result<Vec<ServiceCounters>, EngineError> {
        let failed =
            |error: TablesError| EngineError { operation: "read counters", message: error.to_string(), retry: true };
        let mut reading = Reading::default();
        let mut known: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::new();
        for (family, saved) in self.lane.counts().map_err(failed)? {
            let entries = || self.lane.side(family).entries();
            reading.take(Role::Balancer, &saved, entries());
            known.extend(entries().map(|(_, leaf)| (Arc::clone(&leaf.service), Arc::clone(&leaf.name))));
        }
        self.counted.update(reading);
        self.counted.keep(&known.keys().cloned().collect());
        if !services.is_empty() {
            return Ok(services.iter().filter_map(|key| self.counted.of(key)).collect());
        }
        Ok(known.iter().filter_map(|(id, name)| self.counted.of(&key_of(id, name)?)).collect())
    }

    fn findings(&self) -> Vec<Problem> {
        let affine = Family::ALL.into_iter().any(|family| self.lane.side(family).has_affinity());
        let most = if affine { fs::read_to_string(MOST_CLIENTS).ok() } else { None };
        let forgets = most.map(|most| {
            format!(
                "iptables: affinity remembers the last {} clients of each endpoint; for more, load xt_recent with \
                 ip_list_tot, or let the nftables engine serve affine services",
                most.trim()
            )
        });
        let texts = self.finding.iter().cloned().chain(forgets);
        texts.map(|text| Problem::new(ProblemCode::Host, "", text)).collect()
    }
}

/// How many addresses one list of `xt_recent` holds; the one that was silent longest makes room.
const MOST_CLIENTS: &str = "/sys/module/xt_recent/parameters/ip_list_tot";
