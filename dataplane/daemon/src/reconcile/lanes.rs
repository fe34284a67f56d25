//! Engines and guard behind one face each, so that the reconciler need not know their objects: it speaks of services,
//! outcomes and text.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use vipd_engine::runner::{Change, Drift, Made, Outcome, Seen};
use vipd_engine::{
    Engine, EngineError, FlowFilter, GuardEntry, GuardInput, Hashed, Node, Operation, Plan, Runner, ServiceCounters,
    Steps, Sysctl,
};
use vipd_model::feature::Ability;
use vipd_model::{EndpointKey, EngineKind, Place, Problem, Selected, ServiceKey};

use super::clean::Cleaner;
use super::worker::{Gone, Worker};

/// What came of the first half of a batch at a balancer.
#[derive(Debug, Default)]
pub struct Balanced {
    /// One for every service.
    pub outcomes: Vec<Outcome>,
    /// What the guard must do for those that succeeded.
    pub guard: Vec<GuardInput>,
    /// To be forgotten when all is in force.
    pub stale: Vec<FlowFilter>,
}

/// The endpoints that an engine binds a flow to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// By affinity.
    pub remembered: Option<EndpointKey>,
    /// By its hash.
    pub hashed: Option<EndpointKey>,
}

/// How a kernel change is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// New.
    Add,
    /// Otherwise than before.
    Change,
    /// Gone.
    Remove,
}

/// One kernel change, printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelChange {
    /// What is done.
    pub action: Action,
    /// To what.
    pub object: String,
}

/// What balancer and guard have in common.
pub trait Lane: Send {
    /// See [`Runner::set_node`].
    ///
    /// # Errors
    /// If it was not applied.
    fn set_node(&mut self, node: &Arc<Node>) -> Result<Vec<FlowFilter>, Problem>;
    /// See [`Runner::finish`].
    fn finish(&mut self, services: &[ServiceKey]) -> Made;
    /// See [`Runner::check`].
    ///
    /// # Errors
    /// If the kernel cannot be read.
    fn check(&mut self) -> Result<Vec<Drift>, EngineError>;
    /// See [`Runner::check_service`].
    ///
    /// # Errors
    /// If the kernel cannot be read.
    fn check_service(&mut self, service: &ServiceKey) -> Result<Vec<Drift>, EngineError>;
    /// See [`Runner::view`].
    ///
    /// # Errors
    /// If the kernel cannot be read.
    fn view(&mut self, service: &ServiceKey, at: Option<(Place, u16)>) -> Result<Vec<Seen>, EngineError>;
    /// See [`Steps::disturbed`].
    fn disturbed(&mut self) -> bool;
    /// See [`Steps::disturber`].
    fn disturber(&mut self) -> Option<String>;
    /// See [`Steps::sysctls`].
    fn sysctls(&self) -> Vec<Sysctl>;
    /// See [`Runner::repair`].
    fn repair(&mut self) -> Made;
    /// See [`Runner::release`].
    ///
    /// # Errors
    /// If the strays could not be removed.
    fn release(&mut self) -> Result<usize, Problem>;
    /// How many objects are in force.
    fn object_count(&self) -> usize;
    /// Removes everything of ours.
    ///
    /// # Errors
    /// What could not be removed.
    fn cleanup(&mut self) -> Result<u64, EngineError>;
}

/// A balancer, whatever its objects.
pub trait Balancer: Lane {
    /// Which engine.
    fn kind(&self) -> EngineKind;
    /// What it can do here.
    fn ability(&self) -> Ability;
    /// See [`Engine::carries_flows`].
    fn carries_flows(&self) -> bool;
    /// The first half of a batch.
    fn make(&mut self, batch: Vec<Change<Selected>>) -> Balanced;
    /// What a batch would do.
    fn dry_run(&self, batch: Vec<Change<Selected>>) -> (Vec<KernelChange>, Vec<Outcome>);
    /// What the guard would be told.
    fn guard(&self, services: &[Selected]) -> Vec<GuardInput>;
    /// See [`Engine::remembered`] and [`Engine::hashed`].
    fn pins(&mut self, service: &Selected, client: Option<IpAddr>, flow: Option<&Hashed>) -> Pins;
    /// See [`Engine::counters`].
    ///
    /// # Errors
    /// If they cannot be read.
    fn counters(&mut self, services: &[ServiceKey]) -> Result<Vec<ServiceCounters>, EngineError>;
    /// See [`Engine::findings`].
    fn findings(&self) -> Vec<Problem>;
}

/// The guard, whatever its objects.
pub trait GuardLane: Lane {
    /// The first half of a batch.
    fn make(&mut self, batch: Vec<Change<GuardInput>>) -> Made;
    /// What a batch would do.
    fn dry_run(&self, batch: Vec<Change<GuardInput>>) -> (Vec<KernelChange>, Vec<Outcome>);
}

/// Workers by engine.
pub type Balancers = BTreeMap<EngineKind, Worker<dyn Balancer>>;

/// Everything that moves packets.
#[derive(Clone, Default)]
pub struct Lanes {
    /// By engine.
    pub balancers: Balancers,
    /// Engines whose established flows hang on their objects: see [`Engine::carries_flows`].
    pub carriers: BTreeSet<EngineKind>,
    /// Absent without CAP_NET_ADMIN.
    pub guard: Option<Worker<dyn GuardLane>>,
    /// Absent where nothing is tracked.
    pub cleaner: Option<Worker<dyn Cleaner>>,
}

