//! The guard itself: the four steps over guard entries, on a socket that owns our tables.

use vipd_engine::{
    ApplyError, Assignments, EngineError, FlowFilter, GuardInput, Node, Objects, Observed, Operation, RenderError,
    Steps,
};
use vipd_netlink::nft::{Batch, Nft, TableFlags};

use super::{
    apply, flows,
    names::TableName,
    object::{Key, Object, Value},
    observe, probe, render,
};
use crate::{
    generation::Generation,
    owner::{self, Unusable, failed},
    strangers::Strangers,
};

/// Above so many elements a dump of everything costs less than a question for each.
const FEW: usize = 1000;

/// The guard by nftables, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Guard {
    nft: Nft,
    flags: TableFlags,
    generation: Generation,
    strangers: Strangers,
    /// Both tables are this socket's: the kernel keeps everybody else out.
    owned: bool,
}

impl Guard {
    /// Finds out whether this node lets us, and opens the guard. Writes nothing.
    ///
    /// Where the kernel knows `owner` and `persist`, our tables are this socket's alone while the process lives: nobody
    /// else's `nft flush ruleset` touches them. When it dies they stay, ownerless, until the next process takes them
    /// over with its first change; in between a flush would take them, and the start repairs that.
    ///
    /// # Errors
    /// [`Unusable`] says what is missing, or that another process owns the tables.
    pub fn open() -> Result<Self, Unusable> {
        let mut guard = Self::open_without_owner()?;
        guard.flags = owner::flags(&mut guard.nft, &TableName::ALL.map(TableName::as_str))?;
        Ok(guard)
    }

    /// As [`Guard::open`], with tables that anybody may change and flush; drift repair puts them back.
    ///
    /// # Errors
    /// As [`Guard::open`].
    pub fn open_without_owner() -> Result<Self, Unusable> {
        let mut nft = Nft::open().map_err(|error| Unusable::because(&error))?;
        probe::layout(&mut nft)?;
        owner::wait_for_others(&mut nft, &TableName::ALL.map(TableName::as_str))?;
        Ok(Self {
            nft,
            flags: TableFlags::default(),
            generation: Generation::default(),
            strangers: Strangers::default(),
            owned: false,
        })
    }

    /// Whether this node lets a guard be, without opening one.
    ///
    /// # Errors
    /// [`Unusable`] says what is missing.
    pub fn probe() -> Result<(), Unusable> {
        let mut nft = Nft::open().map_err(|error| Unusable::because(&error))?;
        probe::layout(&mut nft)
    }

    fn owns_tables(&mut self) -> bool {
        owner::is_ours(&mut self.nft, &TableName::ALL.map(TableName::as_str))
    }
}

impl Steps for Guard {
    type Input = GuardInput;
    type Key = Key;
    type Value = Value;

    fn render_node(&self, node: &Node, _: &mut Assignments) -> Objects<Key, Value> {
        render::node(node, self.flags)
    }

    fn render(&self, _: &Node, input: &GuardInput, _: &mut Assignments) -> Result<Objects<Key, Value>, RenderError> {
        render::service(input)
    }

    fn observe(&mut self) -> Result<Observed<Key, Value>, EngineError> {
        let reading = "read our nftables tables";
        let generation = self.nft.generation().map_err(|error| failed(reading, &error))?;
        let objects = observe::all(&mut self.nft).map_err(|error| failed(reading, &error))?;
        self.generation.read_at(generation);
        self.owned = self.owns_tables();
        self.strangers.listen(self.owned);
        Ok(Observed { objects, numbers: Assignments::default() })
    }

    fn look(&mut self, keys: &[Key]) -> Result<Objects<Key, Value>, EngineError> {
        if keys.len() <= FEW && keys.iter().all(|key| matches!(key.object, Object::Element(..))) {
            return observe::elements(&mut self.nft, keys).map_err(|error| failed("read elements", &error));
        }
        let mut objects = self.observe()?.objects;
        objects.retain(|key, _| keys.binary_search(key).is_ok());
        Ok(objects)
    }

    fn apply(&mut self, operations: &[Operation<Key, Value>], _: &mut Assignments) -> Result<(), ApplyError> {
        let mut commits = 0;
        let Self { nft, strangers, .. } = self;
        let applied = strangers.aside(|| apply::all(nft, operations, &mut commits));
        if !self.owned {
            if let Ok(now) = self.nft.generation() {
                self.generation.committed(commits, now);
            }
            self.owned = self.flags == TableFlags::OWNED && self.owns_tables();
            self.strangers.listen(self.owned);
        }
        applied
    }

    /// Whenever anybody has changed any table; once the tables are owned, only for what came before.
    fn disturbed(&mut self) -> bool {
        if self.owned {
            return self.generation.take_noticed();
        }
        self.nft.generation().map_or(true, |now| self.generation.take_moved(now))
    }

    fn bears_others(&self, key: &Key) -> bool {
        !matches!(key.object, Object::Element(..))
    }

    fn disturber(&mut self) -> Option<String> {
        self.strangers.last()
    }

    fn stale_flows(&self, operations: &[Operation<Key, Value>]) -> Vec<FlowFilter> {
        flows::stale(operations)
    }

    fn cleanup(&mut self) -> Result<u64, EngineError> {
        let objects = self.observe()?.objects.len() as u64;
        for name in TableName::ALL.into_iter().rev() {
            let mut batch = Batch::new(name.as_str());
            batch.delete_table();
            match self.nft.commit(&mut batch) {
                Err(error) if !error.is_not_found() => return Err(failed("delete our nftables tables", &error)),
                _ => {}
            }
        }
        Ok(objects)
    }
}
