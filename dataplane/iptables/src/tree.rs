//! The way from a packet to a service's chain: trees of chains, composed from the entries. Pure.
//!
//! A chain that holds more than [`LEAVES`] addresses is split by the next four bits in which they differ, so a packet
//! passes a few rules at ten services and a few more at ten thousand. Ports are split the same way where one address, or
//! the node itself, has many. The shape is a function of the set of entries: it does not depend on their history, and a
//! change rewrites the chains on one path.
//!
//! ```text
//! nat    SERVICES → T-10.96.0.0-16 → T-10.96.16.0-20 → S-…   where new flows go
//!                 → TN             → TN-t75          → S-…   the same by port alone, for node ports
//!        INSIDE   → I…                               → S-…   where those of clients inside go, if elsewhere
//!        POST     → Q…                               → KEEP  what becomes of their source
//! filter FALL     → V…                               DROP    INVALID packets (guard)
//!        PROXY    → P…                               → ANSWER direct connections to the proxy (guard)
//! ```

mod address;
mod port;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use vipd_model::{Family, PortRange, Protocol};

use crate::names::{Role, Table};
use crate::object::{Door, Goal, Leaf, Place, SourceNatClass};
use crate::rule::{Rule, Target};

/// So many addresses, or ports of one address, stand in one chain. More rules cost a packet more, more chains cost each
/// commit more.
pub const LEAVES: usize = 8;

/// One of the trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tree {
    /// Where new flows go.
    Dispatch,
    /// Where those of clients inside go.
    Inside,
    /// What becomes of their source.
    Post,
    /// INVALID packets fall.
    Invalid,
    /// The proxy's own ports.
    Proxy,
}

impl Tree {
    /// Those of a role.
    #[must_use]
    pub fn of(role: Role) -> &'static [Self] {
        match role {
            Role::Balancer => &[Self::Dispatch, Self::Inside, Self::Post],
            Role::Guard => &[Self::Dispatch, Self::Invalid, Self::Proxy],
        }
    }

    /// Where its chains are.
    #[must_use]
    pub fn table(self) -> Table {
        match self {
            Self::Dispatch | Self::Inside | Self::Post => Table::Nat,
            Self::Invalid | Self::Proxy => Table::Filter,
        }
    }

    /// The chain that it starts from, without the prefix of the role.
    #[must_use]
    pub fn root(self) -> &'static str {
        match self {
            Self::Dispatch => "SERVICES",
            Self::Inside => "INSIDE",
            Self::Post => "POST",
            Self::Invalid => "FALL",
            Self::Proxy => "PROXY",
        }
    }

    fn letter(self) -> char {
        match self {
            Self::Dispatch => 'T',
            Self::Inside => 'I',
            Self::Post => 'Q',
            Self::Invalid => 'V',
            Self::Proxy => 'P',
        }
    }

    /// Whose chain this is, of the trees of a role. Absent: it is in none.
    #[must_use]
    pub fn containing(role: Role, chain: &str) -> Option<Self> {
        let rest = chain.strip_prefix(role.prefix())?;
        Self::of(role).iter().copied().find(|tree| {
            let letter = tree.letter();
            let mut branch = rest.strip_prefix(letter).unwrap_or("?").splitn(2, '-');
            let stem = branch.next();
            let by_ports = stem == Some("N");
            rest == tree.root() || by_ports || (matches!(stem, Some("" | "A")) && branch.next().is_some())
        })
    }

    /// Whether an entry has a rule in it.
    fn has(self, door: &Door, leaf: &Leaf) -> bool {
        let proxy = matches!(door.place, Place::Proxy(_));
        match self {
            Self::Dispatch | Self::Invalid => !proxy,
            Self::Inside => !proxy && leaf.inside.is_some(),
            Self::Post => !proxy && leaf.nat.is_some(),
            Self::Proxy => proxy,
        }
    }

    /// The target of an entry's rule; absent: it has none in this tree.
    fn target(self, role: Role, leaf: &Leaf) -> Option<Target> {
        let goal = |goal: &Goal| match goal {
            Goal::Chain(chain) => Target::Goto(chain.to_string()),
            Goal::Reject => Target::Goto(role.chain("REJECT")),
            Goal::Drop => Target::Goto(role.chain("DROP")),
            Goal::Redirect(port) => Target::Redirect(*port),
        };
        match self {
            Self::Dispatch => Some(goal(&leaf.goal)),
            Self::Inside => leaf.inside.as_ref().map(goal),
            Self::Post => leaf.nat.map(|class| Target::Goto(role.chain(class.chain()))),
            Self::Invalid => Some(Target::Drop),
            Self::Proxy => Some(Target::Goto(role.chain("ANSWER"))),
        }
    }
}

impl SourceNatClass {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Keep, Self::Always, Self::Node, Self::Internal];

    /// The chain that does it, without the prefix of the role.
    #[must_use]
    pub fn chain(self) -> &'static str {
        match self {
            Self::Keep => "KEEP",
            Self::Always => "MASQ",
            Self::Node => "NODE",
            Self::Internal => "INTERNAL",
        }
    }
}

/// Chains by table and name, and what is in them.
pub type Chains = BTreeMap<(Table, String), Arc<str>>;

/// What is to be changed so that the trees lead to all entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Chains as they are to be, among them such as are so already.
    pub made: Chains,
    /// Chains that nothing leads to any more.
    pub gone: BTreeSet<(Table, String)>,
}

