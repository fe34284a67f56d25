//! The guard, for hosts without nf_tables: capture for the proxy, refusals, source ranges, virtual ranges, the anchor.
//!
//! The same trees as the engine's, under names of its own. Its jumps and constant chains are there even while nothing is
//! served: they use connection tracking and NAT, which established flows hang on.

use std::collections::BTreeMap;
use std::sync::Arc;

use vipd_engine::guard::{self, Spot};
use vipd_engine::{
    ApplyError, Assignments, EngineError, FlowFilter, GuardEntry, GuardInput, Node, Objects, Observed, Operation,
    RenderError, Steps,
};
use vipd_model::service::NoEndpoints;
use vipd_model::{Family, PortRange};

use crate::backend::Backend;
use crate::detect::{self, Options, Unusable};
use crate::flows;
use crate::lane::Lane;
use crate::layout;
use crate::names::{self, Kind, Role};
use crate::object::{Door, Goal, Key, Leaf, Place, Value};
use crate::rule::{Rule, Target};
use crate::tree;

const ROLE: Role = Role::Guard;

/// The guard by iptables, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Guard {
    lane: Lane,
    finding: Option<String>,
}

impl Guard {
    /// Whether the programs are there. Executes nothing.
    ///
    /// # Errors
    /// [`Unusable`] says what is missing.
    pub fn probe(options: &Options) -> Result<(), Unusable> {
        detect::probe(options)
    }

    /// As [`crate::Iptables::open`].
    ///
    /// # Errors
    /// [`Unusable`] says what is missing.
    pub fn open(options: &Options) -> Result<Self, Unusable> {
        let found = detect::open(ROLE, options)?;
        Ok(Self { lane: Lane::new(ROLE, found.tables, found.saved), finding: found.finding })
    }

    /// The back end that was found.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.lane.tables.programs.backend
    }

    /// What an operator should know: a mixture of back ends.
    #[must_use]
    pub fn finding(&self) -> Option<&str> {
        self.finding.as_deref()
    }
}

impl Steps for Guard {
    type Input = GuardInput;
    type Key = Key;
    type Value = Value;

    fn render_node(&self, node: &Node, _: &mut Assignments) -> Objects<Key, Value> {
        let mut objects = layout::node(ROLE, node);
        let families = Family::ALL.into_iter().filter(|family| self.lane.tables.programs.has(*family));
        objects.extend(families.map(|family| (Key::Base(family), Value::Whole)));
        objects
    }

    fn render(&self, _: &Node, input: &GuardInput, _: &mut Assignments) -> Result<Objects<Key, Value>, RenderError> {
        Ok(service(input))
    }

    fn observe(&mut self) -> Result<Observed<Key, Value>, EngineError> {
        self.lane.observe()
    }

    fn apply(&mut self, operations: &[Operation<Key, Value>], _: &mut Assignments) -> Result<(), ApplyError> {
        self.lane.apply(operations)
    }

    fn disturbed(&mut self) -> bool {
        self.lane.disturbed()
    }

    fn cleanup(&mut self) -> Result<u64, EngineError> {
        self.lane.cleanup()
    }

    fn stale_flows(&self, operations: &[Operation<Key, Value>]) -> Vec<FlowFilter> {
        flows::stale(ROLE, |family| self.lane.side(family), operations)
    }
}

/// What is asked of the guard at one frontend.
#[derive(Default)]
struct Asked<'a> {
    goal: Option<Goal>,
    sources: Option<&'a [ipnet::IpNet]>,
}

/// The objects of one service. Pure.
fn service(input: &GuardInput) -> Objects<Key, Value> {
    let mut spots: BTreeMap<&Spot, Asked<'_>> = BTreeMap::new();
    for entry in &input.entries {
        let asked = spots.entry(entry.spot()).or_default();
        match entry {
            GuardEntry::Capture { port, .. } => asked.goal = Some(Goal::Redirect(*port)),
            GuardEntry::Refuse { how: NoEndpoints::Reject, .. } => asked.goal = Some(Goal::Reject),
            GuardEntry::Refuse { how: NoEndpoints::Drop, .. } => asked.goal = Some(Goal::Drop),
            GuardEntry::Allow { sources, .. } => asked.sources = Some(sources),
        }
    }
    let mut objects = Objects::new();
    let (service, name): (Arc<str>, Arc<str>) =
        (names::service(&input.key).into(), names::comment(&input.key.to_string()).into());
    for (spot, asked) in spots {
        objects.insert(Key::Base(spot.place.family()), Value::Whole);
        for door in doors(spot) {
            if let Some(Goal::Redirect(port)) = asked.goal {
                let proxy = Place::Proxy(spot.place.family());
                let door = Door { place: proxy, protocol: spot.protocol, ports: PortRange::one(port) };
                objects.insert(Key::Entry(door), Value::Leaf(Arc::new(Leaf::proxy())));
            }
            let goal = match asked.sources {
                None => asked.goal.clone().unwrap_or(Goal::Reject),
                Some(sources) => gate(&door, sources, asked.goal.as_ref(), &mut objects),
            };
            let (service, name) = (Arc::clone(&service), Arc::clone(&name));
            let leaf = Leaf { service, name, goal, inside: None, nat: None };
            objects.insert(Key::Entry(door), Value::Leaf(Arc::new(leaf)));
        }
    }
    objects
}

fn doors(spot: &Spot) -> Vec<Door> {
    let places = match &spot.place {
        guard::Place::Vip(address) => vec![Place::Vip(*address)],
        guard::Place::Node { family, addresses } if addresses.is_empty() => vec![Place::Node(*family)],
        guard::Place::Node { addresses, .. } => addresses.iter().copied().map(Place::Own).collect(),
    };
    places.into_iter().map(|place| Door { place, protocol: spot.protocol, ports: spot.ports }).collect()
}

/// A chain that lets only these sources pass: to the goal, or on their way where there is none.
fn gate(door: &Door, sources: &[ipnet::IpNet], goal: Option<&Goal>, objects: &mut Objects<Key, Value>) -> Goal {
    let family = door.place.family();
    let target = match goal {
        Some(Goal::Redirect(port)) => Target::Redirect(*port),
        Some(Goal::Chain(chain)) => Target::Goto(chain.to_string()),
        Some(Goal::Reject) => Target::Goto(ROLE.chain("REJECT")),
        Some(Goal::Drop) => Target::Goto(ROLE.chain("DROP")),
        None => Target::Return,
    };
    let of_family = sources.iter().filter(|range| Family::of_net(range) == family);
    let pass = |range: &ipnet::IpNet| Rule {
        source: Some(range.trunc()),
        protocol: Some(door.protocol),
        ..Rule::always(target.clone())
    };
    let mut rules: Vec<Rule> = of_family.map(pass).collect();
    rules.push(Rule::always(Target::Goto(ROLE.chain("DROP"))));
    let name: Arc<str> = Kind::Gate.chain(ROLE, &names::short(&door.to_string())).into();
    objects.insert(Key::Chain(family, Arc::clone(&name)), Value::Rules(tree::text(&rules)));
    Goal::Chain(name)
}
