//! From one selected service to its chains and entries. Pure.

pub(crate) mod pool;

use std::collections::BTreeSet;
use std::iter;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use vipd_engine::{Node, Objects, RenderError};
use vipd_model::frontend::{At, Policy, Scope, SourceNat};
use vipd_model::select::{FrontendSelection, Serve};
use vipd_model::service::NoEndpoints;
use vipd_model::{Endpoint, Family, Frontend, Problem, ProblemCode, Protocol, Selected};

use crate::names::{self, Kind, Role};
use crate::object::{Door, Goal, Key, Leaf, Place, SourceNatClass, Value};
use crate::rule::{Rule, Target};
use crate::tree;

/// Rules of one service at most. The legacy back end copies all of them with every change of anybody's.
pub const MAX_RULES: usize = 100_000;

const ROLE: Role = Role::Balancer;

/// The objects of one service.
pub(crate) fn service(node: &Node, selected: &Selected) -> Result<Objects<Key, Value>, RenderError> {
    let service = &selected.service;
    let mut out = Output {
        id: names::service(&service.key).into(),
        name: names::comment(&service.key.to_string()).into(),
        objects: Objects::new(),
    };
    for held in &selected.frontends {
        let Some(frontend) = service.definition.frontends.get(held.index as usize) else { continue };
        out.frontend(node, selected, frontend, held);
    }
    for family in Family::ALL {
        out.pools(selected, family);
        out.sources(selected, family);
    }
    let rules = out.objects.values().map(|value| match value {
        Value::Rules(rules) => rules.lines().count(),
        _ => 1,
    });
    match rules.sum() {
        count if count > MAX_RULES => Err(too_many(count)),
        _ => Ok(out.objects),
    }
}

struct Output {
    id: Arc<str>,
    name: Arc<str>,
    objects: Objects<Key, Value>,
}

impl Output {
    fn frontend(&mut self, node: &Node, selected: &Selected, frontend: &Frontend, held: &FrontendSelection) {
        let family = held.family;
        let nat = [held.inside, held.outside].iter().any(|serve| !matches!(serve, Serve::Refuse(_)));
        let leaf = |goal: Goal, inside: Goal| Leaf {
            service: Arc::clone(&self.id),
            name: Arc::clone(&self.name),
            inside: (inside != goal).then_some(inside),
            goal,
            nat: nat.then(|| class(frontend)),
        };
        let protocol = selected.service.definition.protocol;
        let mut gates = Vec::new();
        let mut entries = Vec::new();
        for place in places(node, frontend, family) {
            let door = Door { place, protocol, ports: frontend.ports };
            let (outside, inside) =
                (self.goal(selected, held.outside, family), self.goal(selected, held.inside, family));
            let elsewhere =
                (inside != outside).then(|| self.gate(&door, Kind::InsideGate, inside, frontend, &mut gates));
            let outside = self.gate(&door, Kind::Gate, outside, frontend, &mut gates);
            let inside = elsewhere.unwrap_or_else(|| outside.clone());
            entries.push((Key::Entry(door), Value::Leaf(Arc::new(leaf(outside, inside)))));
        }
        if !entries.is_empty() {
            self.objects.insert(Key::Base(family), Value::Whole);
        }
        self.objects.extend(gates);
        self.objects.extend(entries);
    }

    /// Where a decision leads.
    fn goal(&self, selected: &Selected, serve: Serve, family: Family) -> Goal {
        match serve {
            Serve::Refuse(NoEndpoints::Reject) => Goal::Reject,
            Serve::Refuse(NoEndpoints::Drop) => Goal::Drop,
            Serve::Local if selected.local[family as usize] != selected.all[family as usize] => {
                Goal::Chain(self.pool_name(Kind::Local))
            }
            Serve::All | Serve::Local => Goal::Chain(self.pool_name(Kind::All)),
        }
    }

    fn pool_name(&self, kind: Kind) -> Arc<str> {
        kind.chain(ROLE, &self.id).into()
    }

