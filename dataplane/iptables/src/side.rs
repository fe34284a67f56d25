//! One family's half of the kernel, as we know it: what is there, and what a batch of operations makes of it. Pure.

mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
    /// Chains of services and frontends, shared with the runner's books.
    chains: BTreeMap<Arc<str>, Arc<str>>,
    /// The chains that follow the node. While nothing is served they are only remembered.
    node: BTreeMap<(Table, Arc<str>), Arc<str>>,
    /// Whether the base is there, in whatever state.
    based: bool,
    jumps: Jumps,
}

/// What to do, and what is there once it is done.
pub(crate) struct Staged {
    pub(crate) script: Script,
    pub(crate) after: Side,
}

impl Side {
    pub(crate) fn new(role: Role, family: Family) -> Self {
        Self {
            role,
            family,
            entries: BTreeMap::new(),
            trees: Chains::new(),
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

    /// Every entry.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Door, &Arc<Leaf>)> {
        self.entries.iter()
    }

    /// The entries whose flows pass this chain.
    pub(crate) fn doors_through<'a>(&'a self, chain: &'a str) -> impl Iterator<Item = &'a Door> {
        let through = move |(_, leaf): &(&Door, &Arc<Leaf>)| leaf.leads_through(chain);
        self.entries.iter().filter(through).map(|(door, _)| door)
    }

    /// What these operations are as a script.
    pub(crate) fn stage<'a>(&self, operations: impl Iterator<Item = &'a Operation<Key, Value>>) -> Staged {
        let mut staged = Staged { script: Script::default(), after: self.clone() };
        let mut strays = BTreeSet::new();
        for operation in operations {
            match operation.key() {
                Key::Node(_, table, chain) => staged.node(*table, chain, operation.after()),
                Key::Base(_) => staged.base(operation.after().is_some()),
                Key::Chain(_, chain) => staged.chain(chain, operation.after()),
                Key::Entry(door) => staged.entry(door, operation.after()),
                Key::Stray(_, table, chain) => {
                    strays.insert((*table, chain.to_string()));
                }
            }
        }
        staged.trees(strays);
        staged
    }
}

fn rules(value: Option<&Value>) -> Option<Arc<str>> {
    match value {
        Some(Value::Rules(rules)) => Some(Arc::clone(rules)),
        _ => None,
    }
}

impl Staged {
    fn write(&mut self, table: Table, chain: &str, rules: Option<Arc<str>>) {
        self.script.chain(table, chain, rules);
    }

    fn chain(&mut self, chain: &Arc<str>, after: Option<&Value>) {
        let after = rules(after);
        match &after {
            Some(rules) => self.after.chains.insert(Arc::clone(chain), Arc::clone(rules)),
            None => self.after.chains.remove(chain),
        };
        self.write(Table::Nat, chain, after);
    }

    fn node(&mut self, table: Table, chain: &Arc<str>, after: Option<&Value>) {
        let after = rules(after);
        match &after {
            Some(rules) => self.after.node.insert((table, Arc::clone(chain)), Arc::clone(rules)),
            None => self.after.node.remove(&(table, Arc::clone(chain))),
        };
        if self.after.based {
            self.write(table, chain, after);
        }
    }

    /// Chains that others lead to are made with the base, whatever order the operations came in: it is one commit.
    fn base(&mut self, wanted: bool) {
        let (role, family) = (self.after.role, self.after.family);
        for (table, chain, rules) in layout::constant(role, family) {
            self.write(table, &chain, wanted.then(|| tree::text(&rules)));
        }
        for ((table, chain), rules) in self.after.node.clone() {
            self.write(table, &chain, wanted.then_some(rules));
        }
        let jumps = layout::jumps(role);
        let mut before = std::mem::take(&mut self.after.jumps);
        for Jump { table, chain, rule } in jumps.iter().rev().filter(|_| wanted) {
            let (place, rule) = ((*table, (*chain).to_owned()), rule.to_string());
            let found = before.entry(place.clone()).or_default();
            // One of them, once, is as it should be.
            match found.iter().filter(|there| **there == rule).count() {
                1 => found.retain(|there| *there != rule),
                _ => self.script.insert(*table, chain, rule.clone()),
            }
            self.after.jumps.entry(place).or_default().push(rule);
        }
        for ((table, chain), rules) in before {
            for rule in rules {
                self.script.delete(table, &chain, rule);
            }
        }
        self.after.based = wanted;
    }

    fn entry(&mut self, door: &Door, after: Option<&Value>) {
        match after {
            Some(Value::Leaf(leaf)) => self.after.entries.insert(*door, Arc::clone(leaf)),
            _ => self.after.entries.remove(door),
        };
    }

    fn trees(&mut self, strays: BTreeSet<(Table, String)>) {
        let (role, family) = (self.after.role, self.after.family);
        let mut wanted = tree::compose(role, family, &self.after.entries);
        if self.after.based {
            // What the jumps and the node's chains lead to.
            for tree in Tree::of(role) {
                wanted.entry((tree.table(), role.chain(tree.root()))).or_default();
            }
        }
        for ((table, chain), rules) in &wanted {
            if self.after.trees.get(&(*table, chain.clone())) != Some(rules) {
                self.write(*table, chain, Some(Arc::clone(rules)));
            }
        }
        let have = std::mem::take(&mut self.after.trees);
        let gone = have.into_keys().chain(strays).filter(|chain| !wanted.contains_key(chain));
        for (table, chain) in gone {
            self.write(table, &chain, None);
        }
        self.after.trees = wanted;
    }
}
