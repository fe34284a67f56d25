//! The Delta: what a command changed. The store writes it, the engines render it, the watchers see it.

use std::sync::Arc;

use crate::Revision;
use crate::feature::EngineKind;
use crate::name::{OwnerName, ServiceKey};
use crate::owner::OwnerRecord;
use crate::problem::{Problem, Refused};
use crate::service::Service;

/// A service before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceChange {
    /// Which.
    pub key: ServiceKey,
    /// Absent: it is new.
    pub before: Option<Arc<Service>>,
    /// Absent: it is gone.
    pub after: Option<Arc<Service>>,
}

/// An owner before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerChange {
    /// Which.
    pub name: OwnerName,
    /// Absent: it is new.
    pub before: Option<Arc<OwnerRecord>>,
    /// Absent: it is gone.
    pub after: Option<Arc<OwnerRecord>>,
}

/// How many services a Sync or a DeleteOwner touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// New ones.
    pub created: u64,
    /// Changed ones.
    pub updated: u64,
    /// Sent as they were.
    pub unchanged: u64,
    /// Gone ones.
    pub removed: u64,
}

/// What a command changed, and what its caller is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// The revision that the caller is told: this change's, or, if nothing changed, the one at which the state that it
    /// asked for was accepted.
    pub revision: Revision,
    /// In key order. Besides the services of the command, those that gain or lose a contested frontend by it.
    pub services: Vec<ServiceChange>,
    /// In name order. A write's mark on its owner (`last_write`) is here too.
    pub owners: Vec<OwnerChange>,
    /// The default engine chosen by a caller, if that is what changed; absent inside: back to the configuration.
    pub default_engine: Option<Option<EngineKind>>,
    /// Services of the command that were so already; the caller waits for them too.
    pub unchanged: Vec<ServiceKey>,
    /// What was refused while the rest was accepted: of an Apply all, since its reply has no other count; of a Sync and
    /// a new default engine the first 1,000.
    pub refused: Vec<Refused>,
    /// How many in all.
    pub refused_total: u64,
    /// Accepted, but look.
    pub notes: Vec<Problem>,
    /// Of services.
    pub counts: Counts,
}

impl Delta {
    /// Whether declared state changed: the revision grew, and the services or settings go to the engines and watchers.
    /// A Delta without may still carry owners' marks (`last_write`) for the store.
    #[must_use]
    pub fn changed(&self) -> bool {
        !self.services.is_empty()
            || self.default_engine.is_some()
            || self.owners.iter().any(|o| match (&o.before, &o.after) {
                (Some(before), Some(after)) => before.owner != after.owner || before.session != after.session,
                _ => true,
            })
    }
}
