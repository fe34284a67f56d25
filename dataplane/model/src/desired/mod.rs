//! The desired state of the node, and how a command changes it.
//!
//! [`Desired::plan`] is a function: it checks a command whole, against the state that it leads to, and says what would
//! change. [`Desired::apply`] takes such a Delta in and cannot fail. [`Desired::dispatch`] is one after the other, so it
//! never changes and then fails. The cost is the change's: no service is looked at that the command does not touch or
//! meet (a Sync, a DeleteOwner and a new default engine touch many).
//!
//! Where to read next: `group` (a call's operations by service), `draft` and `writing` (what becomes of one
//! service), `conflicts` (contested frontends and loops), `writes`, `sync`, `owners`, `default_engine` (the commands).

mod catalog;
mod conflicts;
mod default_engine;
mod digest;
mod draft;
mod endpoints;
mod group;
mod lookup;
mod owners;
mod proposal;
mod restore;
mod sync;
mod targets;
mod writes;
mod writing;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use catalog::Tally;
pub use restore::Stored;

use crate::Revision;
use crate::command::{Command, Request};
use crate::contest::Claims;
use crate::delta::Delta;
use crate::feature::{EngineKind, Engines};
use crate::limits::Limits;
use crate::name::{OwnerName, ServiceKey};
use crate::owner::OwnerRecord;
use crate::problem::Rejection;
use crate::service::Service;
use catalog::Catalog;
use digest::Digest;
use targets::Targets;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    catalog: Catalog,
    owners: BTreeMap<OwnerName, Arc<OwnerRecord>>,
    /// Who holds which frontend.
    claims: Claims,
    /// Where traffic is sent.
    targets: Targets,
    revision: Revision,
    default_engine: Option<EngineKind>,
    digest: Digest,
    engines: Arc<Engines>,
    limits: Limits,
}

/// A state to come back to.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    revision: Revision,
    default_engine: Option<EngineKind>,
}

impl Desired {
    /// Nothing declared yet.
    #[must_use]
    pub fn new(engines: Engines, limits: Limits) -> Self {
        Self {
            catalog: Catalog::default(),
            owners: BTreeMap::new(),
            claims: Claims::default(),
            targets: Targets::default(),
            revision: Revision::default(),
            default_engine: None,
            digest: Digest::default(),
            engines: Arc::new(engines),
            limits,
        }
    }

    /// Checks a command whole, then changes.
    ///
    /// # Errors
    /// Why it is refused whole; nothing was changed. What a command in mode EACH or a Sync refuses in part stands in
    /// the Delta.
    pub fn dispatch(&mut self, command: &Command) -> Result<Delta, Rejection> {
        let delta = self.plan(command)?;
        self.apply(&delta);
        Ok(delta)
    }

    /// What a command would change. Changes nothing.
    ///
    /// # Errors
    /// As [`Self::dispatch`].
    pub fn plan(&self, command: &Command) -> Result<Delta, Rejection> {
        match &command.request {
            Request::One(operation) => writes::one(self, command, operation),
            Request::Apply { operations, mode } => writes::apply(self, command, operations, *mode),
            Request::Sync(sync) => sync::sync(self, command, sync),
            Request::SetOwner(owner) => owners::set(self, command, owner),
            Request::DeleteOwner(name) => owners::delete(self, command, name),
            Request::RenewLease(name) => owners::renew(self, command, name),
            Request::SetDefaultEngine { engine, allow_degraded, .. } => {
                default_engine::set(self, *engine, *allow_degraded)
            }
        }
    }

    /// Takes in a Delta that [`Self::plan`] made of this very state.
    pub fn apply(&mut self, delta: &Delta) {
        for change in &delta.services {
            self.replace_service(&change.key, change.before.as_ref(), change.after.as_ref());
        }
        for change in &delta.owners {
            self.replace_owner(&change.name, change.before.as_ref(), change.after.as_ref());
        }
        if let Some(default_engine) = delta.default_engine {
            self.default_engine = default_engine;
        }
        if delta.changed() {
            self.revision = delta.revision;
        }
    }

    /// The state as it is now, to come back to with [`Self::revert`].
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark { revision: self.revision, default_engine: self.default_engine }
    }

    /// Takes back the Deltas applied since `mark`, newest first: they could not be stored, or were only asked about.
    pub fn revert<'a>(&mut self, newest_first: impl IntoIterator<Item = &'a Delta>, mark: Mark) {
        for delta in newest_first {
            for change in &delta.services {
                self.replace_service(&change.key, change.after.as_ref(), change.before.as_ref());
            }
            for change in &delta.owners {
                self.replace_owner(&change.name, change.after.as_ref(), change.before.as_ref());
            }
        }
        self.revision = mark.revision;
        self.default_engine = mark.default_engine;
    }

    /// Puts one value of a service in the place of another, here and in everything that is kept up with the services.
    fn replace_service(&mut self, key: &ServiceKey, from: Option<&Arc<Service>>, to: Option<&Arc<Service>>) {
        let (before, after) = (from.map(|s| &**s), to.map(|s| &**s));
        self.digest.service(before, after);
        self.targets.replace(before, after);
        self.claims.replace(before, after);
        match to {
            Some(to) => self.catalog.insert(Arc::clone(to)),
            None => self.catalog.remove(key),
        }
    }

    fn replace_owner(&mut self, name: &OwnerName, from: Option<&Arc<OwnerRecord>>, to: Option<&Arc<OwnerRecord>>) {
        self.digest.owner(from.map(|o| &**o), to.map(|o| &**o));
        match to {
            Some(to) => self.owners.insert(name.clone(), Arc::clone(to)),
            None => self.owners.remove(name),
        };
    }

    /// The newest accepted change.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Of the declared state: equal on nodes that were told the same, in whatever order and however often.
    #[must_use]
    pub fn digest(&self) -> String {
        format!("{:016x}", self.digest.0)
    }

    /// The engines as they were last probed.
    #[must_use]
    pub fn engines(&self) -> &Arc<Engines> {
        &self.engines
    }

    /// Replaces what is known of the engines. What was accepted stays, whatever was lost.
    pub fn set_engines(&mut self, engines: Engines) {
        self.engines = Arc::new(engines);
    }

    /// The default engine that a caller chose; absent: the configuration's.
    #[must_use]
    pub fn default_engine(&self) -> Option<EngineKind> {
        self.default_engine
    }

    /// What is accepted at most.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// One service.
    #[must_use]
    pub fn service(&self, key: &ServiceKey) -> Option<&Arc<Service>> {
        self.catalog.get(key)
    }

    /// Every service, in (owner, name) order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.catalog.iter()
    }

    /// One owner's services, in name order.
    pub fn services_of(&self, owner: &OwnerName) -> impl Iterator<Item = &Arc<Service>> {
        self.catalog.of_owner(owner)
    }

    /// The services after a key (all without one), in (owner, name) order, for paging.
    pub fn services_after(&self, key: Option<&ServiceKey>) -> impl Iterator<Item = &Arc<Service>> {
        self.catalog.after(key)
    }

    /// How many services there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.catalog.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How much an owner has.
    #[must_use]
    pub fn tally(&self, owner: &OwnerName) -> Tally {
        self.catalog.tally(owner)
    }

    /// One owner.
    #[must_use]
    pub fn owner(&self, name: &OwnerName) -> Option<&Arc<OwnerRecord>> {
        self.owners.get(name)
    }

    /// Every owner, in name order.
    pub fn owners(&self) -> impl Iterator<Item = &Arc<OwnerRecord>> {
        self.owners.values()
    }
}

#[cfg(test)]
mod tests;
