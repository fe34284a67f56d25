//! An engine that is opened when it is first needed. What opening costs (child processes, kernel modules) is then paid by
//! those who use it, and by nobody else.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::path::PathBuf;

use vipd_engine::{
    ApplyError, Assignments, Engine, EngineError, FlowFilter, GuardEntry, Hashed, Node, Objects, Observed, Operation,
    Plan, RenderError, ServiceCounters, Steps, Sysctl,
};
use vipd_model::feature::Ability;
use vipd_model::{EndpointKey, EngineKind, Place, Problem, ProblemCode, Selected, ServiceKey};

type Open<E> = Box<dyn Fn() -> Result<E, String> + Send>;

/// See the module. Until it is open it has nothing in the kernel: who may have left something there opens it at once.
pub(super) struct Lazy<E> {
    kind: EngineKind,
    ability: Ability,
    open: Open<E>,
    engine: OnceCell<E>,
    /// It has read the kernel, from which its own books begin.
    observed: bool,
    /// Made before the engine first writes: where it is, a later process opens the engine at once.
    mark: PathBuf,
}

impl<E: Engine> Lazy<E> {
    /// An engine that `open` opens; it can do what `ability` says.
    pub(super) fn new(kind: EngineKind, ability: Ability, mark: PathBuf, open: Open<E>) -> Self {
        Self { kind, ability, open, engine: OnceCell::new(), observed: false, mark }
    }

    /// Opens it now.
    ///
    /// # Errors
    /// Why it cannot run here, in words.
    pub(super) fn opened(mut self) -> Result<Self, String> {
        self.ability = self.engine()?.ability();
        Ok(self)
    }

    fn engine(&self) -> Result<&E, String> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let engine = (self.open)()?;
        tracing::info!(engine = %self.kind, "opened: a service needs it");
        Ok(self.engine.get_or_init(|| engine))
    }
}

impl<E: Engine> Steps for Lazy<E> {
    type Input = Selected;
    type Key = E::Key;
    type Value = E::Value;

    fn render_node(&self, node: &Node, numbers: &mut Assignments) -> Objects<E::Key, E::Value> {
        // If it cannot be opened, the services say so.
        self.engine().map(|engine| engine.render_node(node, numbers)).unwrap_or_default()
    }

    fn render(
        &self,
        node: &Node,
        service: &Selected,
        numbers: &mut Assignments,
    ) -> Result<Objects<E::Key, E::Value>, RenderError> {
        let unusable = |message| RenderError { problem: Problem::new(ProblemCode::EngineUnusable, "", message) };
        self.engine().map_err(unusable)?.render(node, service, numbers)
    }

    fn plan(&self, have: &Objects<E::Key, E::Value>, want: &Objects<E::Key, E::Value>) -> Plan<E::Key, E::Value> {
        self.engine.get().map_or_else(|| Plan::difference(have, want), |engine| engine.plan(have, want))
    }

    fn observe(&mut self) -> Result<Observed<E::Key, E::Value>, EngineError> {
        let Some(engine) = self.engine.get_mut() else { return Ok(Observed::default()) };
        self.observed = true;
        engine.observe()
    }

    fn look(&mut self, keys: &[E::Key]) -> Result<Objects<E::Key, E::Value>, EngineError> {
        self.engine.get_mut().map_or_else(|| Ok(Objects::new()), |engine| engine.look(keys))
    }

    fn apply(
        &mut self,
        operations: &[Operation<E::Key, E::Value>],
        numbers: &mut Assignments,
    ) -> Result<(), ApplyError> {
        if operations.is_empty() {
            return Ok(());
        }
        let Some(engine) = self.engine.get_mut() else {
            return Err(ApplyError::nothing(format!("engine {} is not open", self.kind)));
        };
        if !self.mark.exists() {
            std::fs::write(&self.mark, b"").map_err(|error| {
                let mark = self.mark.display();
                ApplyError::nothing(format!(
                    "{mark} cannot be written, by which a later start finds our rules: {error}"
                ))
            })?;
        }
        if !std::mem::replace(&mut self.observed, true) {
            let found = engine.observe().map_err(|error| ApplyError::nothing(error.to_string()))?;
            if !found.objects.is_empty() {
                return Err(ApplyError::unknown("the kernel has objects of ours that no start has found"));
            }
        }
        engine.apply(operations, numbers)
    }

    fn disturbed(&mut self) -> bool {
        self.engine.get_mut().is_some_and(Steps::disturbed)
    }

    fn disturber(&mut self) -> Option<String> {
        self.engine.get_mut()?.disturber()
    }

    fn sysctls(&self) -> Vec<Sysctl> {
        self.engine.get().map(Steps::sysctls).unwrap_or_default()
    }

    fn concerns(&self, key: &E::Key, place: Place, port: u16) -> bool {
        self.engine.get().is_none_or(|engine| engine.concerns(key, place, port))
    }

