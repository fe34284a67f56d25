//! A kernel in memory that has the real one's manners: the same error for the same mistake, all or nothing within a
//! transaction, a dump to text, and a count of the messages it was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vipd_model::{EngineKind, ServiceKey};

use crate::plan::Operation;
use crate::steps::ApplyError;

/// Looks at everything that is in force after a transaction.
type Watcher = Box<dyn FnMut(&BTreeMap<String, String>) + Send>;

/// The kernel: objects by name, shared by the engines that program it and the tests that look at it.
#[derive(Clone, Default)]
pub struct FakeKernel(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, String>,
    messages: u64,
    transactions: u64,
    reads: u64,
    /// Objects with these names are refused, as a kernel refuses what it does not know.
    refused: BTreeSet<String>,
    /// The kernel takes no more objects than this, as a full set.
    capacity: Option<usize>,
    /// Somebody else wrote to it since an engine last asked.
    disturbed: BTreeSet<String>,
    /// Who writes behind our back, as the kernel tells.
    stranger: Option<String>,
    watcher: Option<Watcher>,
    /// By engine and service.
    counts: BTreeMap<(EngineKind, ServiceKey), Count>,
}

/// What an engine has counted of a service, as a test says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Flows so far.
    pub connections: u64,
    /// Flows now.
    pub active: u64,
}

impl FakeKernel {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything in it, one object a line.
    #[must_use]
    pub fn dump(&self) -> String {
        self.state().objects.iter().fold(String::new(), |mut text, (name, value)| {
            let _ = writeln!(text, "{name} {value}");
            text
        })
    }

    /// Everything in it.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<String, String> {
        self.state().objects.clone()
    }

    /// The value of one object.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        self.state().objects.get(name).cloned()
    }

    /// How many object messages it was sent, refused ones included. A no-op sends none.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.state().messages
    }

    /// How many transactions it was sent.
    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.state().transactions
    }

    /// How many reads of everything it served.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.state().reads
    }

    /// Calls `watcher` with what is in force after every transaction, in the order in which packets meet it.
    pub fn on_commit(&self, watcher: impl FnMut(&BTreeMap<String, String>) + Send + 'static) {
        self.state().watcher = Some(Box::new(watcher));
    }

    /// Another program removes what it finds by name. Returns how many objects that were.
    pub fn remove_behind_us(&self, matches: impl Fn(&str) -> bool) -> usize {
        let mut state = self.state();
        let gone: Vec<String> = state.objects.keys().filter(|name| matches(name)).cloned().collect();
        for name in &gone {
            state.objects.remove(name);
            state.disturb(name);
        }
        gone.len()
    }

    /// Another program writes an object of ours.
    pub fn write_behind_us(&self, name: &str, value: &str) {
        let mut state = self.state();
        state.objects.insert(name.to_owned(), value.to_owned());
        state.disturb(name);
    }

    /// From now on the kernel tells who it is that writes behind our back.
    pub fn name_stranger(&self, name: &str) {
        self.state().stranger = Some(name.to_owned());
    }

    /// Who it was, if it tells.
    pub(super) fn stranger(&self) -> Option<String> {
        self.state().stranger.clone()
    }

    /// From now on an engine has counted this for a service, as long as it has a frontend of it.
    pub fn count(&self, engine: EngineKind, service: &ServiceKey, count: Count) {
        self.state().counts.insert((engine, service.clone()), count);
    }

    /// From now on nothing is active anywhere.
    pub fn end_flows(&self) {
        self.state().counts.values_mut().for_each(|count| count.active = 0);
    }

    /// What it has counted of these services, or of all if none is named.
    pub(super) fn counted(&self, engine: EngineKind, services: &[ServiceKey]) -> Vec<(ServiceKey, Count)> {
        let asked = |key: &ServiceKey| services.is_empty() || services.contains(key);
        let state = self.state();
        let counts = state.counts.iter().filter(|((counting, key), _)| *counting == engine && asked(key));
        counts.map(|((_, key), count)| (key.clone(), *count)).collect()
    }

    /// With its last object an engine's count of a service is gone.
    pub(super) fn forget_counts(&self, engine: EngineKind, prefix: &str) {
        let State { counts, objects, .. } = &mut *self.state();
        counts.retain(|(counting, service), _| {
            let begins = format!("{service} ");
            *counting != engine
                || objects.iter().any(|(name, value)| name.starts_with(prefix) && value.starts_with(&begins))
        });
    }

    /// From now on the kernel refuses objects with this name.
    pub fn refuse(&self, name: &str) {
        self.state().refused.insert(name.to_owned());
    }

    /// From now on it takes them.
    pub fn accept(&self, name: &str) {
        self.state().refused.remove(name);
    }

    /// From now on it holds no more objects than this.
    pub fn limit(&self, capacity: Option<usize>) {
        self.state().capacity = capacity;
    }

    /// Whether somebody else wrote to the objects whose names begin so, since this was last asked.
    pub(super) fn take_disturbed(&self, prefix: &str) -> bool {
        self.state().disturbed.remove(prefix)
    }

    /// Every object whose name begins so.
    pub(super) fn read(&self, prefix: &str) -> BTreeMap<String, String> {
        let mut state = self.state();
        state.reads += 1;
        let from = state.objects.range(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
        from.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Those of these objects that are there.
    pub(super) fn look(&self, names: &[String]) -> BTreeMap<String, String> {
        let state = self.state();
        names.iter().filter_map(|name| Some((name.clone(), state.objects.get(name)?.clone()))).collect()
    }

    /// One transaction: all of it or nothing.
    pub(super) fn transact(&self, operations: &[Operation<String, String>]) -> Result<(), ApplyError> {
        let mut state = self.state();
        state.transactions += 1;
        state.messages += operations.len() as u64;
        let mut done: Vec<(String, Option<String>)> = Vec::with_capacity(operations.len());
        for operation in operations {
            if let Err(message) = state.check(operation) {
                for (name, before) in done.into_iter().rev() {
                    state.put(name, before);
                }
                return Err(ApplyError::nothing(message));
            }
            let name = operation.key().clone();
            done.push((name.clone(), state.objects.get(&name).cloned()));
            state.put(name, operation.after().cloned());
        }
        let State { watcher, objects, .. } = &mut *state;
        if let Some(watcher) = watcher {
            watcher(objects);
        }
        Ok(())
    }
}

impl State {
    fn put(&mut self, name: String, value: Option<String>) {
        match value {
            Some(value) => drop(self.objects.insert(name, value)),
            None => drop(self.objects.remove(&name)),
        }
    }

    /// Names begin with who programs the object.
    fn disturb(&mut self, name: &str) {
        let prefix = name.split_inclusive(' ').next().unwrap_or_default();
        self.disturbed.insert(prefix.to_owned());
    }

    fn check(&self, operation: &Operation<String, String>) -> Result<(), String> {
        let name = operation.key();
        let there = self.objects.contains_key(name);
        if self.refused.contains(name) && operation.after().is_some() {
            return Err(format!("{name}: Operation not supported"));
        }
        match operation {
            Operation::Add { .. } if there => Err(format!("{name}: File exists")),
            Operation::Add { .. } if self.capacity.is_some_and(|most| self.objects.len() >= most) => {
                Err(format!("{name}: Too many open files in system"))
            }
            Operation::Change { .. } | Operation::Remove { .. } if !there => {
                Err(format!("{name}: No such file or directory"))
            }
            _ => Ok(()),
        }
    }
}
