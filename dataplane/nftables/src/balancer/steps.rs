//! The balancer itself: the four steps over selected services, on a socket that owns its table.

use std::net::IpAddr;

use vipd_engine::{
    ApplyError, Assignments, Engine, EngineError, FlowFilter, Hashed, Node, Objects, Observed, Operation, RenderError,
    ServiceCounters, Steps,
};
use vipd_model::{Ability, EndpointKey, EngineKind, Family, Place, Selected, ServiceKey};
use vipd_netlink::nft::{Batch, Nft, TableFlags};

use super::{
    apply::{self, Target},
    counters::{self, Past},
    flows, hash,
    names::TABLE,
    nets::Nets,
    object::{FrontendPlace, Key, Value},
    observe, probe, remembered, render,
};
use crate::{
    generation::Generation,
    owner::{self, Unusable, failed},
    strangers::Strangers,
};

/// Above so many objects everything is read at once.
const FEW: usize = 300;

/// The balancer by nftables, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Nftables {
    nft: Nft,
    flags: TableFlags,
    ability: Ability,
    generation: Generation,
    strangers: Strangers,
    nets: Nets,
    past: Past,
    /// The table is this socket's: the kernel keeps everybody else out.
    owned: bool,
}

impl Nftables {
    /// Finds out what this node can do, and opens the balancer. Writes nothing.
    ///
    /// Where the kernel knows `owner` and `persist`, the table is this socket's alone while the process lives, as with
    /// [`Guard::open`](crate::Guard::open).
    ///
    /// # Errors
    /// [`Unusable`] says what is missing, or that another process owns the table.
    pub fn open() -> Result<Self, Unusable> {
        let mut engine = Self::open_without_owner()?;
        engine.flags = owner::flags(&mut engine.nft, &[TABLE])?;
        Ok(engine)
    }

    /// As [`Nftables::open`], with a table that anybody may change and flush; drift repair puts it back.
    ///
    /// # Errors
    /// As [`Nftables::open`].
    pub fn open_without_owner() -> Result<Self, Unusable> {
        let mut nft = Nft::open().map_err(|error| Unusable::because(&error))?;
        probe::layout(&mut nft)?;
        owner::wait_for_others(&mut nft, &[TABLE])?;
        let ability = probe::ability(&mut nft);
        Ok(Self {
            nft,
            flags: TableFlags::default(),
            ability,
            generation: Generation::default(),
            strangers: Strangers::default(),
            nets: Nets::default(),
            past: Past::default(),
            owned: false,
        })
    }
}

impl Steps for Nftables {
    type Input = Selected;
    type Key = Key;
    type Value = Value;

    fn render_node(&self, node: &Node, _: &mut Assignments) -> Objects<Key, Value> {
        render::node(node, self.flags)
    }

    fn render(
        &self,
        node: &Node,
        selected: &Selected,
        numbers: &mut Assignments,
    ) -> Result<Objects<Key, Value>, RenderError> {
        render::service(node, selected, numbers)
    }

    fn observe(&mut self) -> Result<Observed<Key, Value>, EngineError> {
        let reading = "read our nftables table";
        let generation = self.nft.generation().map_err(|error| failed(reading, &error))?;
        let found = observe::all(&mut self.nft).map_err(|error| failed(reading, &error))?;
        self.generation.read_at(generation);
        self.owned = owner::is_ours(&mut self.nft, &[TABLE]);
        self.strangers.listen(self.owned);
        self.nets.rebuild(found.objects.values().filter_map(Value::pool));
        Ok(Observed { objects: found.objects, numbers: found.numbers })
    }

    fn look(&mut self, keys: &[Key]) -> Result<Objects<Key, Value>, EngineError> {
        if keys.len() <= FEW {
            return observe::some(&mut self.nft, keys).map_err(|error| failed("read objects of ours", &error));
        }
        let mut objects = self.observe()?.objects;
        objects.retain(|key, _| keys.binary_search(key).is_ok());
        Ok(objects)
    }

    fn apply(&mut self, operations: &[Operation<Key, Value>], numbers: &mut Assignments) -> Result<(), ApplyError> {
        let Self { nft, nets, past, strangers, .. } = self;
        let mut target = Target { nft, nets, past, numbers, commits: 0 };
        let applied = strangers.aside(|| apply::all(&mut target, operations));
        let commits = target.commits;
        if !self.owned {
            if let Ok(now) = self.nft.generation() {
                self.generation.committed(commits, now);
            }
            self.owned = self.flags == TableFlags::OWNED && owner::is_ours(&mut self.nft, &[TABLE]);
            self.strangers.listen(self.owned);
        }
        applied
    }

    /// Whenever anybody has changed any table; once the table is owned, only for what came before.
    fn disturbed(&mut self) -> bool {
        if self.owned {
            return self.generation.take_noticed();
        }
        self.nft.generation().map_or(true, |now| self.generation.take_moved(now))
    }

    fn bears_others(&self, key: &Key) -> bool {
        matches!(key, Key::Table | Key::Set(_) | Key::Chain(_) | Key::Prefix { .. })
    }

    /// Of the frontends only the one that the packet is for; what is there for all services decides nothing by itself.
    fn concerns(&self, key: &Key, place: Place, port: u16) -> bool {
        match (key, place) {
            (Key::Set(_) | Key::Prefix { .. }, _) => false,
            (Key::Frontend(frontend), place) => {
                let here = match (frontend.place, place) {
                    (FrontendPlace::Vip(own), Place::Address(address)) => own == address,
                    (FrontendPlace::At(own), Place::Node(family)) => Family::of(own) == family,
                    (FrontendPlace::Node(own), Place::Node(family)) => own == family,
                    _ => false,
                };
                here && frontend.port == port
            }
            _ => true,
        }
    }

    fn disturber(&mut self) -> Option<String> {
        self.strangers.last()
    }

    fn stale_flows(&self, operations: &[Operation<Key, Value>]) -> Vec<FlowFilter> {
        flows::stale(operations)
    }

    fn cleanup(&mut self) -> Result<u64, EngineError> {
        let objects = self.observe()?.objects.len() as u64;
        let mut batch = Batch::new(TABLE);
        batch.delete_table();
        match self.nft.commit(&mut batch) {
            Err(error) if !error.is_not_found() => Err(failed("delete our nftables table", &error)),
            _ => Ok(objects),
        }
    }
}

impl Engine for Nftables {
    fn kind(&self) -> EngineKind {
        EngineKind::Nftables
    }

    fn ability(&self) -> Ability {
        self.ability.clone()
    }

    fn remembered(&mut self, service: &Selected, client: IpAddr) -> Option<EndpointKey> {
        remembered::endpoint(&mut self.nft, &service.service.key, client)
    }

    fn hashed(&mut self, service: &Selected, flow: &Hashed) -> Option<EndpointKey> {
        let set = service.set(flow.serve, Family::of(flow.destination))?;
        hash::pinned(service, set, flow.source, flow.source_port)
    }

    fn counters(&mut self, services: &[ServiceKey]) -> Result<Vec<ServiceCounters>, EngineError> {
        counters::read(&mut self.nft, &self.past, services)
    }
}
