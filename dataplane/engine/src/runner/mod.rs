//! Drives the four steps for many services at once: what is wanted, what is in the kernel, and the way from one to the
//! other when parts of it fail.
//!
//! A change goes in two halves, so that the caller can move capture (guard) or new flows (engine switch) between them:
//! [`Runner::make`] adds and changes, [`Runner::finish`] removes what is left over. A batch that fails is bisected until
//! the guilty service is alone; what was in force for it is put back. Everything is O(change), but for [`Runner::check`],
//! which reads the whole kernel. [`drift`] compares and repairs.

mod drift;
mod held;

use std::collections::{BTreeMap, BTreeSet};

use vipd_model::{Problem, ServiceKey};

use crate::assignments::Assignments;
use crate::flow::FlowFilter;
use crate::node::Node;
use crate::plan::{Objects, Operation, Plan};
use crate::steps::{Applied, ApplyError, EngineError, Steps};

pub use drift::{Drift, DriftKind};
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
    services: BTreeMap<ServiceKey, Vec<S::Key>>,
    /// Keys that a service held before its last `make` and holds no more; they go with `finish`.
    retiring: BTreeMap<ServiceKey, BTreeSet<S::Key>>,
    /// Keys of the node's own objects.
    node_keys: BTreeSet<S::Key>,
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

    /// Renders and applies the node's own objects. Services with node ports must be made again afterwards.
    ///
    /// # Errors
    /// If they were not applied; the node as it was stays.
    pub fn set_node(&mut self, node: Node) -> Result<Vec<FlowFilter>, Problem> {
        let objects = self.steps.render_node(&node, &mut self.numbers);
        let mut stale = Vec::new();
        self.apply(&objects, &mut stale).map_err(|error| problem(&error))?;
        let keys: BTreeSet<_> = objects.keys().cloned().collect();
        let before: BTreeSet<S::Key> = self.node_keys.clone();
        for (key, value) in &objects {
            self.held.want(key, value, !before.contains(key));
        }
        self.node_keys = keys;
        self.node = node;
        let gone: Vec<_> = before.into_iter().filter(|key| !self.node_keys.contains(key)).collect();
        let unwanted = gone.into_iter().filter(|key| self.held.unwant(key)).collect();
        self.remove(unwanted, &mut stale).map_err(|error| problem(&error))?;
        Ok(stale)
    }

    /// Adds and changes what a batch of services needs. What they held before and need no more stays until `finish`.
    pub fn make(&mut self, batch: Vec<Change<S::Input>>) -> Made {
        let mut made = Made::default();
        let mut rendered = Vec::with_capacity(batch.len());
        for (key, input) in batch {
            let objects = match &input {
                None => Ok(Objects::new()),
                Some(input) => self.steps.render(&self.node, input, &mut self.numbers),
            };
            match objects {
                Ok(objects) => match self.conflict(&key, &objects) {
                    None => rendered.push(Rendered { key, objects }),
                    Some(problem) => made.outcomes.push((key, Err(problem))),
                },
                Err(error) => made.outcomes.push((key, Err(error.problem))),
            }
        }
        self.commit(rendered, &mut made);
        made
    }

    /// Another service needs one of these objects, but otherwise. Rendering never does that; an engine with such a bug
    /// must not let one service overwrite another.
    fn conflict(&self, key: &ServiceKey, objects: &Objects<S::Key, S::Value>) -> Option<Problem> {
        let mine = self.services.get(key);
        let (object, _) = objects.iter().find(|(object, value)| {
            let own = mine.is_some_and(|keys| keys.binary_search(object).is_ok());
            self.held.wanted_otherwise(object, value, own)
        })?;
        Some(Problem::new(
            vipd_model::ProblemCode::NotProgrammed,
            "",
            format!("{object} is needed by another service with another content; please report this"),
        ))
    }

    /// Applies rendered changes together, or, where that fails, in halves.
    fn commit(&mut self, mut rendered: Vec<Rendered<S>>, made: &mut Made) {
        let mut together = Objects::new();
        for change in &rendered {
            together.extend(change.objects.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        match self.apply(&together, &mut made.stale) {
            Ok(()) => {
                for change in rendered {
                    self.record(&change);
                    made.outcomes.push((change.key, Ok(())));
                }
            }
            Err(error) if rendered.len() == 1 => {
                self.put_back(together.into_keys().collect(), &mut made.stale);
                for change in rendered {
                    made.outcomes.push((change.key, Err(problem(&error))));
                }
            }
            Err(_) => {
                let rest = rendered.split_off(rendered.len() / 2);
                self.commit(rendered, made);
                self.commit(rest, made);
            }
        }
    }

    /// Brings the kernel from what it has to these objects, all of them additions or changes.
    fn apply(&mut self, objects: &Objects<S::Key, S::Value>, stale: &mut Vec<FlowFilter>) -> Result<(), ApplyError> {
        let have = self.held.kernel_of(objects.keys());
        let plan = self.steps.plan(&have, objects);
        self.run(&plan.make, stale)
    }

    /// Applies operations and keeps the books, also when it fails half-way.
    fn run(
        &mut self,
        operations: &[Operation<S::Key, S::Value>],
        stale: &mut Vec<FlowFilter>,
    ) -> Result<(), ApplyError> {
        if operations.is_empty() {
            return Ok(());
        }
        match self.steps.apply(operations, &mut self.numbers) {
            Ok(()) => {
                for operation in operations {
                    self.held.set_kernel(operation.key(), operation.after().cloned());
                }
                stale.extend(self.steps.stale_flows(operations));
                Ok(())
            }
            Err(error) => {
                if error.applied == Applied::Unknown {
                    let mut keys: Vec<_> = operations.iter().map(|operation| operation.key().clone()).collect();
                    keys.sort();
                    keys.dedup();
                    // If even reading fails, the books keep what was before; the next check finds the difference.
                    if let Ok(objects) = self.steps.look(&keys) {
                        for key in &keys {
                            self.held.set_kernel(key, objects.get(key).cloned());
                        }
                    }
                }
                Err(error)
            }
        }
    }

    /// After a service failed alone: what others or its last good state want there is restored, what nobody wants goes.
    fn put_back(&mut self, keys: Vec<S::Key>, stale: &mut Vec<FlowFilter>) {
        let have = self.held.kernel_of(keys.iter());
        let mut want = self.held.wanted_of(keys.iter());
        if self.holding {
            // Objects that were here before us stay while we hold.
            for (key, value) in &have {
                if self.held.is_stray(key) {
                    want.entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
        }
        let plan = self.steps.plan(&have, &want);
        // A failure here leaves a difference that the next check repairs.
        let _ = self.run(&plan.make, stale).and_then(|()| self.run(&plan.finish, stale));
    }

    fn record(&mut self, change: &Rendered<S>) {
        let before = self.services.remove(&change.key).unwrap_or_default();
        let mut retiring = self.retiring.remove(&change.key).unwrap_or_default();
        for (key, value) in &change.objects {
            let had = before.binary_search(key).is_ok() || retiring.remove(key);
            self.held.want(key, value, !had);
        }
        retiring.extend(before.into_iter().filter(|key| !change.objects.contains_key(key)));
        if !change.objects.is_empty() {
            self.services.insert(change.key.clone(), change.objects.keys().cloned().collect());
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
                if self.held.unwant(&key) {
                    mine.push(key);
                }
            }
            unwanted.extend(mine.iter().cloned());
            of_service.push((service, mine));
        }
        if self.remove(unwanted, &mut made.stale).is_ok() {
            made.outcomes = services.iter().map(|service| (service.clone(), Ok(()))).collect();
            return made;
        }
        for (service, keys) in of_service {
            let left: Vec<_> = keys.into_iter().filter(|key| self.held.kernel(key).is_some()).collect();
            let outcome = self.remove(left.clone(), &mut made.stale).map_err(|error| problem(&error));
            if outcome.is_err() {
                // Still there, still ours: wanted once more, so that the next `finish` tries again.
                for key in &left {
                    self.held.want_as_is(key);
                }
                self.retiring.entry(service.clone()).or_default().extend(left);
            }
            made.outcomes.push((service.clone(), outcome));
        }
        made
    }

    fn remove(&mut self, keys: Vec<S::Key>, stale: &mut Vec<FlowFilter>) -> Result<(), ApplyError> {
        let have = self.held.kernel_of(keys.iter());
        let plan = self.steps.plan(&have, &Objects::new());
        self.run(&plan.finish, stale)
    }

    /// What a batch would do to the kernel. Changes nothing.
    pub fn dry_run(&self, batch: Vec<Change<S::Input>>) -> (Plan<S::Key, S::Value>, Vec<Outcome>) {
        let mut numbers = self.numbers.clone();
        let mut outcomes = Vec::new();
        let (mut have, mut want) = (Objects::new(), Objects::new());
        for (key, input) in batch {
            let rendered = match &input {
                None => Ok(Objects::new()),
                Some(input) => self.steps.render(&self.node, input, &mut numbers),
            };
            outcomes.push((key.clone(), rendered.as_ref().map(|_| ()).map_err(|error| error.problem.clone())));
            let Ok(objects) = rendered else { continue };
            let before = self.services.get(&key).cloned().unwrap_or_default();
            let goes = before.iter().filter(|object| !objects.contains_key(object) && self.held.users(object) == 1);
            have.extend(self.held.kernel_of(goes));
            have.extend(self.held.kernel_of(objects.keys()));
            want.extend(objects);
        }
        have.retain(|key, _| !self.node_keys.contains(key));
        (self.steps.plan(&have, &want), outcomes)
    }
}

/// The status of a service that was not programmed.
fn problem(error: &ApplyError) -> Problem {
    Problem::new(error.code, "", error.message.clone())
}
