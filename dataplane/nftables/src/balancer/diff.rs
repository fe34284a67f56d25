//! The difference of two values of one object, as elements. Pure.

use super::{
    cell::{self, Cell},
    names::SetName,
    object::{Key, Value},
};

/// Elements of one object's change.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) delete: Vec<(SetName, Cell)>,
    pub(super) add: Vec<(SetName, Cell)>,
}

/// What must be deleted and added so that the object is as it is to be. None of an object that is not made of elements.
pub(super) fn elements(key: &Key, before: Option<&Value>, after: Option<&Value>) -> Option<Difference> {
    let mut difference = Difference::default();
    let have = before.map(|value| cells(key, value)).unwrap_or_else(|| Some(Vec::new()))?;
    let want = after.map(|value| cells(key, value)).unwrap_or_else(|| Some(Vec::new()))?;
    if have.is_empty() {
        difference.add = want;
    } else if want.is_empty() {
        difference.delete = have;
    } else {
        difference.merge(have, want);
    }
    Some(difference)
}

impl Difference {
    fn merge(&mut self, mut have: Vec<(SetName, Cell)>, mut want: Vec<(SetName, Cell)>) {
        let order = |(set, cell): &(SetName, Cell)| (*set, cell.key, cell.interval_end);
        have.sort_by_key(order);
        want.sort_by_key(order);
        let mut have = have.into_iter().peekable();
        for wanted in want {
            while let Some(gone) = have.next_if(|had| order(had) < order(&wanted)) {
                self.delete.push(gone);
            }
            match have.next_if(|had| order(had) == order(&wanted)) {
                Some(same) if same == wanted => {}
                Some(other) => {
                    self.delete.push(other);
                    self.add.push(wanted);
                }
                None => self.add.push(wanted),
            }
        }
        self.delete.extend(have);
    }
}

/// The elements that an object is made of; none of other objects.
fn cells(key: &Key, value: &Value) -> Option<Vec<(SetName, Cell)>> {
    let mut cells = Vec::new();
    match (key, value) {
        (Key::Frontend(frontend), Value::Word(word)) => cells.push((frontend.set(), cell::frontend(frontend, *word))),
        (Key::Pool(id), Value::Pool(pool)) => cell::pool(*id, pool, &mut |set, cell| cells.push((set, cell))),
        (Key::Allowed { pool, list }, Value::Sources(sources)) => {
            cells.extend(sources.iter().map(|source| cell::allowed(*pool, *list, source)));
        }
        (Key::Ending { pool, endpoint }, Value::Until(end)) => cells.push(cell::ending(*pool, endpoint, *end)),
        (Key::NodeAddress(address), _) => {
            let set = SetName::Node(vipd_model::Family::of(*address));
            cells.push((set, Cell::key(cell::Bytes::default().address(*address))));
        }
        (Key::Inside(family), Value::Ranges(ranges)) => {
            let ends = ranges.iter().copied().flat_map(cell::range);
            cells.extend(ends.map(|end| (SetName::Inside(*family), end)));
        }
        (Key::StrayElement(set, key), _) => cells.push((*set, Cell::key(cell::Bytes::raw(key)))),
        _ => return None,
    }
    Some(cells)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vipd_model::EndpointKey;

    use super::*;
    use crate::balancer::{pool::Pool, word::Word};

    fn pool(endpoints: &[u8]) -> Value {
        let endpoint = |n: &u8| EndpointKey { address: [10, 0, 0, *n].into(), port: 80 };
        let direct = (0..).zip(endpoints.iter().map(endpoint)).collect();
        let word = Some(Word::new(7, 3 + endpoints.len() as u32));
        Value::Pool(Arc::new(Pool { label: "k8s/web ipv4".into(), word, direct, ..Pool::default() }))
    }

    #[test]
    fn a_change_costs_what_changed() {
        let of = |before: &[u8], after: &[u8]| {
            let difference = elements(&Key::Pool(7), Some(&pool(before)), Some(&pool(after))).unwrap();
            (difference.delete.len(), difference.add.len())
        };
        assert_eq!(of(&[1, 2, 3], &[1, 2, 3]), (0, 0));
        // One slot more, and the kind with it.
        assert_eq!(of(&[1, 2, 3], &[1, 2, 3, 4]), (1, 2));
        assert_eq!(of(&[1, 2, 3, 4], &[1, 2, 3]), (2, 1));
        assert_eq!(of(&[1, 2, 3], &[1, 9, 3]), (1, 1));
    }

    #[test]
    fn what_was_taken_away_is_put_back() {
        let Value::Pool(whole) = pool(&[1, 2]) else { panic!() };
        let damaged = Value::Pool(Arc::new(Pool { word: None, ..(*whole).clone() }));
        let difference = elements(&Key::Pool(7), Some(&damaged), Some(&pool(&[1, 2]))).unwrap();
        assert_eq!((difference.delete.len(), difference.add.len()), (0, 1));
    }
}
