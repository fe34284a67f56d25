//! Reads a dump into objects: chains as they are, and the entries that the trees' rules stand for.

use std::collections::BTreeMap;
use std::sync::Arc;

use vipd_engine::Objects;
use vipd_model::Family;

use super::Side;
use crate::layout;
use crate::names::{Kind, Role, Table};
use crate::object::{Door, Goal, Key, Leaf, Place, SourceNatClass, Value};
use crate::rule::{Rule, Target};
use crate::save::{Line, Saved};
use crate::tree::{self, OWN, Tree};

impl Side {
    /// Takes what was read for what is there, and says what that is.
    pub(crate) fn read(&mut self, saved: &Saved) -> Objects<Key, Value> {
        let mut objects = Objects::new();
        self.trees.clear();
        self.chains.clear();
        let mut entries = Entries::default();
        let mut texts: BTreeMap<(Table, String), Arc<str>> =
            saved.chains.iter().map(|(chain, lines)| (chain.clone(), text(lines))).collect();
        for ((table, chain), lines) in &saved.chains {
            if let Some(tree) = Tree::containing(self.role, chain).filter(|tree| tree.table() == *table) {
                entries.take(self, tree, lines);
                let key = (*table, chain.clone());
                if let Some(text) = texts.remove(&key) {
                    self.trees.insert(key, text);
                }
            }
        }
        self.entries = entries.finish();
        self.read_base(saved, &mut texts, &mut objects);
        for ((table, chain), rules) in texts {
            let key = if table == Table::Nat && Kind::parse(self.role, &chain).is_some() {
                Key::Chain(self.family, chain.into())
            } else {
                Key::Stray(self.family, table, chain.into())
            };
            if let Key::Chain(_, chain) = &key {
                self.chains.insert(Arc::clone(chain), Arc::clone(&rules));
            }
            objects.insert(key, Value::Rules(rules));
        }
        self.read_strays(&mut objects);
        let leaf = |(door, leaf): (&Door, &Arc<Leaf>)| (Key::Entry(*door), Value::Leaf(Arc::clone(leaf)));
        objects.extend(self.entries.iter().map(leaf));
        objects.extend(self.sources.iter().map(|net| (Key::Source(*net), Value::Whole)));
        objects
    }

    /// Jumps, constant chains, and chains that follow the node; takes the chains out of `texts`.
    fn read_base(
        &mut self,
        saved: &Saved,
        texts: &mut BTreeMap<(Table, String), Arc<str>>,
        objects: &mut Objects<Key, Value>,
    ) {
        self.jumps =
            saved.jumps.iter().map(|(chain, lines)| (chain.clone(), lines.iter().map(print).collect())).collect();
        let mut wrong = Vec::new();
        let mut right = 0;
        for jump in layout::jumps(self.role) {
            let rule = jump.rule.to_string();
            let there = self.jumps.get(&(jump.table, jump.chain.to_owned()));
            match there.map_or(0, |rules| rules.iter().filter(|there| **there == rule).count()) {
                1 => right += 1,
                0 => wrong.push(format!(
                    "no jump from {} {} to {}",
                    jump.table,
                    jump.chain,
                    jump.rule.leads_to().unwrap_or("?")
                )),
                _ => wrong.push(format!("a second jump from {} {}", jump.table, jump.chain)),
            }
        }
        if self.jumps.values().map(Vec::len).sum::<usize>() > right && wrong.is_empty() {
            wrong.push("jumps that vipd does not make".to_owned());
        }
        for (table, chain, rules) in layout::constant(self.role, self.family) {
            match texts.remove(&(table, chain.clone())) {
                Some(there) if there == tree::text(&rules) => right += 1,
                Some(_) => wrong.push(format!("{table} chain {chain} is changed")),
                None => wrong.push(format!("{table} chain {chain} is missing")),
            }
        }
        self.read_sources(saved, texts, &mut wrong);
        let changed = wrong.iter().any(|what| what.contains("changed") || what.contains("second"));
        let in_kernel = right > 0 || changed || !self.jumps.is_empty();
        let mut remembered = std::mem::take(&mut self.node);
        for (table, name) in node_chains(self) {
            let chain: Arc<str> = name.as_str().into();
            let before = remembered.remove(&(table, Arc::clone(&chain)));
            // While there is no base, the node's chains are not there either, and not missed.
            let there = texts.remove(&(table, name)).or_else(|| before.filter(|_| !in_kernel));
            if let Some(rules) = there {
                objects.insert(Key::Node(self.family, table, Arc::clone(&chain)), Value::Rules(Arc::clone(&rules)));
                self.node.insert((table, chain), rules);
            }
        }
        self.based = in_kernel;
        if in_kernel {
            let value = if wrong.is_empty() { Value::Whole } else { Value::Damaged(wrong.join(", ").into()) };
            objects.insert(Key::Base(self.family), value);
        }
    }

    fn read_sources(
        &mut self,
        saved: &Saved,
        texts: &mut BTreeMap<(Table, String), Arc<str>>,
        wrong: &mut Vec<String>,
    ) {
        self.sources.clear();
        if self.role == Role::Guard {
            return;
        }
        let key = (Table::Filter, self.role.chain(layout::STRAY));
        let lines = saved.chains.get(&key);
        self.sources.extend(lines.into_iter().flatten().filter_map(|line| line.rule.as_ref()?.source));
        match texts.remove(&key) {
            Some(there) if there == tree::text(&layout::stray(self.sources.iter())) => {}
            Some(_) => wrong.push(format!("filter chain {} is changed", key.1)),
            None => wrong.push(format!("filter chain {} is missing", key.1)),
        }
    }

