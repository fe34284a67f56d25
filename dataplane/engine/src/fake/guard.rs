//! A guard that programs the fake kernel: an object for each entry of a service, and one for each virtual range.

use super::FakeKernel;
use crate::assignments::Assignments;
use crate::guard::{GuardEntry, GuardInput};
use crate::node::Node;
use crate::plan::{Objects, Operation};
use crate::steps::{ApplyError, EngineError, Observed, RenderError, Steps};

/// With what the names of its objects begin.
const PREFIX: &str = "guard ";

/// See the module.
pub struct FakeGuard {
    kernel: FakeKernel,
}

impl FakeGuard {
    /// The guard of the node whose kernel this is.
    #[must_use]
    pub fn new(kernel: FakeKernel) -> Self {
        Self { kernel }
    }
}

impl Steps for FakeGuard {
    type Input = GuardInput;
    type Key = String;
    type Value = String;

    fn render_node(&self, node: &Node, _: &mut Assignments) -> Objects<String, String> {
        node.network.virtual_ranges.iter().map(|net| (format!("{PREFIX}range {net}"), "refuse".to_owned())).collect()
    }

    fn render(
        &self,
        _: &Node,
        input: &GuardInput,
        _: &mut Assignments,
    ) -> Result<Objects<String, String>, RenderError> {
        let object = |entry: &GuardEntry| match entry {
            GuardEntry::Capture { spot, port } => (format!("{PREFIX}capture {spot}"), format!("port {port}")),
            GuardEntry::Refuse { spot, how } => (format!("{PREFIX}refuse {spot}"), format!("{how:?}").to_lowercase()),
            GuardEntry::Allow { spot, sources } => (format!("{PREFIX}allow {spot}"), format!("{sources:?}")),
        };
        Ok(input.entries.iter().map(object).collect())
    }

    fn observe(&mut self) -> Result<Observed<String, String>, EngineError> {
        Ok(Observed { objects: self.kernel.read(PREFIX), numbers: Assignments::default() })
    }

    fn look(&mut self, keys: &[String]) -> Result<Objects<String, String>, EngineError> {
        Ok(self.kernel.look(keys))
    }

    fn apply(&mut self, operations: &[Operation<String, String>], _: &mut Assignments) -> Result<(), ApplyError> {
        self.kernel.transact(operations)
    }

    fn disturbed(&mut self) -> bool {
        self.kernel.take_disturbed(PREFIX)
    }
}
