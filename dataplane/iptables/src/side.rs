//! One family's half of the kernel, as we know it: what is there, and what a batch of operations makes of it. Pure.

mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use vipd_engine::Operation;
use vipd_model::Family;

use crate::layout::{self, Jump};
use crate::names::{Role, Table};
use crate::object::{Door, Key, Leaf, Value};
use crate::script::Script;
use crate::tree::{self, Chains, Tree};

/// Rules of ours in the kernel's own chains: those that were found.
type Jumps = BTreeMap<(Table, String), Vec<String>>;

/// What one family has.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    role: Role,
    family: Family,
    /// The entries whose rules are in the kernel.
    entries: BTreeMap<Door, Arc<Leaf>>,
    /// The trees' chains as they are in the kernel.
    trees: Chains,
    /// Where INVALID packets are dropped.
    sources: BTreeSet<IpNet>,
    /// Chains of services and frontends, shared with the runner's books.
    chains: BTreeMap<Arc<str>, Arc<str>>,
    /// The chains that follow the node. While nothing is served they are only remembered.
    node: BTreeMap<(Table, Arc<str>), Arc<str>>,
    /// Whether the base is there, in whatever state.
    based: bool,
    jumps: Jumps,
}

/// What to do so that what [`Side`] now says is there.
pub(crate) struct Staged {
    pub(crate) script: Script,
    pub(crate) before: Before,
}

/// Values before they were changed, in the order of the changes; absent: there was none.
type Log<K, V> = Vec<(K, Option<V>)>;

/// What was there, of what a script changes.
pub(crate) struct Before {
    entries: Log<Door, Arc<Leaf>>,
    trees: Log<(Table, String), Arc<str>>,
    chains: Log<Arc<str>, Arc<str>>,
    sources: BTreeSet<IpNet>,
    node: BTreeMap<(Table, Arc<str>), Arc<str>>,
    jumps: Jumps,
    based: bool,
}

impl Side {
    pub(crate) fn new(role: Role, family: Family) -> Self {
        Self {
            role,
            family,
            entries: BTreeMap::new(),
            trees: Chains::new(),
            sources: BTreeSet::new(),
            chains: BTreeMap::new(),
            node: BTreeMap::new(),
            based: false,
            jumps: Jumps::new(),
        }
    }

    /// Nothing of ours is there, and nothing is asked to be.
    pub(crate) fn is_idle(&self) -> bool {
        !self.based && self.entries.is_empty() && self.trees.is_empty() && self.jumps.is_empty()
    }

    /// The entries that lead to a service, wherever its flows go.
    pub(crate) fn doors_of(&self, service: &str) -> impl Iterator<Item = &Door> {
        self.entries.iter().filter(move |(_, leaf)| *leaf.service == *service).map(|(door, _)| door)
    }

    /// A chain of a service or a frontend.
    pub(crate) fn chain(&self, name: &str) -> Option<&Arc<str>> {
        self.chains.get(name)
    }

    /// Whether any service remembers its clients.
    pub(crate) fn has_affinity(&self) -> bool {
        self.chains.values().any(|rules| rules.contains("-m recent"))
    }

    /// Every entry.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Door, &Arc<Leaf>)> {
        self.entries.iter()
    }

    /// The entries whose flows pass this chain.
    pub(crate) fn doors_through<'a>(&'a self, chain: &'a str) -> impl Iterator<Item = &'a Door> {
        let through = move |(_, leaf): &(&Door, &Arc<Leaf>)| leaf.leads_through(chain);
        self.entries.iter().filter(through).map(|(door, _)| door)
    }

    /// What these operations are as a script. The side is then as it will be once that is written; if it is not,
    /// [`Side::revert`].
    pub(crate) fn stage<'a>(&mut self, operations: impl Iterator<Item = &'a Operation<Key, Value>>) -> Staged {
        let before = Before {
            entries: Vec::new(),
            trees: Vec::new(),
            chains: Vec::new(),
            sources: self.sources.clone(),
            node: self.node.clone(),
            jumps: self.jumps.clone(),
            based: self.based,
        };
        let mut staging = Staging { side: self, staged: Staged { script: Script::default(), before } };
        let mut strays = BTreeSet::new();
        for operation in operations {
            match operation.key() {
                Key::Node(_, table, chain) => staging.node(*table, chain, operation.after()),
                Key::Base(_) => staging.base(operation.after().is_some()),
                Key::Source(net) => staging.source(*net, operation.after().is_some()),
                Key::Chain(_, chain) => staging.chain(chain, operation.after()),
                Key::Entry(door) => staging.entry(door, operation.after()),
                Key::Stray(_, table, chain) => {
                    strays.insert((*table, chain.to_string()));
                }
            }
        }
        staging.sources();
        staging.trees(strays);
        staging.staged
    }

    /// The script was not written.
    pub(crate) fn revert(&mut self, before: Before) {
        // The first value of what was changed twice is what was there.
        restore(&mut self.entries, before.entries);
        restore(&mut self.trees, before.trees);
        restore(&mut self.chains, before.chains);
        self.sources = before.sources;
        self.node = before.node;
        self.jumps = before.jumps;
        self.based = before.based;
    }
}

