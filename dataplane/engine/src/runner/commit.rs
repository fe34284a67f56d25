//! The way of rendered changes into the kernel, and what happens where it fails: halves, a second look, put back.

use std::collections::{BTreeMap, BTreeSet};

use vipd_model::{Problem, ProblemCode, ServiceKey};

use super::{Made, Rendered, Runner, problem};
use crate::flow::FlowFilter;
use crate::plan::{Objects, Operation};
use crate::steps::{Applied, ApplyError, Steps};

/// Changes that may go on, and those that another service's objects stand in the way of.
type Parted<S> = (Vec<Rendered<S>>, Vec<(Rendered<S>, Problem)>);

impl<S: Steps> Runner<S> {
    /// Applies rendered changes. One that needs what another service has yet to give up waits for that one's turn, and
    /// fails only if the other did not give it up.
    pub(super) fn commit_all(&mut self, mut rendered: Vec<Rendered<S>>, made: &mut Made) {
        loop {
            let before = rendered.len();
            let mut waiting = Vec::new();
            self.commit(rendered, made, &mut waiting);
            if waiting.len() == before {
                for (change, problem) in waiting {
                    // A transaction that failed before the batch was parted may have made some of it.
                    let keys: Vec<_> = change.objects.into_keys().collect();
                    self.put_back(&change.key, &keys, &mut made.stale);
                    made.outcomes.push((change.key, Err(problem)));
                }
                return;
            }
            if waiting.is_empty() {
                return;
            }
            rendered = waiting.into_iter().map(|(change, _)| change).collect();
        }
    }

    /// Applies rendered changes together, or, where that fails, in halves.
    fn commit(&mut self, rendered: Vec<Rendered<S>>, made: &mut Made, waiting: &mut Vec<(Rendered<S>, Problem)>) {
        let (mut rendered, contended) = self.part_contended(rendered);
        waiting.extend(contended);
        let mut together = Objects::new();
        for change in &rendered {
            together.extend(change.objects.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        let result = match rendered.len() {
            0 => return,
            1 => self.apply_alone(&together, &mut made.stale),
            _ => self.apply(&together, &mut made.stale),
        };
        match result {
            Ok(()) => {
                for change in rendered {
                    self.record(&change);
                    made.outcomes.push((change.key, Ok(())));
                }
            }
            Err(error) if rendered.len() == 1 => {
                let keys: Vec<_> = together.into_keys().collect();
                for change in rendered {
                    self.put_back(&change.key, &keys, &mut made.stale);
                    made.outcomes.push((change.key, Err(problem(&error))));
                }
            }
            Err(_) => {
                let rest = rendered.split_off(rendered.len() / 2);
                self.commit(rendered, made, waiting);
                self.commit(rest, made, waiting);
            }
        }
    }

    /// Parts from a batch what needs an object that somebody outside the batch keeps with another content. Within the
    /// batch objects may change hands: frontends swap, and one that waited takes over what another gives up.
    pub(super) fn part_contended(&self, rendered: Vec<Rendered<S>>) -> Parted<S> {
        let (mut rendered, mut contended) = (rendered, Vec::new());
        while let Some(problems) = self.contended(&rendered) {
            let mut free = Vec::with_capacity(rendered.len());
            for (index, change) in rendered.into_iter().enumerate() {
                match problems.get(&index) {
                    Some(problem) => contended.push((change, problem.clone())),
                    None => free.push(change),
                }
            }
            rendered = free;
        }
        (rendered, contended)
    }

    /// What stands in the way, by index; absent: nothing.
    fn contended(&self, rendered: &[Rendered<S>]) -> Option<BTreeMap<usize, Problem>> {
        let mut first: BTreeMap<&S::Key, &S::Value> = BTreeMap::new();
        let mut given_up: Option<BTreeMap<&S::Key, u32>> = None;
        let mut problems = BTreeMap::new();
        for (index, change) in rendered.iter().enumerate() {
            for (key, value) in &change.objects {
                let opposed = self.held.opposed(key, value);
                let by_others = opposed > 0
                    && opposed
                        > given_up.get_or_insert_with(|| self.holders_in(rendered)).get(key).copied().unwrap_or(0);
                if by_others || **first.entry(key).or_insert(value) != *value {
                    let text =
                        format!("{key} is in use by another service, with another content; it is taken over when free");
                    problems.insert(index, Problem::new(ProblemCode::FrontendTaken, "", text));
                    break;
                }
            }
        }
        (!problems.is_empty()).then_some(problems)
    }

    /// How many of these services hold each object now.
    fn holders_in<'a>(&'a self, rendered: &[Rendered<S>]) -> BTreeMap<&'a S::Key, u32> {
        let mut holders = BTreeMap::new();
        for key in rendered.iter().filter_map(|change| self.services.get(&change.key)).flatten() {
            *holders.entry(key).or_default() += 1;
        }
        holders
    }