/// Composes the trees of one family where they differ from what is there (`before`). `touched`: the entries that came,
/// changed or went since; absent: all is composed. Without entries there are no trees, not even roots.
#[must_use]
pub fn compose(
    role: Role,
    family: Family,
    entries: &BTreeMap<Door, Arc<Leaf>>,
    before: &Chains,
    touched: Option<&BTreeSet<Door>>,
) -> Changes {
    let mut changes = Changes::default();
    let mut kept = BTreeSet::new();
    if !entries.is_empty() {
        for &tree in Tree::of(role) {
            Composer { role, family, tree, before, touched, made: &mut changes.made, kept: &mut kept }.compose(entries);
        }
    }
    // What chains that are written anew led to, and all below it, unless it is led to from elsewhere now.
    let mut left: Vec<(Table, String)> = match touched {
        Some(_) if !entries.is_empty() => {
            let written = changes.made.keys().filter_map(|chain| Some((chain.0, before.get(chain)?)));
            written.flat_map(|(table, rules)| below(role, table, rules)).collect()
        }
        _ => before.keys().cloned().collect(),
    };
    while let Some(chain) = left.pop() {
        if !changes.made.contains_key(&chain) && !kept.contains(&chain) {
            left.extend(before.get(&chain).into_iter().flat_map(|rules| below(role, chain.0, rules)));
            changes.gone.insert(chain);
        }
    }
    changes
}

/// The chains of trees that these rules lead to.
fn below(role: Role, table: Table, rules: &str) -> Vec<(Table, String)> {
    let targets = rules.lines().map(|line| line.rsplit(' ').next().unwrap_or_default());
    let of_trees = targets.filter(|chain| Tree::containing(role, chain).is_some());
    of_trees.map(|chain| (table, chain.to_owned())).collect()
}

/// Composes one tree.
struct Composer<'a> {
    role: Role,
    family: Family,
    tree: Tree,
    before: &'a Chains,
    touched: Option<&'a BTreeSet<Door>>,
    made: &'a mut Chains,
    /// Chains that are as they were, with all below them.
    kept: &'a mut BTreeSet<(Table, String)>,
}

/// An entry's rule, and the ports that it is for.
#[derive(Clone)]
struct Item {
    protocol: Protocol,
    ports: PortRange,
    rule: Rule,
}

/// An entry.
type Entry<'a> = (&'a Door, &'a Leaf);

impl Composer<'_> {
    fn compose(&mut self, entries: &BTreeMap<Door, Arc<Leaf>>) {
        let mut root = Vec::new();
        let (mut by_address, mut by_port) = (Vec::new(), Vec::new());
        if self.tree == Tree::Dispatch && entries.values().any(|leaf| leaf.inside.is_some()) {
            root.push(Rule::always(Target::Jump(self.role.chain("CLASS"))));
        }
        for (door, leaf) in entries.iter().filter(|(door, leaf)| self.tree.has(door, leaf)) {
            match door.place.address() {
                Some(address) => by_address.push((address, (door, leaf.as_ref()))),
                None => by_port.push((door, leaf.as_ref())),
            }
        }
        // VIPs are sorted before the node's own addresses; where both have an address, VIPs stay first.
        by_address.sort_by_key(|(address, _)| *address);
        self.addresses(&by_address, &mut root);
        self.node_ports(&by_port, &mut root);
        self.write(self.role.chain(self.tree.root()), &root);
    }

    /// The rule of an entry, and the ports that it is for.
    fn item(&self, (door, leaf): Entry<'_>) -> Option<Item> {
        let target = self.tree.target(self.role, leaf)?;
        let mut rule = self.at(door.place.address().map(Into::into), Some((door.protocol, door.ports)));
        let own = matches!(door.place, Place::Own(_));
        rule.comment = match self.tree {
            Tree::Dispatch => Some(leaf.comment(!matches!(door.place, Place::Vip(_)))),
            _ => own.then(|| OWN.to_owned()),
        };
        rule.target = Some(target);
        Some(Item { protocol: door.protocol, ports: door.ports, rule })
    }

    /// A rule for flows to this place. Behind the translation, what the place was is asked of connection tracking.
    fn at(&self, destination: Option<IpNet>, ports: Option<(Protocol, PortRange)>) -> Rule {
        let mut rule = Rule { protocol: ports.map(|(protocol, _)| protocol), ..Rule::default() };
        let ports = ports.map(|(_, ports)| ports);
        match self.tree {
            Tree::Post => (rule.original.destination, rule.original.ports) = (destination, ports),
            _ => (rule.destination, rule.ports) = (destination.map(|to| (false, to)), ports),
        }
        rule
    }

    fn write(&mut self, chain: String, rules: &[Rule]) {
        self.made.insert((self.tree.table(), chain), text(rules));
    }

    /// Whether a chain can be left as it is; nothing in it is touched.
    fn keep(&mut self, chain: &str) -> bool {
        let chain = (self.tree.table(), chain.to_owned());
        let there = self.before.contains_key(&chain);
        if there {
            self.kept.insert(chain);
        }
        there
    }

    /// Whether an entry at one of these addresses has changed; of none, whether one without an address has.
    fn is_touched(&self, addresses: Option<(IpAddr, IpAddr)>) -> bool {
        let Some(touched) = self.touched else { return true };
        match addresses {
            None => touched.iter().any(|door| door.place.address().is_none()),
            Some((first, last)) => {
                let within = |address| (first..=last).contains(&address);
                touched.iter().filter_map(|door| door.place.address()).any(within)
            }
        }
    }
}

/// In the trees that have no other comment, marks what is for a node port that selects by address.
pub(crate) const OWN: &str = "node";

/// Rules, one a line.
#[must_use]
pub fn text(rules: &[Rule]) -> Arc<str> {
    let mut text = String::new();
    for (index, rule) in rules.iter().enumerate() {
        let line = if index == 0 { "" } else { "\n" };
        // Writing to a string does not fail.
        let _ = write!(text, "{line}{rule}");
    }
    text.into()
}

#[cfg(test)]
mod tests;
