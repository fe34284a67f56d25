//! Writes operations: as few kernel transactions as their size allows, each safe by itself.
//!
//! Elements are collected by set and written when something else must be: first all that go, then all that come, so that
//! within a transaction an element may change its data and objects may change hands.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use vipd_engine::{ApplyError, Assignments, Operation};
use vipd_model::EndpointKey;
use vipd_netlink::{
    Error,
    nft::{Batch, Chain, Nft},
};

use super::{
    cell::{self, Cell},
    counters::Past,
    diff,
    kind::{Kind, Pick},
    names::{ChainName, SetName, TABLE},
    nets::Nets,
    object::{Key, Value},
    observe,
    render::{KINDS, POOLS, TURNS},
    table,
};
use crate::{failure::not_applied, rule::Rule};
use vipd_engine::Node;

/// One change of one object.
pub(super) type Change = Operation<Key, Value>;

/// What is written to, and what is kept of it.
pub(super) struct Target<'a> {
    pub(super) nft: &'a mut Nft,
    pub(super) nets: &'a mut Nets,
    pub(super) past: &'a mut Past,
    pub(super) numbers: &'a mut Assignments,
    /// Commits that came into force.
    pub(super) commits: u32,
}

/// Commits the operations in order.
pub(super) fn all(target: &mut Target<'_>, operations: &[Change]) -> Result<(), ApplyError> {
    let most = target.nft.elements_per_batch();
    let room = target.nft.batch_bytes();
    let mut rest = operations;
    while !rest.is_empty() {
        let mut writer = Writer::new(rest);
        while writer.goes_on() && writer.elements < most && writer.bytes < room {
            if let Err(error) = writer.take(target) {
                target.nets.roll_back(false);
                return Err(writer.failed(&error, target.commits > 0));
            }
        }
        writer.flush();
        let (done, left) = rest.split_at(writer.taken);
        target.past.save(target.nft, &writer.counted);
        if let Err(error) = target.nft.commit(&mut writer.batch) {
            target.nets.roll_back(matches!(error, Error::AnswerLost { .. }));
            return Err(writer.failed(&error, target.commits > 0));
        }
        target.nets.commit();
        target.commits += 1;
        done.iter().for_each(|operation| release(target.numbers, target.past, operation));
        rest = left;
    }
    Ok(())
}

/// What is gone gives its number back.
fn release(numbers: &mut Assignments, past: &mut Past, operation: &Change) {
    let Operation::Remove { key, before } = operation else { return };
    match (key, before) {
        (Key::Pool(id), Value::Pool(pool)) => {
            if numbers.get(POOLS, &pool.label) == Some(*id) {
                numbers.release(POOLS, &pool.label);
            }
            numbers.release(TURNS, &id.to_string());
            past.forget(*id);
        }
        (Key::Chain(ChainName::Kind(kind)), _) => {
            numbers.release(KINDS, &kind.to_string());
            if let Pick::Turns { pool } = kind.pick {
                let part = format!("-p{pool}-");
                let other = numbers.pool(KINDS).any(|(name, _)| name.starts_with("turns-") && name.contains(&part));
                if !other {
                    numbers.release(TURNS, &pool.to_string());
                }
            }
        }
        _ => {}
    }
}

/// Elements of one set that are to be written, with the operation that each belongs to.
#[derive(Default)]
struct Pending {
    delete: Vec<(Cell, usize)>,
    add: Vec<(Cell, usize)>,
}

/// A transaction under construction.
struct Writer<'a> {
    operations: &'a [Change],
    taken: usize,
    /// Something was made that elements may lead to.
    structured: bool,
    batch: Batch,
    pending: BTreeMap<SetName, Pending>,
    elements: usize,
    bytes: usize,
    /// For each operation of the batch the objects that it writes, element by element.
    origin: Vec<Vec<usize>>,
    /// Elements whose counts would be lost, with the change of their pool.
    counted: Vec<(SetName, Cell, usize)>,
}

impl<'a> Writer<'a> {
    fn new(operations: &'a [Change]) -> Self {
        Self {
            operations,
            taken: 0,
            structured: false,
            batch: Batch::new(TABLE),
            pending: BTreeMap::new(),
            elements: 0,
            bytes: 0,
            origin: Vec::new(),
            counted: Vec::new(),
        }
    }

