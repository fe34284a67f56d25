//! The traits: what the guard and every engine do, and what only engines do.

use std::fmt::{Debug, Display};
use std::net::IpAddr;

use vipd_model::feature::Ability;
use vipd_model::{EndpointKey, EngineKind, Place, Problem, ProblemCode, Selected, Serve, ServiceKey};

use crate::assignments::Assignments;
use crate::flow::FlowFilter;
use crate::guard::GuardEntry;
use crate::node::Node;
use crate::plan::{Objects, Operation, Plan};

/// From one service's input to objects in force.
///
/// `render` and `plan` are functions of their arguments and of what was probed at start. `observe` and `apply` block,
/// and run on a thread of the engine's own.
pub trait Steps: Send {
    /// What one service is to this layer: a [`Selected`] to a balancer, its entries to the guard.
    type Input: Send;
    /// Names an object. Its order is the order in which objects may be made: what others refer to comes first.
    type Key: Ord + Clone + Debug + Display + Send;
    /// What the object is. Printed as the kernel's own tool would print it.
    type Value: Eq + Clone + Debug + Display + Send;

    /// The objects that the node itself needs, whatever the services.
    fn render_node(&self, node: &Node, numbers: &mut Assignments) -> Objects<Self::Key, Self::Value>;

    /// The objects of one service. Objects that services share are rendered by each of them, equal; the runner counts.
    ///
    /// # Errors
    /// If this engine cannot express the service after all: it alone fails.
    fn render(
        &self,
        node: &Node,
        input: &Self::Input,
        numbers: &mut Assignments,
    ) -> Result<Objects<Self::Key, Self::Value>, RenderError>;

    /// The operations from `have` to `want`, ordered so that every prefix is safe.
    fn plan(
        &self,
        have: &Objects<Self::Key, Self::Value>,
        want: &Objects<Self::Key, Self::Value>,
    ) -> Plan<Self::Key, Self::Value> {
        Plan::difference(have, want)
    }

    /// Reads the kernel: every object of ours, and the numbers that they carry.
    ///
    /// # Errors
    /// If it cannot be read now.
    fn observe(&mut self) -> Result<Observed<Self::Key, Self::Value>, EngineError>;

    /// Reads the objects with these keys (sorted) only; absent ones are left out. Used after a failure, so that one bad service
    /// among thousands does not cost a read of them all.
    ///
    /// # Errors
    /// If it cannot be read now.
    fn look(&mut self, keys: &[Self::Key]) -> Result<Objects<Self::Key, Self::Value>, EngineError> {
        let mut objects = self.observe()?.objects;
        objects.retain(|key, _| keys.binary_search(key).is_ok());
        Ok(objects)
    }

    /// Writes the operations, in order. It may split them into transactions only where every prefix is safe.
    ///
    /// # Errors
    /// The first that failed, and whether anything was applied.
    fn apply(
        &mut self,
        operations: &[Operation<Self::Key, Self::Value>],
        numbers: &mut Assignments,
    ) -> Result<(), ApplyError>;

    /// Cheap: whether somebody else may have written to what we program since we last read or wrote it. An engine that
    /// has no cheap way says no, and is read back in full from time to time.
    fn disturbed(&mut self) -> bool {
        false
    }

    /// Who wrote to what we program, as far as the kernel tells: `nft (pid 4211)`. Said once, for the journal.
    fn disturber(&mut self) -> Option<String> {
        None
    }

    /// Kernel settings that it has changed and `cleanup` puts back.
    fn sysctls(&self) -> Vec<Sysctl> {
        Vec::new()
    }

    /// Whether an object has a part in what becomes of a packet to this port of a place. For Explain, which shows the
    /// service's objects that do. Pure.
    fn concerns(&self, key: &Self::Key, place: Place, port: u16) -> bool {
        let _ = (key, place, port);
        true
    }

    /// Whether other objects may stand on this one, as elements on their set and rules on what they name. While objects
    /// that nobody wants are kept, it is kept for them. Pure.
    fn bears_others(&self, key: &Self::Key) -> bool {
        let _ = key;
        false
    }

    /// UDP flows that these operations, once applied, have made stale. Pure.
    fn stale_flows(&self, operations: &[Operation<Self::Key, Self::Value>]) -> Vec<FlowFilter> {
        let _ = operations;
        Vec::new()
    }

    /// Removes every object of ours from the kernel, wanted or not, and nothing else (`vipd cleanup`).
    ///
    /// # Errors
    /// What could not be removed.
    fn cleanup(&mut self) -> Result<u64, EngineError> {
        let observed = self.observe()?;
        let plan = self.plan(&observed.objects, &Objects::new());
        let mut numbers = observed.numbers;
        for operations in [&plan.make, &plan.finish] {
            self.apply(operations, &mut numbers).map_err(|error| EngineError {
                operation: "clean up",
                message: error.message,
                retry: error.retry,
            })?;
        }
        Ok(observed.objects.len() as u64)
    }
}

/// A balancer: picks the endpoint.
pub trait Engine: Steps<Input = Selected> {
    /// Which one.
    fn kind(&self) -> EngineKind;

    /// What it can do on this node, probed at start.
    fn ability(&self) -> Ability;

    /// What the guard must do for a service of this engine, once the engine's own objects are made. Pure. Empty for an
    /// engine that does the guard's work in its own objects.
    fn guard(&self, node: &Node, service: &Selected, numbers: &Assignments) -> Vec<GuardEntry> {
        let _ = (node, service, numbers);
        Vec::new()
    }