    /// In front of the goal, a chain that lets only the frontend's sources pass, if it has any.
    fn gate(&self, door: &Door, kind: Kind, goal: Goal, frontend: &Frontend, gates: &mut Vec<(Key, Value)>) -> Goal {
        let family = door.place.family();
        if frontend.source_ranges.is_empty() || goal == Goal::Drop {
            return goal;
        }
        let to = match &goal {
            Goal::Chain(chain) => chain.to_string(),
            _ => ROLE.chain("REJECT"),
        };
        let of_family = frontend.source_ranges.iter().filter(|range| Family::of_net(range) == family);
        let mut rules: Vec<Rule> = of_family
            .map(|range| Rule { source: Some(range.trunc()), ..Rule::always(Target::Goto(to.clone())) })
            .collect();
        rules.push(Rule::always(Target::Goto(ROLE.chain("DROP"))));
        let name: Arc<str> = kind.chain(ROLE, &names::short(&door.to_string())).into();
        gates.push((Key::Chain(family, Arc::clone(&name)), Value::Rules(tree::text(&rules))));
        Goal::Chain(name)
    }

    /// Where INVALID packets of TCP endpoints come from.
    fn sources(&mut self, selected: &Selected, family: Family) {
        let service = &selected.service;
        let served = selected.frontends.iter().any(|frontend| frontend.family == family);
        if served && service.definition.protocol == Protocol::Tcp {
            let endpoints = service.endpoints.iter().filter(|endpoint| endpoint.key.family() == family);
            let source = |endpoint: &Endpoint| (Key::Source(neighbourhood(endpoint.key.address)), Value::Whole);
            self.objects.extend(endpoints.map(source));
        }
    }

    /// The chains that pick endpoints, those of them that some frontend leads to. Of a UDP service that refuses there is
    /// one that nothing leads to, for the flows of endpoints that take no new ones.
    fn pools(&mut self, selected: &Selected, family: Family) {
        let mut frontends = selected.frontends.iter().filter(|frontend| frontend.family == family).peekable();
        if frontends.peek().is_none() {
            return;
        }
        let serves: BTreeSet<Serve> = frontends.flat_map(|frontend| [frontend.inside, frontend.outside]).collect();
        let mut served = false;
        for serve in serves {
            let Some(set) = selected.set(serve, family) else { continue };
            let Goal::Chain(name) = self.goal(selected, serve, family) else { continue };
            let rules = pool::rules(selected, family, set);
            self.objects.insert(Key::Chain(family, name), Value::Rules(tree::text(&rules)));
            served = true;
        }
        let kept = pool::kept(selected, family, &[]);
        if !served && !kept.is_empty() {
            let rules: Vec<Rule> = iter::once(Rule::always(Target::Return)).chain(kept).collect();
            self.objects.insert(Key::Chain(family, self.pool_name(Kind::All)), Value::Rules(tree::text(&rules)));
        }
    }
}

/// Where endpoints are told apart from other hosts, where what they send is INVALID: one rule for each of them would make
/// a second rule set as large as the first.
fn neighbourhood(address: IpAddr) -> IpNet {
    let length = match Family::of(address) {
        Family::V4 => 24,
        Family::V6 => 64,
    };
    IpNet::new(address, length).map_or(IpNet::from(address), |net| net.trunc())
}

/// Where packets find a frontend.
fn places(node: &Node, frontend: &Frontend, family: Family) -> Vec<Place> {
    match &frontend.at {
        At::Address(address) => vec![Place::Vip(*address)],
        At::NodePort(at) if node.node_port_selectors(at).is_empty() => vec![Place::Node(family)],
        At::NodePort(at) => {
            let own = node.node_port_addresses(at, family).filter(|address: &IpAddr| !address.is_loopback());
            own.map(Place::Own).collect()
        }
    }
}

/// As [`vipd_model::source::source_nat`] decides for each source; hairpins are in every class.
fn class(frontend: &Frontend) -> SourceNatClass {
    match (frontend.source_nat, frontend.scope, frontend.policy) {
        (SourceNat::Always, ..) | (SourceNat::Auto, Scope::External, Policy::All) => SourceNatClass::Always,
        (SourceNat::Never, ..) => SourceNatClass::Keep,
        (SourceNat::Auto, Scope::External, Policy::Local) => SourceNatClass::Node,
        (SourceNat::Auto, Scope::Internal, _) => SourceNatClass::Internal,
    }
}

fn too_many(rules: usize) -> RenderError {
    let message = format!(
        "it needs {rules} rules of iptables, more than {MAX_RULES}: let the nftables engine serve it, or declare fewer \
         endpoints or source ranges"
    );
    RenderError { problem: Problem::new(ProblemCode::Limit, "endpoints", message) }
}

#[cfg(test)]
mod tests;
