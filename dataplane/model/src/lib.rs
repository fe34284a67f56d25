//! What vipd means by a service, and every decision about one: values, the desired state and how a command changes it,
//! validation, engine choice, endpoint selection, pickers, and `explain`, the function from a packet to all of them.
//!
//! Pure: no I/O, no clock, no randomness, no async. Time comes in as [`Millis`]; randomness as a number.
//! Start reading at [`service`], then [`command`] and [`delta`], then [`desired`].

pub mod choose;
pub mod command;
mod contest;
pub mod delta;
pub mod desired;
pub mod endpoint;
pub mod explain;
pub mod feature;
pub mod frontend;
pub mod limits;
pub mod name;
pub mod needs;
pub mod owner;
pub mod pick;
pub mod problem;
pub mod scheduler;
pub mod select;
pub mod service;
pub mod source;
mod validate;

pub use choose::{Choice, choose};
pub use command::{Actor, Command, Mode, Operation, Request, Sync, Wait};
pub use delta::{Delta, OwnerChange, ServiceChange};
pub use desired::{Desired, Stored, Tally};
pub use endpoint::{Drain, Endpoint, EndpointKey, EndpointState, OnExpiry};
pub use explain::{Candidate, Explanation, Held, Packet, Stage, Step, Verdict, View, explain};
pub use feature::{Ability, EngineKind, Engines, Feature};
pub use frontend::{At, Family, Frontend, NodePort, Place, Policy, PortRange, Scope, SourceNat, Span};
pub use limits::Limits;
pub use name::{NameError, OwnerName, ServiceKey, ServiceName};
pub use needs::{Needs, needs};
pub use owner::{Lease, LeaseExpiry, Network, Owner, OwnerRecord, Restart};
pub use pick::{Draw, Idle, Load, Member, Picker};
pub use problem::{Problem, ProblemCode, Refused, Rejection};
pub use scheduler::{Algorithm, Fallback, Scheduler};
pub use select::{EndpointSet, FrontendSelection, Selected, Serve, WhyNot, select};
pub use service::{
    ClientAffinity, Contest, Definition, HealthCheck, NoEndpoints, Probe, Protocol, ProxyProtocol, Revisions, Service,
};
pub use source::{Arrival, NatReason, SourceClass, affinity_client, source_nat};

/// Milliseconds since the Unix epoch, from whoever holds a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

/// Counts the accepted changes of a node; 0 is "never".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