fn restore<K: Ord, V>(map: &mut BTreeMap<K, V>, before: Log<K, V>) {
    for (key, value) in before.into_iter().rev() {
        match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
    }
}

fn set<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, before: &mut Log<K, V>, key: K, value: Option<V>) {
    let was = match value {
        Some(value) => map.insert(key.clone(), value),
        None => map.remove(&key),
    };
    before.push((key, was));
}

fn rules(value: Option<&Value>) -> Option<Arc<str>> {
    match value {
        Some(Value::Rules(rules)) => Some(Arc::clone(rules)),
        _ => None,
    }
}

/// A script under construction.
struct Staging<'a> {
    side: &'a mut Side,
    staged: Staged,
}

impl Staging<'_> {
    fn write(&mut self, table: Table, chain: &str, rules: Option<Arc<str>>) {
        self.staged.script.chain(table, chain, rules);
    }

    fn chain(&mut self, chain: &Arc<str>, after: Option<&Value>) {
        let after = rules(after);
        set(&mut self.side.chains, &mut self.staged.before.chains, Arc::clone(chain), after.clone());
        self.write(Table::Nat, chain, after);
    }

    fn node(&mut self, table: Table, chain: &Arc<str>, after: Option<&Value>) {
        let after = rules(after);
        match &after {
            Some(rules) => self.side.node.insert((table, Arc::clone(chain)), Arc::clone(rules)),
            None => self.side.node.remove(&(table, Arc::clone(chain))),
        };
        if self.side.based {
            self.write(table, chain, after);
        }
    }

    fn source(&mut self, net: IpNet, wanted: bool) {
        if wanted {
            self.side.sources.insert(net);
        } else {
            self.side.sources.remove(&net);
        }
    }

    /// The chain of all sources, where it changes. It comes and goes with the base.
    fn sources(&mut self) {
        let (role, before) = (self.side.role, &self.staged.before);
        let is_new =
            self.side.based && (!before.based || self.staged.script.writes(Table::Filter, &role.chain("REFUSE")));
        if role == Role::Balancer && (is_new || before.based != self.side.based || before.sources != self.side.sources)
        {
            let rules = self.side.based.then(|| tree::text(&layout::stray(self.side.sources.iter())));
            self.write(Table::Filter, &role.chain(layout::STRAY), rules);
        }
    }

    /// Chains that others lead to are made with the base, whatever order the operations came in: it is one commit.
    fn base(&mut self, wanted: bool) {
        let (role, family) = (self.side.role, self.side.family);
        for (table, chain, rules) in layout::constant(role, family) {
            self.write(table, &chain, wanted.then(|| tree::text(&rules)));
        }
        for ((table, chain), rules) in self.side.node.clone() {
            self.write(table, &chain, wanted.then_some(rules));
        }
        let mut found = std::mem::take(&mut self.side.jumps);
        for Jump { table, chain, rule } in layout::jumps(role).iter().rev().filter(|_| wanted) {
            let (place, rule) = ((*table, (*chain).to_owned()), rule.to_string());
            let there = found.entry(place.clone()).or_default();
            // One of them, once, is as it should be.
            match there.iter().filter(|there| **there == rule).count() {
                1 => there.retain(|there| *there != rule),
                _ => self.staged.script.insert(*table, chain, rule.clone()),
            }
            self.side.jumps.entry(place).or_default().push(rule);
        }
        for ((table, chain), rules) in found {
            for rule in rules {
                self.staged.script.delete(table, &chain, rule);
            }
        }
        self.side.based = wanted;
    }

    fn entry(&mut self, door: &Door, after: Option<&Value>) {
        let leaf = match after {
            Some(Value::Leaf(leaf)) => Some(Arc::clone(leaf)),
            _ => None,
        };
        set(&mut self.side.entries, &mut self.staged.before.entries, *door, leaf);
    }

    /// Composes the parts of the trees that changed entries are in; all of them where strays were found.
    fn trees(&mut self, strays: BTreeSet<(Table, String)>) {
        let (role, family) = (self.side.role, self.side.family);
        let doors = self.staged.before.entries.iter().map(|(door, _)| *door);
        let touched = strays.is_empty().then(|| doors.collect::<BTreeSet<Door>>());
        if touched.as_ref().is_some_and(BTreeSet::is_empty) && self.side.based == self.staged.before.based {
            return;
        }
        let mut changes = tree::compose(role, family, &self.side.entries, &self.side.trees, touched.as_ref());
        if self.side.based {
            // What the jumps and the node's chains lead to.
            for tree in Tree::of(role) {
                changes.made.entry((tree.table(), role.chain(tree.root()))).or_default();
            }
        }
        for chain in strays {
            if !changes.made.contains_key(&chain) {
                changes.gone.insert(chain);
            }
        }
        changes.gone.retain(|chain| !changes.made.contains_key(chain));
        for ((table, chain), rules) in changes.made {
            if self.side.trees.get(&(table, chain.clone())) != Some(&rules) {
                self.write(table, &chain, Some(Arc::clone(&rules)));
                set(&mut self.side.trees, &mut self.staged.before.trees, (table, chain), Some(rules));
            }
        }
        for (table, chain) in changes.gone {
            self.write(table, &chain, None);
            set(&mut self.side.trees, &mut self.staged.before.trees, (table, chain), None);
        }
    }
}
