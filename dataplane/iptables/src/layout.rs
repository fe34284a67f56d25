//! What does not follow the services: our rules in the kernel's own chains, and chains that say what happens to a flow
//! once the trees have found whose it is. Pure.
//!
//! The nat table cannot refuse. So a new flow that is to be refused is translated to an address of this node and a port
//! that nothing uses, and `REFUSE` in the filter table's INPUT knows it by that port. A service's fate is decided at one
//! place, in the nat table, wherever the client is and whatever a host firewall says in FORWARD; a flow that is no
//! service's meets one rule there.

use std::net::IpAddr;

use ipnet::IpNet;
use vipd_engine::{InvalidPackets, Node, Objects};
use vipd_model::{Family, Network, Protocol};

use crate::names::{Role, Table};
use crate::object::{Key, Value};
use crate::rule::{Rule, State, Target};
use crate::tree::text;

/// Where flows to be answered with a refusal are translated to: `tcpmux` (RFC 1078), which nobody runs; a process that
/// listens there would still never see them.
pub const REJECT_PORT: u16 = 1;
/// Where flows to be met with silence are translated to.
pub const DROP_PORT: u16 = 2;

/// What our rules in the kernel's chains are found by, and say to people.
pub const COMMENT: &str = "vipd";

/// A rule of ours in a chain of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// In this table.
    pub table: Table,
    /// `PREROUTING`, …
    pub chain: &'static str,
    /// The rule; inserted first.
    pub rule: Rule,
}

/// All rules of a role in the kernel's chains.
#[must_use]
pub fn jumps(role: Role) -> Vec<Jump> {
    let jump = |table, chain, states: &[State], to: &str| {
        let target = Some(Target::Jump(role.chain(to)));
        let rule = Rule { states: states.to_vec(), comment: Some(COMMENT.to_owned()), target, ..Rule::default() };
        Jump { table, chain, rule }
    };
    let mut jumps = vec![
        jump(Table::Filter, "INPUT", &[State::New, State::Dnat], "REFUSE"),
        jump(Table::Nat, "PREROUTING", &[], "SERVICES"),
        jump(Table::Nat, "OUTPUT", &[], "SERVICES"),
    ];
    match role {
        Role::Balancer => {
            jumps.push(jump(Table::Nat, "POSTROUTING", &[State::Dnat], "POST"));
            for chain in ["INPUT", "FORWARD"] {
                jumps.push(jump(Table::Filter, chain, &[State::Invalid], "INVALID"));
            }
        }
        Role::Guard => {
            for chain in ["INPUT", "FORWARD", "OUTPUT"] {
                jumps.push(jump(Table::Filter, chain, &[State::New, State::NotDnat], "RANGES"));
                jumps.push(jump(Table::Filter, chain, &[State::Invalid], "INVALID"));
            }
            let mut proxy = jump(Table::Filter, "INPUT", &[State::New, State::NotDnat], "PROXY");
            proxy.rule.interface = Some((true, "lo".to_owned()));
            jumps.push(proxy);
        }
    }
    jumps
}

/// Chains that never change.
#[must_use]
pub fn constant(role: Role, family: Family) -> Vec<(Table, String, Vec<Rule>)> {
    let chain = |table, name: &str, rules| (table, role.chain(name), rules);
    let refuse = chain(Table::Filter, "REFUSE", refuse(family));
    match role {
        Role::Balancer => {
            let masquerade = Rule::always(Target::Masquerade);
            let of_node = Rule { local_source: true, ..masquerade.clone() };
            vec![
                refuse,
                chain(Table::Nat, "KEEP", vec![hairpin(family)]),
                chain(Table::Nat, "MASQ", vec![masquerade]),
                chain(Table::Nat, "NODE", vec![of_node, hairpin(family)]),
            ]
        }
        Role::Guard => vec![refuse, chain(Table::Filter, "ANSWER", answer(family))],
    }
}

/// Whoever reaches itself would answer itself directly.
fn hairpin(family: Family) -> Rule {
    Rule { to_itself: Some(family), ..Rule::always(Target::Masquerade) }
}

fn answer(family: Family) -> Vec<Rule> {
    let reset = Rule { protocol: Some(Protocol::Tcp), ..Rule::always(Target::Reset) };
    vec![reset, Rule::always(Target::Unreachable(family))]
}

fn refuse(family: Family) -> Vec<Rule> {
    let mut rules = answer(family);
    rules.push(Rule::always(Target::Drop));
    for (rule, port) in rules.iter_mut().zip([REJECT_PORT, REJECT_PORT, DROP_PORT]) {
        rule.reply_port = Some(port);
    }
    rules
}