    /// Brings the kernel from what it has to these objects, all of them additions or changes.
    pub(super) fn apply(
        &mut self,
        objects: &Objects<S::Key, S::Value>,
        stale: &mut Vec<FlowFilter>,
    ) -> Result<(), ApplyError> {
        self.look_where_unsure(objects.keys())?;
        let have = self.held.kernel_of(objects.keys());
        let plan = self.steps.plan(&have, objects);
        self.run(&plan.make, stale)
    }

    /// The same for what cannot be halved: if the kernel turns out to be otherwise than the books said (somebody else
    /// wrote there), it is tried once more from what is there.
    pub(super) fn apply_alone(
        &mut self,
        objects: &Objects<S::Key, S::Value>,
        stale: &mut Vec<FlowFilter>,
    ) -> Result<(), ApplyError> {
        let keys: Vec<_> = objects.keys().cloned().collect();
        self.apply(objects, stale)
            .or_else(|error| if self.books_were_wrong(&keys) { self.apply(objects, stale) } else { Err(error) })
    }

    /// Removes these objects; one that is gone already is no error.
    pub(super) fn remove(&mut self, keys: &[S::Key], stale: &mut Vec<FlowFilter>) -> Result<(), ApplyError> {
        self.look_where_unsure(keys.iter())?;
        let have = self.held.kernel_of(keys.iter());
        let plan = self.steps.plan(&have, &Objects::new());
        self.run(&plan.finish, stale)
    }

    /// The same for what cannot be halved, as [`Self::apply_alone`].
    pub(super) fn remove_alone(&mut self, keys: &[S::Key], stale: &mut Vec<FlowFilter>) -> Result<(), ApplyError> {
        self.remove(keys, stale)
            .or_else(|error| if self.books_were_wrong(keys) { self.remove(keys, stale) } else { Err(error) })
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
        let result = self.steps.apply(operations, &mut self.numbers);
        match &result {
            Ok(()) => {
                for operation in operations {
                    self.held.set_kernel(operation.key(), operation.after().cloned());
                }
                stale.extend(self.steps.stale_flows(operations));
            }
            Err(error) if error.applied == Applied::Unknown => {
                let keys: BTreeSet<_> = operations.iter().map(|operation| operation.key().clone()).collect();
                self.look(&keys.into_iter().collect::<Vec<_>>());
                // What did get through has its stale flows as well.
                let through = operations.iter().filter(|o| self.held.kernel(o.key()) == o.after()).cloned();
                stale.extend(self.steps.stale_flows(&through.collect::<Vec<_>>()));
            }
            Err(_) => {}
        }
        result
    }

    /// After a service failed alone: what others or its last good state want there is restored, what nobody wants goes.
    fn put_back(&mut self, service: &ServiceKey, keys: &[S::Key], stale: &mut Vec<FlowFilter>) {
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
        // What is wanted and not there is made by the next attempt or the next check.
        let _ = self.run(&plan.make, stale).and_then(|()| self.run(&plan.finish, stale));
        // What is there and not wanted goes with the service's next `finish`.
        for key in keys.iter().filter(|key| !want.contains_key(*key)) {
            let there = self.held.kernel(key).is_some() || self.unsure.contains(key);
            if there && self.retiring.entry(service.clone()).or_default().insert(key.clone()) {
                self.held.retire_again(key);
            }
        }
    }

    /// Reads these objects (sorted). If even that fails, they are read before they are written again.
    fn look(&mut self, keys: &[S::Key]) {
        match self.steps.look(keys) {
            Ok(objects) => {
                for key in keys {
                    self.held.set_kernel(key, objects.get(key).cloned());
                    self.unsure.remove(key);
                }
            }
            Err(_) => self.unsure.extend(keys.iter().cloned()),
        }
    }

    fn look_where_unsure<'a>(&mut self, keys: impl Iterator<Item = &'a S::Key>) -> Result<(), ApplyError>
    where
        S::Key: 'a,
    {
        if self.unsure.is_empty() {
            return Ok(());
        }
        let keys: BTreeSet<_> = keys.filter(|key| self.unsure.contains(*key)).cloned().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = keys.into_iter().collect();
        self.look(&keys);
        match keys.iter().find(|key| self.unsure.contains(*key)) {
            Some(key) => Err(ApplyError::nothing(format!("{key} could not be read back after an earlier failure"))),
            None => Ok(()),
        }
    }

    /// Reads these objects again and says whether that changed what we know of them.
    fn books_were_wrong(&mut self, keys: &[S::Key]) -> bool {
        let before = self.held.kernel_of(keys.iter());
        let mut sorted = keys.to_vec();
        sorted.sort();
        self.look(&sorted);
        self.held.kernel_of(keys.iter()) != before
    }
}