    /// Chains of the trees that are not as the entries found in them say.
    fn read_strays(&self, objects: &mut Objects<Key, Value>) {
        let wanted = tree::compose(self.role, self.family, &self.entries, &self.trees, None).made;
        let stray = |table, chain: &str| Key::Stray(self.family, table, chain.into());
        for ((table, chain), rules) in &self.trees {
            let empty_root = rules.is_empty()
                && self.based
                && Tree::of(self.role).iter().any(|tree| self.role.chain(tree.root()) == *chain);
            match wanted.get(&(*table, chain.clone())) {
                Some(wanted) if wanted == rules => {}
                None if empty_root => {}
                _ => {
                    objects.insert(stray(*table, chain), Value::Rules(Arc::clone(rules)));
                }
            }
        }
        for (table, chain) in wanted.keys().filter(|chain| !self.trees.contains_key(*chain)) {
            objects.insert(stray(*table, chain), Value::Damaged("is missing".into()));
        }
    }
}

fn node_chains(side: &Side) -> Vec<(Table, String)> {
    let objects = layout::node(side.role, &vipd_engine::Node::default());
    let chain = |key: Key| match key {
        Key::Node(family, table, chain) if family == side.family => Some((table, chain.to_string())),
        _ => None,
    };
    objects.into_keys().filter_map(chain).collect()
}

/// As we would print it, if it is a rule that we might write.
fn print(line: &Line) -> String {
    line.rule.as_ref().map_or_else(|| line.text.clone(), ToString::to_string)
}

fn text(lines: &[Line]) -> Arc<str> {
    lines.iter().map(print).collect::<Vec<_>>().join("\n").into()
}

/// The rules of entries, found in several trees.
#[derive(Default)]
struct Entries {
    leaves: BTreeMap<Door, Leaf>,
    inside: Vec<(Door, Goal)>,
    nat: Vec<(Door, SourceNatClass)>,
}

impl Entries {
    fn take(&mut self, side: &Side, tree: Tree, lines: &[Line]) {
        for rule in lines.iter().filter_map(|line| line.rule.as_ref()) {
            match tree {
                Tree::Dispatch => self.take_leaf(side, rule),
                Tree::Inside => {
                    let found = door(rule, side.family, false).zip(goal(side, rule));
                    self.inside.extend(found);
                }
                Tree::Post => {
                    let class = rule.leads_to().and_then(|to| {
                        SourceNatClass::ALL.into_iter().find(|class| side.role.chain(class.chain()) == to)
                    });
                    self.nat.extend(door(rule, side.family, true).zip(class));
                }
                Tree::Proxy if goal_is_answer(side, rule) => {
                    let port = door(rule, side.family, false);
                    let proxy = port.map(|port| Door { place: Place::Proxy(side.family), ..port });
                    self.leaves.extend(proxy.map(|door| (door, Leaf::proxy())));
                }
                Tree::Invalid | Tree::Proxy => {}
            }
        }
    }

    fn take_leaf(&mut self, side: &Side, rule: &Rule) {
        let (Some(door), Some(goal)) = (door(rule, side.family, false), goal(side, rule)) else { return };
        let Some((_, name, service)) = rule.comment.as_deref().and_then(Leaf::parse_comment) else { return };
        let leaf = Leaf { service: service.into(), name: name.into(), goal, inside: None, nat: None };
        self.leaves.insert(door, leaf);
    }

    fn finish(mut self) -> BTreeMap<Door, Arc<Leaf>> {
        for (door, goal) in self.inside {
            if let Some(leaf) = self.leaves.get_mut(&door) {
                leaf.inside = Some(goal);
            }
        }
        for (door, class) in self.nat {
            if let Some(leaf) = self.leaves.get_mut(&door) {
                leaf.nat = Some(class);
            }
        }
        self.leaves.into_iter().map(|(door, leaf)| (door, Arc::new(leaf))).collect()
    }
}

/// Where an entry's rule is.
fn door(rule: &Rule, family: Family, behind: bool) -> Option<Door> {
    let (destination, ports) = if behind {
        (rule.original.destination, rule.original.ports)
    } else {
        (rule.destination.filter(|(not, _)| !not).map(|(_, to)| to), rule.ports)
    };
    let own = match rule.comment.as_deref() {
        None => false,
        Some(OWN) => true,
        Some(comment) => Leaf::parse_comment(comment)?.0,
    };
    let place = match destination {
        None => Place::Node(family),
        Some(to) if to.prefix_len() < to.max_prefix_len() => return None,
        Some(to) if own => Place::Own(to.addr()),
        Some(to) => Place::Vip(to.addr()),
    };
    Some(Door { place, protocol: rule.protocol?, ports: ports? })
}

fn goal_is_answer(side: &Side, rule: &Rule) -> bool {
    rule.leads_to() == Some(&side.role.chain("ANSWER"))
}

/// Where an entry's rule leads; absent: deeper into the tree.
fn goal(side: &Side, rule: &Rule) -> Option<Goal> {
    match rule.target.as_ref()? {
        Target::Redirect(port) => Some(Goal::Redirect(*port)),
        Target::Goto(chain) if Tree::containing(side.role, chain).is_some() => None,
        Target::Goto(chain) if *chain == side.role.chain("REJECT") => Some(Goal::Reject),
        Target::Goto(chain) if *chain == side.role.chain("DROP") => Some(Goal::Drop),
        Target::Goto(chain) => Some(Goal::Chain(chain.as_str().into())),
        _ => None,
    }
}
