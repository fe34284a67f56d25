//! Reads our two tables back into objects. Only reads; what is not ours is not even parsed.

use std::collections::BTreeMap;

use vipd_engine::Objects;
use vipd_netlink::{
    Error,
    nft::{Chain, Expr, Nft, Rule as KernelRule, Set},
};

use super::{
    element::ElementKey,
    names::{ChainName, Prefix, SetName, TableName},
    object::{Key, Object, Value},
    table,
};
use crate::rule::Rule;

/// Everything of ours in one generation of the rule set.
pub(crate) fn all(nft: &mut Nft) -> Result<Objects<Key, Value>, Error> {
    nft.consistent(|nft| {
        let mut objects = Objects::new();
        for name in TableName::ALL {
            read_table(nft, name, &mut objects)?;
        }
        Ok(objects)
    })
}

/// Reads single elements; `keys` must be elements.
pub(crate) fn elements(nft: &mut Nft, keys: &[Key]) -> Result<Objects<Key, Value>, Error> {
    let mut objects = Objects::new();
    for key in keys {
        let Object::Element(set, element) = &key.object else { continue };
        let set = table::set(*set);
        if let Some(found) = nft.element(key.table.as_str(), &set.name, &element.element(None))? {
            objects.extend(ElementKey::parse(&set, &found).map(|(_, data)| (key.clone(), value(data))));
        }
    }
    Ok(objects)
}

fn read_table(nft: &mut Nft, name: TableName, objects: &mut Objects<Key, Value>) -> Result<(), Error> {
    let Some(found) = nft.table(name.as_str())? else { return Ok(()) };
    let value = match found.owner {
        Some(port) if port != nft.port() => Value::OwnedByAnother(port),
        _ => Value::Table(found.flags),
    };
    objects.insert(Key::table(name), value);
    for set in nft.sets(name.as_str())? {
        read_set(nft, name, set, objects)?;
    }
    let (chains, rules) = (nft.chains(name.as_str())?, nft.rules(name.as_str())?);
    read_chains(name, chains, rules, objects);
    Ok(())
}

fn read_set(nft: &mut Nft, table: TableName, set: Set, objects: &mut Objects<Key, Value>) -> Result<(), Error> {
    let known = SetName::parse(&set.name).filter(|_| table == TableName::Main);
    let Some(name) = known else {
        let key = Key { table, object: Object::StraySet(set.name.clone()) };
        objects.insert(key, Value::Set(set));
        return Ok(());
    };
    for element in nft.elements(table.as_str(), &set.name)? {
        if let Some((key, data)) = ElementKey::parse(&set, &element) {
            objects.insert(Key::element(name, key), value(data));
        }
    }
    objects.insert(Key::set(name), Value::Set(set));
    Ok(())
}

fn value(data: Option<u16>) -> Value {
    data.map_or(Value::Present, Value::Port)
}

fn read_chains(table: TableName, chains: Vec<Chain>, rules: Vec<KernelRule>, objects: &mut Objects<Key, Value>) {
    let mut by_chain: BTreeMap<String, Vec<KernelRule>> = BTreeMap::new();
    for rule in rules {
        by_chain.entry(rule.chain.clone()).or_default().push(rule);
    }
    for chain in chains {
        let rules = by_chain.remove(&chain.name).unwrap_or_default();
        match ChainName::parse(table, &chain.name) {
            Some(name) => read_chain(name, &chain, rules, objects),
            None => {
                let rules = rules.into_iter().map(|rule| Rule::foreign(rule.expressions)).collect();
                let key = Key { table, object: Object::StrayChain(chain.name) };
                objects.insert(key, Value::Chain { hook: chain.hook, rules });
            }
        }
    }
}

fn read_chain(name: ChainName, chain: &Chain, rules: Vec<KernelRule>, objects: &mut Objects<Key, Value>) {
    let known = table::rules(name, vipd_engine::InvalidPackets::Drop);
    let mut constant = Vec::new();
    for rule in rules {
        // In front of the constant rules, once, and as we write it; anywhere else it is a change of the chain.
        let prefix = prefix_of(name, &rule.expressions).filter(|_| constant.is_empty());
        match prefix.filter(|prefix| !objects.contains_key(&Key::prefix(*prefix))) {
            Some(prefix) => {
                objects.insert(Key::prefix(prefix), Value::Rule(table::prefix_rule(prefix)));
            }
            None => constant.push(name_rule(&known, rule.expressions)),
        }
    }
    objects.insert(Key::chain(name), Value::Chain { hook: chain.hook, rules: constant });
}

/// The prefix that a rule of this chain stands for, if it is exactly the rule that we would write for it.
pub(crate) fn prefix_of(chain: ChainName, expressions: &[Expr]) -> Option<Prefix> {
    let set = expressions.iter().find_map(|expression| match expression {
        Expr::Lookup { set, .. } => SetName::parse(set),
        _ => None,
    })?;
    let SetName::Prefix(prefix) = set else { return None };
    (prefix.chain() == chain && table::prefix_rule(prefix).expressions() == expressions).then_some(prefix)
}

/// The same rule with the text that we print for it, if it is one of ours.
fn name_rule(known: &[Rule], expressions: Vec<Expr>) -> Rule {
    known.iter().find(|rule| rule.expressions() == expressions).cloned().unwrap_or_else(|| Rule::foreign(expressions))
}
