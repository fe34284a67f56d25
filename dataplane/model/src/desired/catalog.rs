//! The services, by owner and name, with counts that are never walked for.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::name::{OwnerName, ServiceKey, ServiceName};
use crate::service::Service;

/// How much an owner has declared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Services.
    pub services: usize,
    /// Endpoints of all of them.
    pub endpoints: usize,
}

/// What one owner has; never empty inside the catalog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Holdings {
    services: BTreeMap<ServiceName, Arc<Service>>,
    endpoints: usize,
}

/// Every service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Catalog {
    owners: BTreeMap<OwnerName, Holdings>,
    services: usize,
}

impl Catalog {
    pub(crate) fn get(&self, key: &ServiceKey) -> Option<&Arc<Service>> {
        self.owners.get(&key.owner)?.services.get(&key.name)
    }

    pub(crate) fn len(&self) -> usize {
        self.services
    }

    pub(crate) fn tally(&self, owner: &OwnerName) -> Tally {
        self.owners.get(owner).map(|h| Tally { services: h.services.len(), endpoints: h.endpoints }).unwrap_or_default()
    }

    /// Puts a service in the place of the one with its key.
    pub(crate) fn insert(&mut self, service: Arc<Service>) {
        let holdings = self.owners.entry(service.key.owner.clone()).or_default();
        holdings.endpoints += service.endpoints.len();
        match holdings.services.insert(service.key.name.clone(), service) {
            Some(replaced) => holdings.endpoints -= replaced.endpoints.len(),
            None => self.services += 1,
        }
    }

    pub(crate) fn remove(&mut self, key: &ServiceKey) {
        let Some(holdings) = self.owners.get_mut(&key.owner) else { return };
        let Some(removed) = holdings.services.remove(&key.name) else { return };
        holdings.endpoints -= removed.endpoints.len();
        self.services -= 1;
        if holdings.services.is_empty() {
            self.owners.remove(&key.owner);
        }
    }

    /// All, in (owner, name) order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.owners.values().flat_map(|h| h.services.values())
    }

    /// One owner's, in name order.
    pub(crate) fn of_owner(&self, owner: &OwnerName) -> impl Iterator<Item = &Arc<Service>> {
        self.owners.get(owner).into_iter().flat_map(|h| h.services.values())
    }

    /// Those after a key, in (owner, name) order; without a key, all.
    pub(crate) fn after(&self, key: Option<&ServiceKey>) -> impl Iterator<Item = &Arc<Service>> {
        let owner = key.map_or(Bound::Unbounded, |k| Bound::Excluded(&k.owner));
        let name = key.map_or(Bound::Unbounded, |k| Bound::Excluded(&k.name));
        let rest = key.and_then(|k| self.owners.get(&k.owner));
        let rest = rest.into_iter().flat_map(move |h| h.services.range::<ServiceName, _>((name, Bound::Unbounded)));
        let others = self.owners.range::<OwnerName, _>((owner, Bound::Unbounded));
        rest.map(|(_, s)| s).chain(others.flat_map(|(_, h)| h.services.values()))
    }
}