impl Lanes {
    /// Asks the balancers one after the other, then the guard, whose captures lead to them. Stops at the first answer that
    /// is an error; the names are `userspace`, `nftables`, …, `guard`.
    ///
    /// # Errors
    /// [`Gone`] if a worker thread died; inside, the first error.
    pub async fn ask<T, E>(
        &self,
        ask: impl Fn(&mut dyn Lane) -> Result<T, E> + Clone + Send + 'static,
    ) -> Result<Result<Vec<(String, T)>, E>, Gone>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let mut answers = Vec::new();
        for (engine, worker) in &self.balancers {
            let ask = ask.clone();
            match worker.call(move |balancer| ask(balancer)).await? {
                Ok(answer) => answers.push((engine.to_string(), answer)),
                Err(error) => return Ok(Err(error)),
            }
        }
        if let Some(guard) = &self.guard {
            match guard.call(move |guard| ask(guard)).await? {
                Ok(answer) => answers.push(("guard".to_owned(), answer)),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(answers))
    }
}

impl<S: Steps> Lane for Runner<S> {
    fn set_node(&mut self, node: &Arc<Node>) -> Result<Vec<FlowFilter>, Problem> {
        Runner::set_node(self, Node::clone(node))
    }

    fn finish(&mut self, services: &[ServiceKey]) -> Made {
        Runner::finish(self, services)
    }

    fn check(&mut self) -> Result<Vec<Drift>, EngineError> {
        Runner::check(self)
    }

    fn check_service(&mut self, service: &ServiceKey) -> Result<Vec<Drift>, EngineError> {
        Runner::check_service(self, service)
    }

    fn view(&mut self, service: &ServiceKey, at: Option<(Place, u16)>) -> Result<Vec<Seen>, EngineError> {
        Runner::view(self, service, at)
    }

    fn disturbed(&mut self) -> bool {
        self.steps_mut().disturbed()
    }

    fn disturber(&mut self) -> Option<String> {
        self.steps_mut().disturber()
    }

    fn sysctls(&self) -> Vec<Sysctl> {
        self.steps().sysctls()
    }

    fn repair(&mut self) -> Made {
        Runner::repair(self)
    }

    fn release(&mut self) -> Result<usize, Problem> {
        Runner::release(self)
    }

    fn object_count(&self) -> usize {
        Runner::object_count(self)
    }

    fn cleanup(&mut self) -> Result<u64, EngineError> {
        self.steps_mut().cleanup()
    }
}

fn printed<K: std::fmt::Display, V: std::fmt::Display>(plan: &Plan<K, V>) -> Vec<KernelChange> {
    let print = |operation: &Operation<K, V>| match operation {
        Operation::Add { key, value } => KernelChange { action: Action::Add, object: format!("{key} {value}") },
        Operation::Change { key, before, after } => {
            KernelChange { action: Action::Change, object: format!("{key} {before} → {after}") }
        }
        Operation::Remove { key, before } => KernelChange { action: Action::Remove, object: format!("{key} {before}") },
    };
    plan.make.iter().chain(&plan.finish).map(print).collect()
}

impl<E: Engine> Balancer for Runner<E> {
    fn kind(&self) -> EngineKind {
        self.steps().kind()
    }

    fn ability(&self) -> Ability {
        self.steps().ability()
    }

    fn carries_flows(&self) -> bool {
        self.steps().carries_flows()
    }

    fn dry_run(&self, batch: Vec<Change<Selected>>) -> (Vec<KernelChange>, Vec<Outcome>) {
        let (plan, outcomes) = Runner::dry_run(self, batch);
        (printed(&plan), outcomes)
    }

    fn make(&mut self, batch: Vec<Change<Selected>>) -> Balanced {
        let inputs: BTreeMap<ServiceKey, Option<Selected>> = batch.iter().cloned().collect();
        let made = Runner::make(self, batch);
        let mut guard = Vec::new();
        for (key, outcome) in &made.outcomes {
            if outcome.is_ok()
                && let Some(Some(selected)) = inputs.get(key)
            {
                guard.push(self.guard_input(selected));
            }
        }
        Balanced { outcomes: made.outcomes, guard, stale: made.stale }
    }

    fn guard(&self, services: &[Selected]) -> Vec<GuardInput> {
        services.iter().map(|selected| self.guard_input(selected)).collect()
    }

    fn pins(&mut self, service: &Selected, client: Option<IpAddr>, flow: Option<&Hashed>) -> Pins {
        let engine = self.steps_mut();
        Pins {
            remembered: client.and_then(|client| engine.remembered(service, client)),
            hashed: flow.and_then(|flow| engine.hashed(service, flow)),
        }
    }

    fn counters(&mut self, services: &[ServiceKey]) -> Result<Vec<ServiceCounters>, EngineError> {
        self.steps_mut().counters(services)
    }

    fn findings(&self) -> Vec<Problem> {
        self.steps().findings()
    }
}

/// Names what the guard is asked for by a runner.
trait GuardAsked {
    fn guard_input(&self, selected: &Selected) -> GuardInput;
}

impl<E: Engine> GuardAsked for Runner<E> {
    fn guard_input(&self, selected: &Selected) -> GuardInput {
        let mut entries: Vec<GuardEntry> = self.steps().guard(self.node(), selected, self.numbers());
        entries.sort();
        GuardInput { key: selected.service.key.clone(), entries }
    }
}

impl<G: Steps<Input = GuardInput>> GuardLane for Runner<G> {
    fn make(&mut self, batch: Vec<Change<GuardInput>>) -> Made {
        Runner::make(self, batch)
    }

    fn dry_run(&self, batch: Vec<Change<GuardInput>>) -> (Vec<KernelChange>, Vec<Outcome>) {
        let (plan, outcomes) = Runner::dry_run(self, batch);
        (printed(&plan), outcomes)
    }
}
