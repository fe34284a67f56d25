//! Writes operations: one kernel transaction for each of [`plan::transactions`](super::plan::transactions).

use vipd_engine::{ApplyError, Operation};
use vipd_netlink::{
    Error,
    nft::{Batch, Chain, Element, Hook, Nft},
};

use super::{
    names::{ChainName, Prefix},
    object::{Key, Object, Value},
    observe,
    plan::{self, Step, Transaction},
};
use crate::{failure::not_applied, rule::Rule};

/// Commits the operations in order, and counts the commits that came into force.
pub(crate) fn all(nft: &mut Nft, operations: &[Operation<Key, Value>], commits: &mut u32) -> Result<(), ApplyError> {
    for transaction in plan::transactions(operations, nft.elements_per_batch()) {
        let mut writer = Writer { batch: Batch::new(transaction.table.as_str()), keys: Vec::new() };
        let committed = match writer.write(nft, &transaction) {
            Ok(()) => nft.commit(&mut writer.batch),
            Err(error) => Err(error),
        };
        committed.map_err(|error| writer.failed(&error, *commits > 0))?;
        *commits += 1;
    }
    Ok(())
}

/// A batch under construction, and for each of its operations the objects that it writes.
struct Writer<'a> {
    batch: Batch,
    keys: Vec<Vec<&'a Key>>,
}

impl<'a> Writer<'a> {
    fn write(&mut self, nft: &mut Nft, transaction: &Transaction<'a>) -> Result<(), Error> {
        self.flush_stray_chains(transaction);
        for step in &transaction.steps {
            match step {
                Step::One(operation) => {
                    self.write_one(nft, operation)?;
                    self.written(&[operation.key()]);
                }
                Step::Elements { set, remove, add } => {
                    let set = set.to_string();
                    if !remove.is_empty() {
                        let gone: Vec<Element> = remove.iter().filter_map(|key| element(key, None)).collect();
                        self.batch.delete_elements(&set, &gone);
                        self.written(remove);
                    }
                    if !add.is_empty() {
                        let come: Vec<Element> = add.iter().filter_map(|(key, data)| element(key, *data)).collect();
                        self.batch.add_elements(&set, &come);
                        let keys: Vec<_> = add.iter().map(|(key, _)| *key).collect();
                        self.written(&keys);
                    }
                }
            }
        }
        Ok(())
    }

    /// Chains of another layout may jump to each other: none may have rules when the first goes.
    fn flush_stray_chains(&mut self, transaction: &Transaction<'a>) {
        for step in &transaction.steps {
            if let Step::One(operation) = step
                && let Object::StrayChain(name) = &operation.key().object
            {
                self.batch.flush_chain(name);
                self.written(&[operation.key()]);
            }
        }
    }

    /// Everything added to the batch since the last call writes these objects.
    fn written(&mut self, keys: &[&'a Key]) {
        self.keys.resize_with(self.batch.operations(), || keys.to_vec());
    }

    fn write_one(&mut self, nft: &mut Nft, operation: &'a Operation<Key, Value>) -> Result<(), Error> {
        let (before, after) = (operation.before(), operation.after());
        match (&operation.key().object, after) {
            // An orphan is taken over by asking for ownership.
            (Object::Table, Some(Value::Table(flags))) => self.batch.add_table(*flags),
            (Object::Table, _) => self.batch.delete_table(),
            (Object::Set(_), Some(Value::Set(set))) => self.batch.add_set(set),
            (Object::Set(name), _) => self.batch.delete_set(&name.to_string()),
            (Object::Chain(name), Some(Value::Chain { hook, rules })) => {
                self.chain(nft, *name, before, *hook, rules)?;
            }
            (Object::Chain(name), _) => self.delete_chain(&name.to_string()),
            (Object::Prefix(prefix), Some(Value::Rule(rule))) => {
                self.batch.insert_rule(&prefix.chain().to_string(), rule.expressions(), None);
            }
            (Object::Prefix(prefix), _) => self.delete_prefix(nft, *prefix)?,
            (Object::StraySet(name), _) => self.batch.delete_set(name),
            (Object::StrayChain(name), _) => self.batch.delete_chain(name),
            (Object::Element(..), _) => {}
        }
        Ok(())
    }

    /// A chain that is there keeps the rules of prefixes in front, and gets all others anew.
    fn chain(
        &mut self,
        nft: &mut Nft,
        name: ChainName,
        before: Option<&Value>,
        hook: Option<Hook>,
        rules: &[Rule],
    ) -> Result<(), Error> {
        let chain = Chain { name: name.to_string(), hook };
        match before {
            Some(Value::Chain { hook: old, .. }) if *old == hook => {
                for rule in nft.rules(name.table().as_str())? {
                    if rule.chain == chain.name && observe::prefix_of(name, &rule.expressions).is_none() {
                        self.batch.delete_rule(&chain.name, rule.handle);
                    }
                }
            }
            Some(_) => {
                self.delete_chain(&chain.name);
                self.batch.add_chain(&chain);
            }
            None => self.batch.add_chain(&chain),
        }
        for rule in rules {
            self.batch.add_rule(&chain.name, rule.expressions(), None);
        }
        Ok(())
    }

    fn delete_chain(&mut self, name: &str) {
        self.batch.flush_chain(name);
        self.batch.delete_chain(name);
    }

    fn delete_prefix(&mut self, nft: &mut Nft, prefix: Prefix) -> Result<(), Error> {
        let chain = prefix.chain();
        for rule in nft.rules(chain.table().as_str())? {
            if rule.chain == chain.to_string() && observe::prefix_of(chain, &rule.expressions) == Some(prefix) {
                self.batch.delete_rule(&rule.chain, rule.handle);
            }
        }
        Ok(())
    }

    /// Names the object that was refused, in the caller's terms.
    fn failed(&self, error: &Error, anything_before: bool) -> ApplyError {
        let refused = match error {
            Error::Refused(refusal) => {
                refusal.operation_index.and_then(|index| self.keys.get(index)).and_then(|keys| {
                    let key =
                        refusal.element_index.or((keys.len() == 1).then_some(0)).and_then(|index| keys.get(index));
                    key.map(|key| format!("{key}: {error}"))
                })
            }
            _ => None,
        };
        not_applied(error, refused, anything_before)
    }
}

fn element(key: &Key, data: Option<u16>) -> Option<Element> {
    plan::element_key(key).map(|element| element.element(data))
}
