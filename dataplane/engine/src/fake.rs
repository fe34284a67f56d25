//! An engine on a kernel in memory that has the real one's manners: the same error for the same mistake, all or nothing
//! within a transaction, a dump to text, and a count of the messages it was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vipd_model::feature::Ability;
use vipd_model::select::Serve;
use vipd_model::{Algorithm, EngineKind, Family, Feature, Selected};

use crate::assignments::Assignments;
use crate::flow::FlowFilter;
use crate::node::Node;
use crate::plan::{Objects, Operation};
use crate::steps::{ApplyError, Engine, EngineError, Observed, RenderError, Steps};

/// The kernel: objects by name, shared with the tests that look at it.
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

    /// Another program removes what it finds by name.
    pub fn remove_behind_us(&self, matches: impl Fn(&str) -> bool) -> usize {
        let mut state = self.state();
        let before = state.objects.len();
        state.objects.retain(|name, _| !matches(name));
        before - state.objects.len()
    }

    /// Another program writes an object of ours.
    pub fn write_behind_us(&self, name: &str, value: &str) {
        self.state().objects.insert(name.to_owned(), value.to_owned());
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

    /// One transaction: all of it or nothing.
    fn transact(&self, operations: &[Operation<String, String>]) -> Result<(), ApplyError> {
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

/// An engine that programs a [`FakeKernel`]: an object for each frontend of a service and one for each endpoint that
/// may be chosen.
pub struct FakeEngine {
    kind: EngineKind,
    ability: Ability,
    kernel: FakeKernel,
}

impl FakeEngine {
    /// An engine that can do everything and says it is `kind`.
    #[must_use]
    pub fn new(kind: EngineKind, kernel: FakeKernel) -> Self {
        let ability = Ability {
            usable: true,
            reason: String::new(),
            features: Feature::ALL.iter().copied().collect(),
            algorithms: Algorithm::ALL.into_iter().collect(),
        };
        Self { kind, ability, kernel }
    }

    /// The same with other abilities.
    #[must_use]
    pub fn with_ability(mut self, ability: Ability) -> Self {
        self.ability = ability;
        self
    }
}

impl Steps for FakeEngine {
    type Input = Selected;
    type Key = String;
    type Value = String;

    fn render_node(&self, node: &Node, _: &mut Assignments) -> Objects<String, String> {
        node.network.virtual_ranges.iter().map(|net| (format!("range {net}"), "refuse".to_owned())).collect()
    }

    fn render(
        &self,
        _: &Node,
        service: &Selected,
        _: &mut Assignments,
    ) -> Result<Objects<String, String>, RenderError> {
        let mut objects = Objects::new();
        let declared = &service.service;
        let key = &declared.key;
        for selection in &service.frontends {
            let Some(frontend) = declared.definition.frontends.get(selection.index as usize) else { continue };
            let family = if selection.family == Family::V4 { "4" } else { "6" };
            let text = |serve| match serve {
                Serve::All => "all".to_owned(),
                Serve::Local => "local".to_owned(),
                Serve::Refuse(how) => format!("{how:?}").to_lowercase(),
            };
            objects.insert(
                format!("frontend{family} {} {frontend}", declared.definition.protocol),
                format!(
                    "{key} {:?} inside {} outside {}",
                    service.algorithm,
                    text(selection.inside),
                    text(selection.outside)
                ),
            );
        }
        for (set, name) in
            service.all.iter().zip(["all4", "all6"]).chain(service.local.iter().zip(["local4", "local6"]))
        {
            for index in &set.members {
                let Some(endpoint) = declared.endpoints.get(*index as usize) else { continue };
                objects
                    .insert(format!("endpoint {key} {name} {}", endpoint.key), format!("weight {}", endpoint.weight));
            }
        }
        Ok(objects)
    }

    fn observe(&mut self) -> Result<Observed<String, String>, EngineError> {
        let mut state = self.kernel.state();
        state.reads += 1;
        Ok(Observed { objects: state.objects.clone(), numbers: Assignments::default() })
    }

    fn look(&mut self, keys: &[String]) -> Result<Objects<String, String>, EngineError> {
        let state = self.kernel.state();
        Ok(keys.iter().filter_map(|key| Some((key.clone(), state.objects.get(key)?.clone()))).collect())
    }

    fn apply(&mut self, operations: &[Operation<String, String>], _: &mut Assignments) -> Result<(), ApplyError> {
        self.kernel.transact(operations)
    }

    fn stale_flows(&self, _: &[Operation<String, String>]) -> Vec<FlowFilter> {
        Vec::new()
    }
}

impl Engine for FakeEngine {
    fn kind(&self) -> EngineKind {
        self.kind
    }

    fn ability(&self) -> Ability {
        self.ability.clone()
    }
}