    fn stale_flows(&self, operations: &[Operation<E::Key, E::Value>]) -> Vec<FlowFilter> {
        self.engine.get().map(|engine| engine.stale_flows(operations)).unwrap_or_default()
    }

    fn cleanup(&mut self) -> Result<u64, EngineError> {
        let removed = self.engine.get_mut().map_or(Ok(0), Steps::cleanup)?;
        let _ = std::fs::remove_file(&self.mark);
        Ok(removed)
    }
}

impl<E: Engine> Engine for Lazy<E> {
    fn kind(&self) -> EngineKind {
        self.kind
    }

    fn ability(&self) -> Ability {
        self.ability.clone()
    }

    fn guard(&self, node: &Node, service: &Selected, numbers: &Assignments) -> Vec<GuardEntry> {
        self.engine.get().map(|engine| engine.guard(node, service, numbers)).unwrap_or_default()
    }

    fn carries_flows(&self) -> bool {
        self.engine.get().is_some_and(Engine::carries_flows)
    }

    fn remembered(&mut self, service: &Selected, client: IpAddr) -> Option<EndpointKey> {
        self.engine.get_mut()?.remembered(service, client)
    }

    fn hashed(&mut self, service: &Selected, flow: &Hashed) -> Option<EndpointKey> {
        self.engine.get_mut()?.hashed(service, flow)
    }

    fn counters(&mut self, services: &[ServiceKey]) -> Result<Vec<ServiceCounters>, EngineError> {
        self.engine.get_mut().map_or(Ok(Vec::new()), |engine| engine.counters(services))
    }

    fn findings(&self) -> Vec<Problem> {
        self.engine.get().map(Engine::findings).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use vipd_engine::Runner;
    use vipd_engine::fake::{FakeEngine, FakeKernel};
    use vipd_model::{Algorithm, Definition, Revisions, Scheduler, Service, select};

    use super::*;

    const KIND: EngineKind = EngineKind::Iptables;

    fn lazy(kernel: &FakeKernel, mark: PathBuf, opened: &Arc<AtomicU32>, fails: bool) -> Lazy<FakeEngine> {
        let (kernel, opened) = (kernel.clone(), Arc::clone(opened));
        let open = move || {
            opened.fetch_add(1, Ordering::Relaxed);
            if fails { Err("no iptables-restore (test)".to_owned()) } else { Ok(FakeEngine::new(KIND, kernel.clone())) }
        };
        Lazy::new(KIND, vipd_model::feature::designed(KIND), mark, Box::new(open))
    }

    fn web() -> (ServiceKey, Option<Selected>) {
        let service = Service {
            key: ServiceKey::new("ops", "web").unwrap(),
            definition: Arc::new(Definition {
                frontends: vec![vipd_model::Frontend::vip([10, 96, 0, 1].into(), 80)],
                ..Definition::default()
            }),
            scheduler: Scheduler::default(),
            endpoints: Arc::from([]),
            leaving: Arc::from([]),
            revisions: Revisions::default(),
            waiting: Vec::new(),
        };
        (service.key.clone(), Some(select(&Arc::new(service), KIND, Algorithm::Random)))
    }

    #[test]
    fn it_is_opened_by_its_first_service_and_leaves_a_mark_before_it_writes() {
        let (kernel, opened) = (FakeKernel::default(), Arc::default());
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("used");
        let mut runner = Runner::start(lazy(&kernel, mark.clone(), &opened, false)).unwrap().resting();
        runner.set_node(Node::default()).unwrap();
        runner.release().unwrap();
        assert_eq!(runner.check().unwrap(), []);
        assert!(!runner.steps_mut().disturbed() && runner.steps().findings().is_empty());
        assert_eq!(opened.load(Ordering::Relaxed), 0);
        assert!(runner.make(vec![web()]).outcomes[0].1.is_ok());
        assert_eq!((opened.load(Ordering::Relaxed), kernel.objects().len()), (1, 1));
        assert!(mark.exists());
        assert_eq!(runner.steps_mut().cleanup().unwrap(), 1);
        assert!(!mark.exists());
    }

    #[test]
    fn one_that_cannot_be_opened_says_so_to_each_service() {
        let (kernel, opened) = (FakeKernel::default(), Arc::default());
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("used");
        let mut runner = Runner::start(lazy(&kernel, mark.clone(), &opened, true)).unwrap().resting();
        let made = runner.make(vec![web()]);
        let problem = made.outcomes[0].1.as_ref().unwrap_err();
        assert_eq!(
            (problem.code, problem.message.as_str()),
            (ProblemCode::EngineUnusable, "no iptables-restore (test)")
        );
        assert!(!mark.exists());
        assert!(lazy(&kernel, mark, &opened, true).opened().is_err());
    }
}
