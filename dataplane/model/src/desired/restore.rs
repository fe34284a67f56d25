//! Coming back from the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Desired;
use super::endpoints::merge;
use crate::Revision;
use crate::contest::{Claims, View, resolve};
use crate::feature::{EngineKind, Engines};
use crate::limits::Limits;
use crate::name::ServiceKey;
use crate::owner::{Owner, OwnerRecord};
use crate::problem::{Problem, ProblemCode};
use crate::service::{Contest, Service};

/// What a store keeps of a [`Desired`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The newest accepted change.
    pub revision: Revision,
    /// In any order; `waiting` is not read.
    pub services: Vec<Service>,
    /// In any order.
    pub owners: Vec<OwnerRecord>,
    /// The default engine that a caller chose.
    pub default_engine: Option<EngineKind>,
}

impl Desired {
    /// The state that a store kept, and what was found wrong with it. Nothing that can be read is lost for being
    /// invalid (by a newer rule, a smaller limit, a lost record): it was accepted once, and somebody relies on it.
    #[must_use]
    pub fn restore(engines: Engines, limits: Limits, stored: Stored) -> (Self, Vec<Problem>) {
        let mut problems = Vec::new();
        let mut services: BTreeMap<ServiceKey, Arc<Service>> = BTreeMap::new();
        for service in stored.services {
            let service = readable(service, &mut problems);
            if let Some(twice) = services.insert(service.key.clone(), Arc::new(service)) {
                problems.push(found(format!("service {} was stored twice; the later one is kept", twice.key)));
            }
        }
        settle(&mut services, &mut problems);

        let mut desired = Self::new(engines, limits);
        desired.default_engine = stored.default_engine;
        desired.revision = stored.revision;
        for record in stored.owners {
            desired.revision = desired.revision.max(record.revision);
            desired.digest.owner(None, Some(&record));
            desired.owners.insert(record.owner.name.clone(), Arc::new(record));
        }
        for service in services.into_values() {
            desired.take_in(service, &mut problems);
        }
        if desired.revision > stored.revision {
            problems.push(found(format!(
                "the stored revision {} is older than what it counts; going on from {}",
                stored.revision.0, desired.revision.0
            )));
        }
        (desired, problems)
    }

    /// What a store is to keep.
    #[must_use]
    pub fn stored(&self) -> Stored {
        Stored {
            revision: self.revision,
            services: self.services().map(|s| Service::clone(s)).collect(),
            owners: self.owners().map(|o| OwnerRecord::clone(o)).collect(),
            default_engine: self.default_engine,
        }
    }

    fn take_in(&mut self, service: Arc<Service>, problems: &mut Vec<Problem>) {
        let revisions = service.revisions;
        self.revision = self.revision.max(revisions.newest()).max(revisions.created);
        let owner = &service.key.owner;
        if !self.owners.contains_key(owner) {
            problems.push(found(format!("the record of owner {owner} is lost; its settings are defaults now")));
            let record = OwnerRecord { revision: revisions.newest(), ..OwnerRecord::new(Owner::new(owner.clone())) };
            self.owners.insert(owner.clone(), Arc::new(record));
        }
        self.digest.service(None, Some(&service));
        self.targets.replace(None, Some(&service));
        self.claims.insert(&service);
        self.catalog.insert(service);
    }
}

/// A stored service with what all code relies on: endpoints in order, each once.
fn readable(mut service: Service, problems: &mut Vec<Problem>) -> Service {
    service.waiting.clear();
    if !service.endpoints.is_sorted_by(|a, b| a.key < b.key) {
        let (list, _) = merge(service.endpoints.to_vec());
        service.endpoints = list.into();
        problems.push(found(format!("the endpoints of service {} were out of order", service.key)));
    }
    if !service.leaving.is_sorted() {
        let mut leaving = service.leaving.to_vec();
        leaving.sort_unstable();
        service.leaving = leaving.into();
    }
    service
}

/// Finds who holds contested frontends.
fn settle(services: &mut BTreeMap<ServiceKey, Arc<Service>>, problems: &mut Vec<Problem>) {
    let (base, mut fresh) = (Claims::default(), Claims::default());
    services.values().for_each(|service| fresh.insert(service));
    let service = |key: &ServiceKey| services.get(key).map(|s| &**s);
    let view = View { base: &base, fresh: &fresh, replaced: &|_| true, service: &service };
    let decided = resolve(&view, std::iter::empty());
    for ((key, frontend), _) in decided.into_iter().filter(|(_, held)| !held) {
        let Some(service) = services.get_mut(&key) else { continue };
        if service.definition.on_contest == Contest::Refuse {
            let message =
                format!("frontends[{frontend}] of service {key} is held by another; it waits until that is gone");
            problems.push(Problem::new(ProblemCode::FrontendTaken, "", message));
        }
        Arc::make_mut(service).waiting.push(frontend);
    }
}

fn found(message: String) -> Problem {
    Problem::new(ProblemCode::Invalid, "", message)
}