/// The chains that follow the node.
#[must_use]
pub fn node(role: Role, node: &Node) -> Objects<Key, Value> {
    let mut objects = Objects::new();
    for family in Family::ALL {
        let mut chain = |table, name: &str, rules: Vec<Rule>| {
            objects.insert(Key::Node(family, table, role.chain(name).into()), Value::Rules(text(&rules)));
        };
        chain(Table::Nat, "REJECT", away(node, family, REJECT_PORT));
        chain(Table::Nat, "DROP", away(node, family, DROP_PORT));
        match role {
            Role::Balancer => {
                chain(Table::Nat, "CLASS", class(role, &node.network, family));
                chain(Table::Nat, "INTERNAL", internal(role, &node.network, family));
                chain(Table::Filter, "INVALID", invalid(role, node, STRAY));
            }
            Role::Guard => {
                chain(Table::Filter, "RANGES", ranges(role, &node.network, family));
                chain(Table::Filter, "INVALID", invalid(role, node, "FALL"));
            }
        }
    }
    objects
}

/// What becomes of INVALID packets: nothing, or what the trees say.
fn invalid(role: Role, node: &Node, chain: &str) -> Vec<Rule> {
    let fall = Rule::always(Target::Jump(role.chain(chain)));
    if node.invalid_packets == InvalidPackets::Drop { vec![fall] } else { Vec::new() }
}

/// The chain of [`Key::Source`], in the filter table. An answer out of window is translated for nobody, and a client that
/// gets it from the endpoint's own address would reset a healthy connection.
pub const STRAY: &str = "STRAY";

/// Its rules.
#[must_use]
pub fn stray<'a>(sources: impl Iterator<Item = &'a IpNet>) -> Vec<Rule> {
    let rule =
        |source: &IpNet| Rule { source: Some(*source), protocol: Some(Protocol::Tcp), ..Rule::always(Target::Drop) };
    sources.map(rule).collect()
}

/// To where it is refused: an address of the node, since the interface that a packet came in by may have none.
fn away(node: &Node, family: Family, port: u16) -> Vec<Rule> {
    let usable = |address: &&IpAddr| Family::of(**address) == family && !is_loopback_or_link_local(**address);
    let address = node.addresses.iter().find(usable);
    let target = address.map_or(Target::Redirect(port), |address| Target::Dnat(*address, Some(port)));
    let of = |protocol| Rule { protocol: Some(protocol), ..Rule::always(target.clone()) };
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().map(of).collect()
}

fn is_loopback_or_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    }
}

/// Who is inside is asked first where he gets something else.
fn class(role: Role, network: &Network, family: Family) -> Vec<Rule> {
    let inside = Target::Jump(role.chain("INSIDE"));
    let mut rules = vec![Rule { local_source: true, ..Rule::always(inside.clone()) }];
    rules.extend(local_sources(network, family, &inside));
    rules
}

fn internal(role: Role, network: &Network, family: Family) -> Vec<Rule> {
    let keep = Target::Goto(role.chain("KEEP"));
    let everybody = Rule::always(Target::Masquerade);
    let local = local_sources(network, family, &keep);
    if network.source_nat_all {
        return vec![everybody];
    }
    if local.is_empty() {
        return vec![hairpin(family)];
    }
    // A process of this node is no local source, wherever its address lies.
    let mut rules = vec![Rule { local_source: true, ..everybody.clone() }];
    rules.extend(local);
    rules.push(everybody);
    rules
}

/// A rule for each way to be a local source. Where it leaves, a forwarded packet still knows the interface it came in by
/// from kernel 5.7 on (28f8bfd1ac94); before, such sources are translated.
fn local_sources(network: &Network, family: Family, target: &Target) -> Vec<Rule> {
    let of_family = network.local_sources.iter().filter(|net| Family::of_net(net) == family);
    let by_address = of_family.map(|net| Rule { source: Some(*net), ..Rule::always(target.clone()) });
    let by_interface = network.local_source_interfaces.iter().map(|pattern| {
        let name = pattern.strip_suffix('*').map_or_else(|| pattern.clone(), |start| format!("{start}+"));
        Rule { interface: Some((false, name)), ..Rule::always(target.clone()) }
    });
    by_address.chain(by_interface).collect()
}

/// What nobody serves in ranges that hold nothing but VIPs.
fn ranges(role: Role, network: &Network, family: Family) -> Vec<Rule> {
    let of_family = network.virtual_ranges.iter().filter(|net| Family::of_net(net) == family);
    let rule = |net: &IpNet| Rule {
        destination: Some((false, net.trunc())),
        ..Rule::always(Target::Goto(role.chain("ANSWER")))
    };
    of_family.map(rule).collect()
}
