//! The node's own objects: tables, chains, what services share by design. A runner that rests has them only while it has
//! services, so that an engine that serves nobody costs no packet anything.

use std::collections::BTreeSet;

use vipd_model::Problem;

use super::{Change, Runner, problem};
use crate::flow::FlowFilter;
use crate::node::Node;
use crate::steps::Steps;

impl<S: Steps> Runner<S> {
    /// From now on it has objects only while it has services.
    #[must_use]
    pub fn resting(mut self) -> Self {
        self.rests = true;
        self
    }

    /// Renders and applies the node's own objects. Services with node ports must be made again afterwards.
    ///
    /// # Errors
    /// If they were not applied; the node as it was stays.
    pub fn set_node(&mut self, node: Node) -> Result<Vec<FlowFilter>, Problem> {
        let mut stale = Vec::new();
        if self.is_asleep() && self.services.is_empty() {
            self.node = node;
        } else {
            self.program_node(node, &mut stale)?;
        }
        Ok(stale)
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.rests && self.node_keys.is_empty()
    }

    /// Makes the node's own objects before the first service's.
    pub(super) fn wake(&mut self, stale: &mut Vec<FlowFilter>) -> Result<(), Problem> {
        if self.is_asleep() { self.program_node(self.node.clone(), stale) } else { Ok(()) }
    }

    /// Removes them after the last service's. What cannot be removed now is nobody's, and the next check removes it. Not
    /// while holding: what the kernel has of services that are not declared yet lives by them.
    pub(super) fn sleep(&mut self) {
        if !self.rests || self.holding || !self.services.is_empty() || !self.retiring.is_empty() {
            return;
        }
        let gone = std::mem::take(&mut self.node_keys);
        let unwanted: Vec<_> = gone.into_iter().filter(|key| self.held.unwant(key)).collect();
        // Without services nothing of it has flows.
        let _ = self.remove_alone(&unwanted, &mut Vec::new());
    }

    /// Whether a batch would take the last service away.
    pub(super) fn would_sleep(&self, batch: &[Change<S::Input>]) -> bool {
        let goes = |key| batch.iter().any(|(other, input)| other == key && input.is_none());
        self.rests
            && !self.holding
            && batch.iter().all(|(_, input)| input.is_none())
            && self.services.len() <= batch.len()
            && self.services.keys().all(goes)
    }

    fn program_node(&mut self, node: Node, stale: &mut Vec<FlowFilter>) -> Result<(), Problem> {
        let objects = self.steps.render_node(&node, &mut self.numbers);
        self.apply_alone(&objects, stale).map_err(|error| problem(&error))?;
        let keys: BTreeSet<_> = objects.keys().cloned().collect();
        let before: BTreeSet<S::Key> = self.node_keys.clone();
        for (key, value) in &objects {
            self.held.want(key, value, !before.contains(key));
        }
        self.node_keys = keys;
        self.node = node;
        let gone: Vec<_> = before.into_iter().filter(|key| !self.node_keys.contains(key)).collect();
        let unwanted: Vec<_> = gone.into_iter().filter(|key| self.held.unwant(key)).collect();
        self.remove_alone(&unwanted, stale).map_err(|error| problem(&error))
    }
}