    /// Whether the next operation may come into force together with what was taken.
    ///
    /// A packet keeps the generation in which it entered a base chain for the rules of all chains, but looks elements up in
    /// the newest one (net/netfilter/nf_tables_core.c). So an element that leads to a chain comes after the chain: in one
    /// transaction a packet could find the element and, in its own generation, a chain without rules.
    fn goes_on(&self) -> bool {
        self.operations.get(self.taken).is_some_and(|next| !(self.structured && next.key().is_made_of_elements()))
    }

    fn take(&mut self, target: &mut Target<'_>) -> Result<(), Error> {
        let Some(operation) = self.operations.get(self.taken) else { return Ok(()) };
        let (key, before, after) = (operation.key(), operation.before(), operation.after());
        match diff::elements(key, before, after) {
            Some(difference) => {
                difference.delete.into_iter().for_each(|(set, cell)| self.delete(set, cell));
                difference.add.into_iter().for_each(|(set, cell)| self.add(set, cell));
                match key {
                    Key::Pool(_) => self.nets(target.nets, before, after),
                    Key::Ending { pool, endpoint } => self.grace(target.nft, *pool, endpoint, after)?,
                    _ => {}
                }
            }
            None => {
                self.flush();
                self.structure(target.nft, key, before, after)?;
                self.structured |= after.is_some();
                self.origin.resize_with(self.batch.operations(), || vec![self.taken]);
                if let Key::Chain(ChainName::Kind(kind)) = key {
                    self.number(*kind, before, after);
                }
            }
        }
        self.taken += 1;
        Ok(())
    }

    fn delete(&mut self, set: SetName, cell: Cell) {
        self.elements += 1;
        self.bytes += cell.size();
        self.pending.entry(set).or_default().delete.push((cell, self.taken));
    }

    fn add(&mut self, set: SetName, cell: Cell) {
        self.elements += 1;
        self.bytes += cell.size();
        self.pending.entry(set).or_default().add.push((cell, self.taken));
    }

