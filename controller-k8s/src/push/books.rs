//! What vipd has been told, as fingerprints, and the operations that lead from there to what is.
//!
//! Pure. Fingerprints instead of messages: 10,000 services cost a few megabytes, and an edit that changes nothing for
//! vipd is no operation at all. A fingerprint of `None` is not known: the part is told again.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};

use prost::Message;
use vipd_proto::v1;
use vipd_proto::v1::operation::Operation as Kind;

use crate::facts::Key;
use crate::translate::{Declared, OWNER};

/// The fingerprints of one vipd service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prints {
    definition: Option<u64>,
    endpoints: Option<u64>,
}

/// The vipd services of one Service, by their names.
pub(super) type Told = BTreeMap<Box<str>, Prints>;

/// The operations for one Service, and what has been told once they are accepted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) operations: Vec<v1::Operation>,
    pub(super) then: Told,
}

/// What vipd has been told.
#[derive(Debug, Default)]
pub(super) struct Books {
    told: BTreeMap<Key, Told>,
}

impl Books {
    /// The way from what was told of this Service to what it is now; nothing if it is not served any more.
    pub(super) fn plan(&self, key: &Key, now: Vec<Declared>) -> Plan {
        let mut plan = Plan::default();
        let none = Told::new();
        let told = self.told.get(key).unwrap_or(&none);
        for Declared { definition, endpoints } in now {
            let name: Box<str> = definition.name.as_str().into();
            let prints = Prints { definition: print([&definition]), endpoints: print(&endpoints) };
            let known = told.get(&name);
            if known.is_none_or(|known| known.definition != prints.definition) {
                let upsert = v1::UpsertServiceRequest { service: Some(definition), ..Default::default() };
                plan.operations.push(operation(Kind::UpsertService(upsert)));
            }
            // A service that is new has no endpoints yet.
            if known.is_none_or(|known| known.endpoints != prints.endpoints)
                && (known.is_some() || !endpoints.is_empty())
            {
                let (owner, name) = (OWNER.to_owned(), String::from(&*name));
                let set = v1::SetEndpointsRequest { owner, name, endpoints, ..Default::default() };
                plan.operations.push(operation(Kind::SetEndpoints(set)));
            }
            plan.then.insert(name, prints);
        }
        for name in told.keys().filter(|name| !plan.then.contains_key(*name)) {
            let (owner, name) = (OWNER.to_owned(), String::from(&**name));
            let delete = v1::DeleteServiceRequest { owner, name, ..Default::default() };
            plan.operations.push(operation(Kind::DeleteService(delete)));
        }
        plan
    }

    /// vipd accepted a plan.
    pub(super) fn accepted(&mut self, key: Key, then: Told) {
        if then.is_empty() {
            self.told.remove(&key);
        } else {
            self.told.insert(key, then);
        }
    }

    /// Nobody knows what became of these: everything of them is told again.
    pub(super) fn unknown(&mut self, key: &Key, names: impl IntoIterator<Item = Box<str>>) {
        let told = self.told.entry(key.clone()).or_default();
        for name in names {
            told.insert(name, Prints::default());
        }
    }

    /// The names of what was told of one Service.
    pub(super) fn names(&self, key: &Key) -> Vec<Box<str>> {
        self.told.get(key).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// Services of Kubernetes, and services of vipd, that have been told.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.told.len(), self.told.values().map(BTreeMap::len).sum())
    }
}

/// What a whole translation is as told.
pub(super) fn prints(services: &[Declared]) -> Told {
    let of = |declared: &Declared| {
        let prints = Prints { definition: print([&declared.definition]), endpoints: print(&declared.endpoints) };
        (declared.definition.name.as_str().into(), prints)
    };
    services.iter().map(of).collect()
}

/// Fields are written in the order of their numbers and maps in that of their keys, so equal messages are equal bytes.
fn print<'a, M: Message + 'a>(messages: impl IntoIterator<Item = &'a M>) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    for message in messages {
        hasher.write(&message.encode_length_delimited_to_vec());
    }
    Some(hasher.finish())
}

fn operation(kind: Kind) -> v1::Operation {
    v1::Operation { operation: Some(kind) }
}