    /// Whether established flows end when their service's objects go: they hang on this process (the proxy's sockets)
    /// and not on the kernel's connection tracking. A service that another engine takes over stays here, without new
    /// flows, until they have ended.
    fn carries_flows(&self) -> bool {
        false
    }

    /// The endpoint that affinity remembers for a client (see [`vipd_model::affinity_client`]), as far as it can be read.
    /// For Explain.
    fn remembered(&mut self, service: &Selected, client: IpAddr) -> Option<EndpointKey> {
        let _ = (service, client);
        None
    }

    /// The endpoint that this engine's own hash gives a flow, where the service is scheduled by one; absent: it has none, or
    /// the flow does not say enough. For Explain.
    fn hashed(&mut self, service: &Selected, flow: &Hashed) -> Option<EndpointKey> {
        let _ = (service, flow);
        None
    }

    /// Counters of these services, or of all if none is named.
    ///
    /// # Errors
    /// If they cannot be read now.
    fn counters(&mut self, services: &[ServiceKey]) -> Result<Vec<ServiceCounters>, EngineError> {
        let _ = services;
        Ok(Vec::new())
    }

    /// What an operator should know of the engine now: shedding, a limit reached.
    fn findings(&self) -> Vec<Problem> {
        Vec::new()
    }
}

/// A new flow, as hashes see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// Which of the service's sets of endpoints its source gets.
    pub serve: Serve,
    /// The client.
    pub source: IpAddr,
    /// Absent: any.
    pub source_port: Option<u16>,
    /// The frontend's address.
    pub destination: IpAddr,
    /// The frontend's port.
    pub destination_port: u16,
}

/// What is in the kernel.
#[derive(Clone, Debug)]
pub struct Observed<K, V> {
    /// Objects of ours.
    pub objects: Objects<K, V>,
    /// The numbers that they carry.
    pub numbers: Assignments,
}

impl<K, V> Default for Observed<K, V> {
    fn default() -> Self {
        Self { objects: Objects::new(), numbers: Assignments::default() }
    }
}

/// A kernel setting that vipd has changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sysctl {
    /// `net.ipv4.vs.conntrack`.
    pub name: String,
    /// What it is now.
    pub value: String,
    /// What it was, and will be again after `vipd cleanup`.
    pub before: String,
}

/// Counters; absent: the engine cannot count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Flows, since the engine began to serve it.
    pub connections: Option<u64>,
    /// Flows now.
    pub active: Option<u64>,
    /// Packets from clients.
    pub packets_in: Option<u64>,
    /// Packets to clients.
    pub packets_out: Option<u64>,
    /// Bytes from clients.
    pub bytes_in: Option<u64>,
    /// Bytes to clients.
    pub bytes_out: Option<u64>,
    /// Flows that got no endpoint.
    pub refused: Option<u64>,
}

impl Counters {
    /// What this engine counts, with what others have counted of the same service before or beside it. What this one
    /// cannot count stays absent: a sum of which a part is unknown is no sum.
    #[must_use]
    pub fn with(self, others: &Self) -> Self {
        let sum = |own: Option<u64>, other: Option<u64>| own.map(|own| own.saturating_add(other.unwrap_or(0)));
        self.each(others, sum)
    }

    /// Both together; what only one of them counted is that one's.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0).saturating_add(other.unwrap_or(0))),
        };
        self.each(other, sum)
    }

    /// What stays counted when the engine has given the service up: nothing is active there.
    #[must_use]
    pub fn ended(&self) -> Self {
        Self { active: None, ..*self }
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        let none = |_, other: Option<u64>| other.filter(|count| *count > 0);
        Self::default().each(self, none) == Self::default()
    }

    fn each(&self, others: &Self, sum: impl Fn(Option<u64>, Option<u64>) -> Option<u64>) -> Self {
        Self {
            connections: sum(self.connections, others.connections),
            active: sum(self.active, others.active),
            packets_in: sum(self.packets_in, others.packets_in),
            packets_out: sum(self.packets_out, others.packets_out),
            bytes_in: sum(self.bytes_in, others.bytes_in),
            bytes_out: sum(self.bytes_out, others.bytes_out),
            refused: sum(self.refused, others.refused),
        }
    }
}

/// What one service counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCounters {
    /// Which.
    pub key: ServiceKey,
    /// The sum, also over endpoints that are gone.
    pub total: Counters,
    /// In key order.
    pub endpoints: Vec<(EndpointKey, Counters)>,
}

/// Why a service cannot be expressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problem.message)]
pub struct RenderError {
    /// For the service's status.
    pub problem: Problem,
}

/// Why the kernel could not be read or cleaned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct EngineError {
    /// What was tried: "list table inet vipd".
    pub operation: &'static str,
    /// In words, with the kernel's own where it has any.
    pub message: String,
    /// Whether trying again may help.
    pub retry: bool,
}

/// What a failed `apply` left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Nothing: the kernel is as before.
    Nothing,
    /// Some of it, or all, or nothing: look.
    Unknown,
}

/// Why operations were not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApplyError {
    /// For the status: usually [`ProblemCode::NotProgrammed`].
    pub code: ProblemCode,
    /// In words: which object, what the kernel said.
    pub message: String,
    /// What is in the kernel now.
    pub applied: Applied,
    /// Whether trying again may help.
    pub retry: bool,
}

impl ApplyError {
    /// A failure that left an unknown state behind and may pass.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self { code: ProblemCode::NotProgrammed, message: message.into(), applied: Applied::Unknown, retry: true }
    }

    /// A failure that changed nothing and may pass.
    pub fn nothing(message: impl Into<String>) -> Self {
        Self { applied: Applied::Nothing, ..Self::unknown(message) }
    }
}
