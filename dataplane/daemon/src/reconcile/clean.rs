//! Flow cleaning: UDP flows that a change made stale are forgotten after the rules are in, in one walk that all changes
//! share. A service is in force once the walk that it waits for is done; none waits for another's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;
use vipd_engine::{Answerers, FlowFilter, Judge, Places};
use vipd_model::{Problem, ProblemCode, Revision, ServiceKey};

use super::run::{Done, Reconciler};

/// Services by where clients reach them, with those that may answer.
pub type Watched = Places<(ServiceKey, Arc<Answerers>)>;

/// The kernel's connection tracking. Blocks, on a thread of its own.
pub trait Cleaner: Send {
    /// Forgets UDP flows: those that a filter names, and those that the judge finds stale. One shared walk for each.
    ///
    /// # Errors
    /// In words; the flows may still be there.
    fn clean(&mut self, filters: &[FlowFilter], judge: &Judge) -> Result<(), String>;

    /// The flows that the kernel carries for services, by its numbers for them; sorted. Those that have ended and are
    /// only remembered do not count.
    ///
    /// # Errors
    /// In words.
    fn carried(&mut self, watched: &Watched) -> Result<BTreeMap<ServiceKey, Vec<u32>>, String>;

    /// Forgets these flows (sorted), whatever their protocol: a drain has ended by RESET.
    ///
    /// # Errors
    /// In words.
    fn cut(&mut self, flows: &[u32]) -> Result<(), String>;
}

/// Services and what is to be forgotten for them.
#[derive(Debug, Default)]
pub(super) struct Walk {
    services: Vec<(ServiceKey, Revision)>,
    filters: BTreeSet<FlowFilter>,
    judge: Judge,
}

impl Walk {
    fn is_empty(&self) -> bool {
        self.services.is_empty() && self.filters.is_empty() && self.judge.is_empty()
    }
}

/// What is owed.
#[derive(Debug, Default)]
pub(super) struct Cleaning {
    next: Walk,
    under_way: bool,
    /// Services whose stale flows may still be there: a repeated call must not be told that all is done.
    owed: BTreeSet<ServiceKey>,
    /// After a failure.
    not_before: Option<Instant>,
}

impl Cleaning {
    /// Whether there is nothing to do and nothing under way.
    pub(super) fn is_idle(&self) -> bool {
        !self.under_way && self.next.is_empty()
    }

    /// Whether a service must wait for a walk though its last change made nothing stale.
    pub(super) fn is_owed(&self, key: &ServiceKey) -> bool {
        self.owed.contains(key)
    }

    /// In force with the next walk.
    pub(super) fn wait(&mut self, key: ServiceKey, at: Revision) {
        self.owed.insert(key.clone());
        self.next.services.push((key, at));
    }

    /// To be forgotten with the next walk.
    pub(super) fn add(&mut self, filters: impl IntoIterator<Item = FlowFilter>) {
        self.next.filters.extend(filters);
    }

    /// To be judged with the next walk.
    pub(super) fn judge(&mut self, judge: Judge) {
        self.next.judge.merge(judge);
    }
}

impl Reconciler {
    pub(super) fn start_cleaning(&mut self) {
        let cleaning = &mut self.cleaning;
        if cleaning.under_way || cleaning.next.is_empty() || cleaning.not_before.is_some_and(|at| at > Instant::now()) {
            return;
        }
        let walk = std::mem::take(&mut cleaning.next);
        let Some(cleaner) = self.lanes.cleaner.clone() else {
            self.walked(walk, Ok(()));
            return;
        };
        self.cleaning.under_way = true;
        self.busy.begin("forgetting stale flows");
        self.spawn(async move {
            let result = cleaner.call(move |cleaner| {
                let filters: Vec<_> = walk.filters.iter().cloned().collect();
                let cleaned = cleaner.clean(&filters, &walk.judge);
                (walk, cleaned)
            });
            Done::Cleaned(result.await)
        });
    }

    /// The shared walk is done.
    pub(super) fn cleaned(&mut self, walk: Walk, result: Result<(), String>) {
        self.cleaning.under_way = false;
        self.busy.end("forgetting stale flows");
        self.walked(walk, result);
        self.announce();
    }

    fn walked(&mut self, walk: Walk, result: Result<(), String>) {
        match result {
            Ok(()) => {
                self.cleaning.not_before = None;
                let again: BTreeSet<_> = self.cleaning.next.services.iter().map(|(key, _)| key).collect();
                for (key, _) in walk.services.iter().filter(|(key, _)| !again.contains(key)) {
                    self.cleaning.owed.remove(key);
                }
                for (key, at) in walk.services {
                    self.in_force(&key, at);
                }
            }
            Err(message) => {
                self.cleaning.not_before = Some(Instant::now() + self.settings.retry_first);
                self.cleaning.add(walk.filters);
                // What was judged since knows better.
                let newer = std::mem::replace(&mut self.cleaning.next.judge, walk.judge);
                self.cleaning.next.judge.merge(newer);
                let text = format!("rules are in force, but stale UDP flows could not be forgotten: {message}");
                let problem = Problem::new(ProblemCode::NotProgrammed, "", text);
                for (key, at) in walk.services {
                    self.failed(&key, at, &problem);
                }
            }
        }
    }
}
