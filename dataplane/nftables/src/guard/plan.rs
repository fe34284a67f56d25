//! From an ordered list of operations to transactions that the kernel takes well. Pure.
//!
//! Elements of one set that stand together become one deletion and one addition; a transaction holds objects of one
//! table and no more elements than the kernel takes quickly. Every prefix of the operations is safe, so every split is.

use vipd_engine::Operation;

use super::{
    element::ElementKey,
    names::{SetName, TableName},
    object::{Key, Object, Value},
};

/// What comes into force together.
#[derive(Debug)]
pub(crate) struct Transaction<'a> {
    pub(crate) table: TableName,
    pub(crate) steps: Vec<Step<'a>>,
    elements: usize,
}

/// Part of a transaction.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// A table, set, chain or rule.
    One(&'a Operation<Key, Value>),
    /// Elements of one set: first these go, then those come.
    Elements { set: SetName, remove: Vec<&'a Key>, add: Vec<(&'a Key, Option<u16>)> },
}

/// Cuts operations into transactions of at most so many elements, in order.
pub(crate) fn transactions(operations: &[Operation<Key, Value>], elements: usize) -> Vec<Transaction<'_>> {
    let mut transactions: Vec<Transaction<'_>> = Vec::new();
    for operation in operations {
        let table = operation.key().table;
        match transactions.last_mut() {
            Some(last) if last.table == table && last.elements < elements => last.push(operation),
            _ => {
                let mut next = Transaction { table, steps: Vec::new(), elements: 0 };
                next.push(operation);
                transactions.push(next);
            }
        }
    }
    transactions
}

impl<'a> Transaction<'a> {
    fn push(&mut self, operation: &'a Operation<Key, Value>) {
        let key = operation.key();
        let Object::Element(set, _) = key.object else {
            self.steps.push(Step::One(operation));
            return;
        };
        self.elements += 1;
        let gone = operation.before().map(|_| key);
        let come = operation.after().map(|value| (key, data(value)));
        match self.steps.last_mut() {
            Some(Step::Elements { set: last, remove, add }) if *last == set => {
                remove.extend(gone);
                add.extend(come);
            }
            _ => self.steps.push(Step::Elements {
                set,
                remove: gone.into_iter().collect(),
                add: come.into_iter().collect(),
            }),
        }
    }
}

/// A map's data.
pub(crate) fn data(value: &Value) -> Option<u16> {
    match value {
        Value::Port(port) => Some(*port),
        _ => None,
    }
}

/// The key of an element's object.
pub(crate) fn element_key(key: &Key) -> Option<&ElementKey> {
    match &key.object {
        Object::Element(_, element) => Some(element),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use vipd_engine::{Objects, Plan};
    use vipd_model::Family;

    use super::super::names::{Reach, Role};
    use super::*;

    fn capture(port: u16) -> Key {
        let set = SetName::Spots { role: Role::Capture, reach: Reach::Node, family: Family::V4 };
        Key::element(set, ElementKey { port: Some((6, port)), ..ElementKey::default() })
    }

    #[test]
    fn elements_of_a_set_go_together_deletions_first() {
        let have = Objects::from([(capture(1), Value::Port(15001)), (capture(2), Value::Port(15001))]);
        let want = Objects::from([(capture(1), Value::Port(15002)), (capture(3), Value::Port(15001))]);
        let plan = Plan::difference(&have, &want);
        let transactions = transactions(&plan.make, 10_000);
        let [Transaction { steps, .. }] = &transactions[..] else { panic!("{transactions:?}") };
        let [Step::Elements { remove, add, .. }] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!(remove[..], [&capture(1)]);
        assert_eq!(add[..], [(&capture(1), Some(15002)), (&capture(3), Some(15001))]);
    }

    #[test]
    fn a_large_load_is_split_and_tables_are_kept_apart() {
        let mut want: Objects<Key, Value> = (0..25_000).map(|port| (capture(port), Value::Port(1))).collect();
        want.insert(Key::table(TableName::Anchor), Value::Table(Default::default()));
        want.insert(Key::table(TableName::Main), Value::Table(Default::default()));
        let plan = Plan::difference(&Objects::new(), &want);
        let sizes: Vec<_> = transactions(&plan.make, 10_000).iter().map(|t| (t.table, t.elements)).collect();
        let main = |elements| (TableName::Main, elements);
        assert_eq!(sizes, [(TableName::Anchor, 0), main(10_000), main(10_000), main(5_000)]);
    }
}
