//! Comparing the kernel with what is wanted, and repairing the difference.

use std::collections::BTreeSet;

use vipd_model::{Place, Problem, ProblemCode, ServiceKey};

use super::{Made, Rendered, Runner};
use crate::plan::Objects;
use crate::steps::{EngineError, Steps};

/// What is wrong with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriftKind {
    /// Wanted, not there.
    Missing,
    /// There, otherwise.
    Changed,
    /// There, ours, wanted by nobody.
    Extra,
}

/// One object that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// What is wrong.
    pub kind: DriftKind,
    /// The object, printed.
    pub object: String,
    /// What it is to be and what it is, printed.
    pub detail: String,
    /// Services that hold it; empty: the node's own, or nobody's.
    pub services: Vec<ServiceKey>,
}

/// An object as it was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The object, printed.
    pub object: String,
    /// How it disagrees with what was programmed; absent: it does not.
    pub wrong: Option<String>,
}

impl Drift {
    /// For `Verify` and the journal.
    #[must_use]
    pub fn problem(&self) -> Problem {
        let what = match self.kind {
            DriftKind::Missing => "is missing from the kernel",
            DriftKind::Changed => "was changed by somebody else",
            DriftKind::Extra => "is in the kernel and belongs to no declared service",
        };
        Problem::new(ProblemCode::Drift, "", format!("{} {what}: {}", self.object, self.detail))
    }
}

impl<S: Steps> Runner<S> {
    /// Reads the whole kernel and says what differs. Changes nothing there. While holding, strays are not drift.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn check(&mut self) -> Result<Vec<Drift>, EngineError> {
        let observed = self.steps.observe()?;
        self.held.replace_kernel(observed.objects);
        self.unsure.clear();
        Ok(self.drifts(|_| true))
    }

    /// The same for one service, reading only its objects.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn check_service(&mut self, service: &ServiceKey) -> Result<Vec<Drift>, EngineError> {
        let keys = self.services.get(service).cloned().unwrap_or_default();
        let objects = self.steps.look(&keys)?;
        for key in &keys {
            self.held.set_kernel(key, objects.get(key).cloned());
        }
        Ok(self.drifts(|key| keys.binary_search(key).is_ok()))
    }

    /// One service's objects as the kernel has them now; with a port of a place, those that concern packets to it.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn view(&mut self, service: &ServiceKey, at: Option<(Place, u16)>) -> Result<Vec<Seen>, EngineError> {
        let mut keys = self.services.get(service).cloned().unwrap_or_default().into_vec();
        keys.retain(|key| at.is_none_or(|(place, port)| self.steps.concerns(key, place, port)));
        let kernel = self.steps.look(&keys)?;
        let wanted = self.held.wanted_of(keys.iter());
        let seen = keys.iter().filter_map(|key| match (kernel.get(key), wanted.get(key)) {
            (Some(is), Some(wanted)) if is == wanted => Some(Seen { object: format!("{key} {is}"), wrong: None }),
            (Some(is), Some(wanted)) => {
                Some(Seen { object: format!("{key} {is}"), wrong: Some(format!("programmed was {wanted}")) })
            }
            (None, Some(wanted)) => Some(Seen {
                object: key.to_string(),
                wrong: Some(format!("is not in the kernel; programmed was {wanted}")),
            }),
            (_, None) => None,
        });
        Ok(seen.collect())
    }

    fn drifts(&self, of_interest: impl Fn(&S::Key) -> bool) -> Vec<Drift> {
        let mut drifts = Vec::new();
        for (key, kernel, wanted) in self.held.differing().filter(|(key, ..)| of_interest(key)) {
            let (kind, detail) = match (kernel, wanted) {
                (None, Some(wanted)) => (DriftKind::Missing, format!("{wanted}")),
                (Some(kernel), Some(wanted)) => (DriftKind::Changed, format!("{kernel} instead of {wanted}")),
                (Some(kernel), None) if !self.holding => (DriftKind::Extra, format!("{kernel}")),
                _ => continue,
            };
            drifts.push(Drift { kind, object: key.to_string(), detail, services: self.holders(key) });
        }
        drifts
    }

    /// Walks all services: drift is rare, and a reverse index would cost every service memory all the time.
    fn holders(&self, key: &S::Key) -> Vec<ServiceKey> {
        let holding = self.services.iter().filter(|(_, keys)| keys.binary_search(key).is_ok());
        holding.map(|(service, _)| service.clone()).collect()
    }

    /// Makes the kernel as wanted again after [`Runner::check`], service by service where it must be.
    pub fn repair(&mut self) -> Made {
        let mut made = Made::default();
        let differing: BTreeSet<_> = self.held.differing().map(|(key, ..)| key.clone()).collect();
        let node: Objects<_, _> = self.held.wanted_of(self.node_keys.iter().filter(|key| differing.contains(key)));
        // What services refer to comes first; if the node's own objects cannot be made, theirs say why.
        let _ = self.apply(&node, &mut made.stale);
        let mut rendered = Vec::new();
        for (service, keys) in &self.services {
            if keys.iter().any(|key| differing.contains(key)) {
                rendered.push(Rendered { key: service.clone(), objects: self.held.wanted_of(keys.iter()) });
            }
        }
        self.commit_all(rendered, &mut made);
        if !self.holding {
            let strays: Vec<_> = differing.into_iter().filter(|key| self.held.is_stray(key)).collect();
            let _ = self.remove(&strays, &mut made.stale);
        }
        made
    }

    /// The desired state is complete: what nobody wants goes, and returns how many objects that were.
    ///
    /// # Errors
    /// If they could not be removed; the next check tries again.
    pub fn release(&mut self) -> Result<usize, Problem> {
        self.holding = false;
        if self.rests && self.services.is_empty() && self.retiring.is_empty() {
            for key in std::mem::take(&mut self.node_keys) {
                self.held.unwant(&key);
            }
        }
        let strays: Vec<_> =
            self.held.differing().filter(|(_, _, wanted)| wanted.is_none()).map(|(key, ..)| key.clone()).collect();
        let count = strays.len();
        let mut stale = Vec::new();
        self.remove(&strays, &mut stale).map_err(|error| super::problem(&error))?;
        Ok(count)
    }

    /// Whether objects that nobody wants are kept.
    pub fn holding(&self) -> bool {
        self.holding
    }

    /// Whether kernel and wanted state agree as far as the books know, strays aside.
    pub fn is_settled(&self) -> bool {
        self.retiring.is_empty() && self.held.differing().all(|(_, _, wanted)| wanted.is_none())
    }

    /// Every wanted object, for tests that compare with the kernel.
    pub fn wanted(&self) -> Objects<S::Key, S::Value> {
        self.held.wanted().map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}
