//! Drives the four steps for many services at once: what is wanted, what is in the kernel, and the way from one to the
//! other when parts of it fail.
//!
//! A change goes in two halves, so that the caller can move capture (guard) or new flows (engine switch) between them:
//! [`Runner::make`] adds and changes, [`Runner::finish`] removes what is left over. A batch that fails is bisected until
//! the guilty service is alone ([`commit`]); what was in force for it is put back. Everything is O(change), but for
//! [`Runner::check`], which reads the whole kernel. [`drift`] compares and repairs, [`node`] keeps the node's own objects.

mod commit;
mod drift;
mod held;
mod node;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use vipd_model::{Problem, ServiceKey};

use crate::assignments::Assignments;
use crate::flow::FlowFilter;
use crate::node::Node;
use crate::plan::{Objects, Plan};
use crate::steps::{ApplyError, EngineError, RenderError, Steps};

pub use drift::{Drift, DriftKind, Seen};
use held::Held;

/// How it went for one service.
pub type Outcome = (ServiceKey, Result<(), Problem>);

/// One service's change within a batch; `None` removes it.
pub type Change<I> = (ServiceKey, Option<I>);

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Made {
    /// One for every service of the batch.
    pub outcomes: Vec<Outcome>,
    /// UDP flows to forget once everything that belongs to the change is in force.
    pub stale: Vec<FlowFilter>,
}

/// The services of one engine, or of the guard.
pub struct Runner<S: Steps> {
    steps: S,
    node: Node,
    numbers: Assignments,
    held: Held<S::Key, S::Value>,
    /// Keys of the objects that each service holds now, sorted.
    services: BTreeMap<ServiceKey, Box<[S::Key]>>,
    /// Keys that a service held before its last `make` and holds no more; they go with `finish`.
    retiring: BTreeMap<ServiceKey, BTreeSet<S::Key>>,
    /// Keys of the node's own objects.
    node_keys: BTreeSet<S::Key>,
    /// Without services it has no objects at all, not even the node's own.
    rests: bool,
    /// Keys whose last write failed and could not be read back; they are read before they are written again.
    unsure: BTreeSet<S::Key>,
    /// Objects of ours that nobody wants are kept: the desired state is not known to be complete.
    holding: bool,
}

/// A rendered change, on its way.
struct Rendered<S: Steps> {
    key: ServiceKey,
    objects: Objects<S::Key, S::Value>,
}

