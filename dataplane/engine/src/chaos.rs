//! An engine that fails on purpose, wrapped around any other, or around a guard. Its failures cannot be taken for real
//! ones: every message says "chaos".

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vipd_model::feature::Ability;
use vipd_model::{EndpointKey, EngineKind, Place, Problem, Selected, ServiceKey};

use crate::assignments::Assignments;
use crate::flow::FlowFilter;
use crate::guard::GuardEntry;
use crate::node::Node;
use crate::plan::{Objects, Operation, Plan};
use crate::steps::{ApplyError, Engine, EngineError, Hashed, Observed, RenderError, ServiceCounters, Steps, Sysctl};

/// How often each mischief happens, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mischief {
    /// `apply` fails and applied nothing.
    pub fail: u16,
    /// `apply` fails and applied a prefix.
    pub half: u16,
    /// `apply` fails and applied everything (a lost acknowledgement).
    pub deny: u16,
    /// `apply` says OK and applied only a prefix: what the next check must find.
    pub lie: u16,
    /// `observe` or `look` fails.
    pub blind: u16,
    /// The call takes long before it returns.
    pub hang: u16,
}

/// The knobs and the record, shared with the test.
#[derive(Clone)]
pub struct Chaos(Arc<Mutex<State>>);

struct State {
    seed: u64,
    mischief: Mischief,
    lies: u64,
    failures: u64,
    hangs: u64,
}

impl Chaos {
    /// The same seed makes the same failures for the same calls.
    #[must_use]
    pub fn new(seed: u64, mischief: Mischief) -> Self {
        Self(Arc::new(Mutex::new(State { seed, mischief, lies: 0, failures: 0, hangs: 0 })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on as told; `Mischief::default()` is peace.
    pub fn set(&self, mischief: Mischief) {
        self.state().mischief = mischief;
    }

    /// How often `apply` said OK and had not done all of it.
    #[must_use]
    pub fn lies(&self) -> u64 {
        self.state().lies
    }

    /// How often it failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Takes the hangs since the last call: whoever drives the engine waits that often, in its own notion of time.
    #[must_use]
    pub fn take_hangs(&self) -> u64 {
        std::mem::take(&mut self.state().hangs)
    }
}

impl State {
    /// xorshift64*: enough to choose failures by.
    fn draw(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        (self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below.max(1)
    }

    fn happens(&mut self, thousandths: u16) -> bool {
        self.draw(1000) < u64::from(thousandths)
    }

    fn maybe_hang(&mut self) {
        if self.happens(self.mischief.hang) {
            self.hangs += 1;
        }
    }

    fn is_blind(&mut self) -> bool {
        self.maybe_hang();
        self.happens(self.mischief.blind)
    }
}

/// The wrapped engine.
pub struct ChaosEngine<E> {
    engine: E,
    chaos: Chaos,
}

impl<E: Steps> ChaosEngine<E> {
    /// Wraps `engine`.
    #[must_use]
    pub fn new(engine: E, chaos: Chaos) -> Self {
        Self { engine, chaos }
    }

    fn blind(&self, operation: &'static str) -> Result<(), EngineError> {
        if self.chaos.state().is_blind() {
            return Err(EngineError { operation, message: "chaos: cannot read".to_owned(), retry: true });
        }
        Ok(())
    }
}

impl<E: Steps> Steps for ChaosEngine<E> {
    type Input = E::Input;
    type Key = E::Key;
    type Value = E::Value;

    fn render_node(&self, node: &Node, numbers: &mut Assignments) -> Objects<E::Key, E::Value> {
        self.engine.render_node(node, numbers)
    }

    fn render(
        &self,
        node: &Node,
        input: &E::Input,
        numbers: &mut Assignments,
    ) -> Result<Objects<E::Key, E::Value>, RenderError> {
        self.engine.render(node, input, numbers)
    }

    fn plan(&self, have: &Objects<E::Key, E::Value>, want: &Objects<E::Key, E::Value>) -> Plan<E::Key, E::Value> {
        self.engine.plan(have, want)
    }

    fn observe(&mut self) -> Result<Observed<E::Key, E::Value>, EngineError> {
        self.blind("observe")?;
        self.engine.observe()
    }

    fn look(&mut self, keys: &[E::Key]) -> Result<Objects<E::Key, E::Value>, EngineError> {
        self.blind("look")?;
        self.engine.look(keys)
    }

    fn apply(
        &mut self,
        operations: &[Operation<E::Key, E::Value>],
        numbers: &mut Assignments,
    ) -> Result<(), ApplyError> {
        let mut state = self.chaos.state();
        state.maybe_hang();
        let mischief = state.mischief;
        let prefix = usize::try_from(state.draw(operations.len() as u64)).unwrap_or(0);
        if state.happens(mischief.fail) {
            state.failures += 1;
            return Err(ApplyError::nothing("chaos: failed before anything"));
        }
        if state.happens(mischief.half) {
            state.failures += 1;
            drop(state);
            self.engine.apply(&operations[..prefix], numbers)?;
            return Err(ApplyError::unknown(format!("chaos: failed after {prefix} of {}", operations.len())));
        }
        if state.happens(mischief.deny) {
            state.failures += 1;
            drop(state);
            self.engine.apply(operations, numbers)?;
            return Err(ApplyError::unknown("chaos: applied, acknowledgement lost"));
        }
        if state.happens(mischief.lie) {
            state.lies += 1;
            drop(state);
            return self.engine.apply(&operations[..prefix], numbers);
        }
        drop(state);
        self.engine.apply(operations, numbers)
    }

    fn disturbed(&mut self) -> bool {
        self.engine.disturbed()
    }

    fn disturber(&mut self) -> Option<String> {
        self.engine.disturber()
    }

    fn sysctls(&self) -> Vec<Sysctl> {
        self.engine.sysctls()
    }

    fn concerns(&self, key: &E::Key, place: Place, port: u16) -> bool {
        self.engine.concerns(key, place, port)
    }

    fn stale_flows(&self, operations: &[Operation<E::Key, E::Value>]) -> Vec<FlowFilter> {
        self.engine.stale_flows(operations)
    }
}

impl<E: Engine> Engine for ChaosEngine<E> {
    fn kind(&self) -> EngineKind {
        self.engine.kind()
    }

    fn ability(&self) -> Ability {
        self.engine.ability()
    }

    fn guard(&self, node: &Node, service: &Selected, numbers: &Assignments) -> Vec<GuardEntry> {
        self.engine.guard(node, service, numbers)
    }

    fn carries_flows(&self) -> bool {
        self.engine.carries_flows()
    }

    fn remembered(&mut self, service: &Selected, client: IpAddr) -> Option<EndpointKey> {
        self.engine.remembered(service, client)
    }

    fn hashed(&mut self, service: &Selected, flow: &Hashed) -> Option<EndpointKey> {
        self.engine.hashed(service, flow)
    }

    fn counters(&mut self, services: &[ServiceKey]) -> Result<Vec<ServiceCounters>, EngineError> {
        self.engine.counters(services)
    }

    fn findings(&self) -> Vec<Problem> {
        self.engine.findings()
    }
}