    /// Until the end of its drain an endpoint's flows go on. The element goes by itself, so it may be gone already; one of
    /// an earlier drain is replaced.
    fn grace(&mut self, nft: &mut Nft, pool: u32, endpoint: &EndpointKey, after: Option<&Value>) -> Result<(), Error> {
        /// What is about to expire is not deleted: it may be gone before the transaction comes.
        const SOON: Duration = Duration::from_millis(500);
        let Some(Value::Until(end)) = after else { return Ok(()) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = Duration::from_millis(end.0).saturating_sub(now);
        let (set, cell) = cell::grace(pool, endpoint, left);
        let mut there = false;
        nft.find(TABLE, &set.to_string(), [cell.key.as_slice()].into_iter(), |found| {
            there = found.expires.is_some_and(|expires| expires > SOON);
        })?;
        if there {
            self.delete(set, Cell::key(cell.key));
        }
        if !left.is_zero() {
            self.add(set, cell);
        }
        Ok(())
    }

    /// Networks of endpoints that come and go.
    fn nets(&mut self, nets: &mut Nets, before: Option<&Value>, after: Option<&Value>) {
        let (new, gone) = nets.stage(before.and_then(Value::pool), after.and_then(Value::pool));
        new.iter().map(cell::net).for_each(|(set, cell)| self.add(set, cell));
        gone.iter().map(cell::net).for_each(|(set, cell)| self.delete(set, cell));
    }

    /// Everything that goes, then everything that comes.
    fn flush(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        for (set, cells) in &mut pending {
            if !cells.delete.is_empty() {
                self.batch.delete_items(&set.to_string(), cells.delete.iter().map(|(cell, _)| cell.key_item()));
                self.origin.push(cells.delete.iter().map(|(_, of)| *of).collect());
            }
        }
        for (set, cells) in &pending {
            if !cells.add.is_empty() {
                self.batch.add_items(&set.to_string(), cells.add.iter().map(|(cell, _)| cell.item()));
                self.origin.push(cells.add.iter().map(|(_, of)| *of).collect());
            }
        }
        for (set, cells) in pending {
            if table::set(set).traits.counter || matches!(set, SetName::Bank { .. }) {
                self.counted.extend(cells.delete.into_iter().map(|(cell, of)| (set, cell, of)));
            }
        }
    }

    fn structure(
        &mut self,
        nft: &mut Nft,
        key: &Key,
        before: Option<&Value>,
        after: Option<&Value>,
    ) -> Result<(), Error> {
        match (key, after) {
            // An orphan is taken over by asking for ownership.
            (Key::Table, Some(Value::Table(flags))) => self.batch.add_table(*flags),
            (Key::Table, _) => self.batch.delete_table(),
            (Key::Set(name), Some(_)) => {
                match before {
                    None => {}
                    // Rules name it, so it cannot go; its elements can.
                    Some(_) if *name == SetName::Equal => self.batch.flush_set(&name.to_string()),
                    Some(_) => self.batch.delete_set(&name.to_string()),
                }
                self.batch.add_set(&table::set(*name));
                if *name == SetName::Equal {
                    let cells: Vec<_> = cell::equal().collect();
                    self.batch.add_items(&name.to_string(), cells.iter().map(Cell::item));
                }
            }
            (Key::Set(name), None) => self.batch.delete_set(&name.to_string()),
            (Key::Chain(name), Some(value)) => self.chain(*name, before.is_some(), value),
            (Key::Chain(name), None) => {
                if let (ChainName::Kind(_), Some(Value::Kind(number))) = (name, before) {
                    self.unnumber(*number);
                }
                self.batch.flush_chain(&name.to_string());
                self.batch.delete_chain(&name.to_string());
            }
            (Key::Prefix { family, length }, Some(_)) => {
                let chain = ChainName::Admit.to_string();
                self.batch.insert_rule(&chain, table::prefix_rule(*family, *length).expressions(), None);
            }
            (Key::Prefix { family, length }, None) => self.delete_prefix(nft, (*family, *length))?,
            (Key::StraySet(name), _) => self.batch.delete_set(name),
            (Key::StrayChain(name), _) => {
                self.batch.flush_chain(name);
                self.batch.delete_chain(name);
            }
            _ => {}
        }
        Ok(())
    }

    fn chain(&mut self, name: ChainName, is_there: bool, value: &Value) {
        let hook = table::hook(name);
        let chain = Chain { name: name.to_string(), hook };
        if is_there {
            self.batch.flush_chain(&chain.name);
        }
        if is_there && hook.is_some() {
            self.batch.delete_chain(&chain.name);
        }
        if !is_there || hook.is_some() {
            self.batch.add_chain(&chain);
        }
        let of_node;
        let rules: &[Rule] = match value {
            Value::Chain(chain) => &chain.rules,
            _ => {
                of_node = table::rules(name, &Node::default());
                &of_node
            }
        };
        for rule in rules {
            self.batch.add_rule(&chain.name, rule.expressions(), None);
        }
    }

    /// Leads a kind's number to its chain.
    fn number(&mut self, kind: Kind, before: Option<&Value>, after: Option<&Value>) {
        let Some(Value::Kind(number)) = after else { return };
        match before {
            Some(Value::Kind(old)) if old == number => return,
            Some(Value::Kind(old)) => self.unnumber(*old),
            _ => {}
        }
        self.add(SetName::Kinds, cell::kind(*number, kind));
        self.flush();
    }

    fn unnumber(&mut self, number: u32) {
        self.delete(SetName::Kinds, Cell::key(cell::Bytes::default().word(super::word::Word(number))));
        self.flush();
    }

    fn delete_prefix(&mut self, nft: &mut Nft, prefix: (vipd_model::Family, u8)) -> Result<(), Error> {
        let admit = ChainName::Admit.to_string();
        for rule in nft.rules(TABLE)? {
            if rule.chain == admit && observe::prefix_of(&rule.expressions) == Some(prefix) {
                self.batch.delete_rule(&rule.chain, rule.handle);
            }
        }
        Ok(())
    }

    /// Names the object that was refused, in the caller's terms.
    fn failed(&self, error: &Error, anything_before: bool) -> ApplyError {
        let refused = match error {
            Error::Refused(refusal) => {
                refusal.operation_index.and_then(|index| self.origin.get(index)).and_then(|origin| {
                    let element = refusal.element_index.or((origin.len() == 1).then_some(0));
                    let operation = self.operations.get(*origin.get(element?)?)?;
                    Some(format!("{}: {error}", operation.key()))
                })
            }
            _ => None,
        };
        not_applied(error, refused, anything_before)
    }
}