impl<S: Steps> Runner<S> {
    /// Reads the kernel and adopts what is there: nothing is written yet, and until [`Runner::release`] nothing that is
    /// there is removed.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn start(mut steps: S) -> Result<Self, EngineError> {
        let observed = steps.observe()?;
        Ok(Self {
            steps,
            node: Node::default(),
            numbers: observed.numbers,
            held: Held::adopt(observed.objects),
            services: BTreeMap::new(),
            retiring: BTreeMap::new(),
            node_keys: BTreeSet::new(),
            rests: false,
            unsure: BTreeSet::new(),
            holding: true,
        })
    }

    /// The engine itself.
    pub fn steps(&self) -> &S {
        &self.steps
    }

    /// The engine itself, for what is beside the four steps (counters).
    pub fn steps_mut(&mut self) -> &mut S {
        &mut self.steps
    }

    /// Numbers in use.
    pub fn numbers(&self) -> &Assignments {
        &self.numbers
    }

    /// The node that services are rendered for.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Services that it holds objects for.
    pub fn services(&self) -> impl Iterator<Item = &ServiceKey> {
        self.services.keys()
    }

    /// How many objects are in force.
    pub fn object_count(&self) -> usize {
        self.held.in_kernel()
    }

    /// Adds and changes what a batch of services needs. What they held before and need no more stays until `finish`.
    pub fn make(&mut self, batch: Vec<Change<S::Input>>) -> Made {
        let mut made = Made::default();
        let asleep = match batch.iter().any(|(_, input)| input.is_some()) {
            true => self.wake(&mut made.stale).err(),
            false => None,
        };
        let mut rendered = Vec::with_capacity(batch.len());
        for (key, input) in batch {
            let objects = match (&input, &asleep) {
                (None, _) => Ok(Objects::new()),
                (Some(_), Some(problem)) => Err(RenderError { problem: problem.clone() }),
                (Some(input), None) => self.steps.render(&self.node, input, &mut self.numbers),
            };
            match objects {
                Ok(objects) if self.has(&objects) => {
                    let change = Rendered { key, objects };
                    self.record(&change);
                    made.outcomes.push((change.key, Ok(())));
                }
                Ok(objects) => rendered.push(Rendered { key, objects }),
                Err(error) => made.outcomes.push((key, Err(error.problem))),
            }
        }
        self.commit_all(rendered, &mut made);
        self.sleep();
        made
    }

    /// Whether the kernel has all of these, and nobody wants one of them otherwise. Then there is nothing to write: nearly
    /// every service at a start.
    fn has(&self, objects: &Objects<S::Key, S::Value>) -> bool {
        let has = |(key, value)| self.held.kernel(key) == Some(value) && self.held.opposed(key, value) == 0;
        self.unsure.is_empty() && !objects.is_empty() && objects.iter().all(has)
    }

    fn record(&mut self, change: &Rendered<S>) {
        let before = self.services.remove(&change.key).unwrap_or_default();
        let mut retiring = self.retiring.remove(&change.key).unwrap_or_default();
        for (key, value) in &change.objects {
            let kept = retiring.remove(key);
            if kept {
                self.held.keep(key);
            }
            self.held.want(key, value, !kept && before.binary_search(key).is_err());
        }
        for key in before.into_iter().filter(|key| !change.objects.contains_key(key)) {
            self.held.retire(&key);
            retiring.insert(key);
        }
        if !change.objects.is_empty() {
            let keys = change.objects.keys().cloned().collect();
            self.services.insert(change.key.clone(), keys);
        }
        if !retiring.is_empty() {
            self.retiring.insert(change.key.clone(), retiring);
        }
    }

    /// Removes what these services held before their last `make` and nobody needs now.
    pub fn finish(&mut self, services: &[ServiceKey]) -> Made {
        let mut made = Made::default();
        let mut unwanted = Vec::new();
        let mut of_service = Vec::new();
        for service in services {
            let mut mine = Vec::new();
            for key in self.retiring.remove(service).unwrap_or_default() {
                self.held.keep(&key);
                let last = self.held.unwant(&key);
                // Something of a service that is not declared yet may need it; the release takes it away.
                if self.holding && self.steps.bears_others(&key) {
                    continue;
                }
                if last || (self.held.users(&key) == 0 && self.unsure.contains(&key)) {
                    mine.push(key);
                }
            }
            unwanted.extend(mine.iter().cloned());
            of_service.push((service, mine));
        }
        if self.remove(&unwanted, &mut made.stale).is_ok() {
            made.outcomes = services.iter().map(|service| (service.clone(), Ok(()))).collect();
        } else {
            self.finish_alone(of_service, &mut made);
        }
        self.sleep();
        made
    }

    /// Service by service, since together it failed.
    fn finish_alone(&mut self, of_service: Vec<(&ServiceKey, Vec<S::Key>)>, made: &mut Made) {
        for (service, keys) in of_service {
            let outcome = self.remove_alone(&keys, &mut made.stale).map_err(|error| problem(&error));
            if outcome.is_err() {
                // Still there, still ours: wanted once more, so that the next `finish` tries again.
                let mut left = keys;
                left.retain(|key| self.held.kernel(key).is_some() || self.unsure.contains(key));
                left.iter().for_each(|key| self.held.retire_again(key));
                self.retiring.entry(service.clone()).or_default().extend(left);
            }
            made.outcomes.push((service.clone(), outcome));
        }
    }

    /// What a batch would do to the kernel. Changes nothing.
    pub fn dry_run(&self, batch: Vec<Change<S::Input>>) -> (Plan<S::Key, S::Value>, Vec<Outcome>) {
        let mut numbers = self.numbers.clone();
        let wakes = self.is_asleep() && batch.iter().any(|(_, input)| input.is_some());
        let sleeps = self.would_sleep(&batch);
        let mut outcomes = Vec::new();
        let mut rendered = Vec::with_capacity(batch.len());
        for (key, input) in batch {
            let objects = match &input {
                None => Ok(Objects::new()),
                Some(input) => self.steps.render(&self.node, input, &mut numbers),
            };
            match objects {
                Ok(objects) => rendered.push(Rendered { key, objects }),
                Err(error) => outcomes.push((key, Err(error.problem))),
            }
        }
        let (rendered, contended) = self.part_contended(rendered);
        outcomes.extend(contended.into_iter().map(|(change, problem)| (change.key, Err(problem))));
        let mut given_up: BTreeMap<&S::Key, u32> = BTreeMap::new();
        let mut want = if wakes { self.steps.render_node(&self.node, &mut numbers) } else { Objects::new() };
        if sleeps {
            self.node_keys.iter().for_each(|key| *given_up.entry(key).or_default() += 1);
        }
        for change in &rendered {
            let held = self.services.get(&change.key).into_iter().flatten();
            let retiring = self.retiring.get(&change.key).into_iter().flatten();
            for key in held.chain(retiring).filter(|key| !change.objects.contains_key(key)) {
                *given_up.entry(key).or_default() += 1;
            }
            want.extend(change.objects.iter().map(|(key, value)| (key.clone(), value.clone())));
            outcomes.push((change.key.clone(), Ok(())));
        }
        let goes = given_up.iter().filter(|(key, users)| !want.contains_key(**key) && self.held.users(key) <= **users);
        let mut have = self.held.kernel_of(goes.map(|(key, _)| *key));
        have.extend(self.held.kernel_of(want.keys()));
        (self.steps.plan(&have, &want), outcomes)
    }
}

/// The status of a service that was not programmed.
fn problem(error: &ApplyError) -> Problem {
    Problem::new(error.code, "", error.message.clone())
}
