//! A call's operations, sorted by the service that they are about.
//!
//! The operations of a call are a set: what they say of one service is put together, and two that say the same part
//! (definition, endpoints, scheduler) contradict each other. Deleting a service says all of its parts, so a delete and
//! an upsert of one service in one call are refused as well: a set has no order that would tell which is meant.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Revision;
use crate::command::{Declare, Operation};
use crate::endpoint::{Endpoint, EndpointKey};
use crate::name::ServiceKey;
use crate::problem::Problem;
use crate::scheduler::Scheduler;
use crate::service::Definition;

/// Where in the request a part of a service is written; makes the paths of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A call of its own.
    Call,
    /// An operation of an Apply: its index, and the name of its field in `Operation`.
    Operation(u32, &'static str),
    /// A declare of a Sync.
    Declare(u32),
}

impl Origin {
    /// The path of the request that holds the part; empty for a call of its own.
    pub(crate) fn root(self) -> String {
        match self {
            Self::Call => String::new(),
            Self::Operation(index, field) => format!("operations[{index}].{field}"),
            Self::Declare(index) => format!("declare[{index}]"),
        }
    }

    /// The path of a field of that request.
    pub(crate) fn path(self, field: &str) -> String {
        match self {
            Self::Call => field.to_owned(),
            _ => format!("{}.{field}", self.root()),
        }
    }

    /// The path of the service's name: a Declare and an UpsertService have it inside `service`.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Declare(_) | Self::Operation(_, "upsert_service") => self.path("service.name"),
            _ => self.path("name"),
        }
    }

    /// The number that `Refused.index` shows.
    pub(crate) fn index(self) -> u32 {
        match self {
            Self::Call => 0,
            Self::Operation(index, _) | Self::Declare(index) => index,
        }
    }
}

/// A new endpoint list, whole or as a patch of the one there is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listing<'a> {
    Whole(&'a [Endpoint]),
    Patch(&'a [Endpoint], &'a [EndpointKey]),
}

impl<'a> Listing<'a> {
    /// What is sent to be there, and the field that holds it.
    pub(crate) fn sent(self) -> (&'static str, &'a [Endpoint]) {
        match self {
            Self::Whole(sent) => ("endpoints", sent),
            Self::Patch(sent, _) => ("upsert", sent),
        }
    }
}

/// A part whose revision the caller expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Definition,
    Endpoints,
    Scheduler,
    /// The newest of the three.
    Service,
}

/// What a call says of one service.
#[derive(Debug, Default)]
pub(crate) struct Group<'a> {
    pub(crate) definition: Option<(Origin, &'a Arc<Definition>)>,
    pub(crate) endpoints: Option<(Origin, Listing<'a>)>,
    pub(crate) scheduler: Option<(Origin, Scheduler)>,
    pub(crate) delete: Option<Origin>,
    pub(crate) expected: Vec<(Origin, Part, Revision)>,
    /// Every operation that is in it.
    pub(crate) origins: Vec<Origin>,
    /// Parts that were said twice.
    pub(crate) problems: Vec<Problem>,
}

impl<'a> Group<'a> {
    /// Takes one operation in.
    pub(crate) fn operation(&mut self, origin: Origin, operation: &'a Operation) {
        self.origins.push(origin);
        let (part, expected) = match operation {
            Operation::UpsertService { definition, scheduler, expected, .. } => {
                once(&mut self.definition, (origin, definition), origin, "definition", &mut self.problems);
                if let Some(scheduler) = scheduler {
                    once(&mut self.scheduler, (origin, *scheduler), origin, "scheduler", &mut self.problems);
                }
                (Part::Definition, expected)
            }
            Operation::DeleteService { expected, .. } => {
                once(&mut self.delete, origin, origin, "removal", &mut self.problems);
                (Part::Service, expected)
            }
            Operation::SetEndpoints { endpoints, expected, .. } => {
                self.listing(origin, Listing::Whole(endpoints));
                (Part::Endpoints, expected)
            }
            Operation::PatchEndpoints { upsert, remove, expected, .. } => {
                self.listing(origin, Listing::Patch(upsert, remove));
                (Part::Endpoints, expected)
            }
            Operation::SetScheduler { scheduler, expected, .. } => {
                once(&mut self.scheduler, (origin, *scheduler), origin, "scheduler", &mut self.problems);
                (Part::Scheduler, expected)
            }
        };
        self.expected.extend(expected.map(|revision| (origin, part, revision)));
        if let (Some(delete), true) = (self.delete, self.origins.len() > 1) {
            self.problems.push(Problem::invalid(
                delete.root(),
                "removes a service that another operation of this call writes; a call's operations are a set without an \
                 order, so leave one of the two out",
            ));
        }
    }

    /// Takes one declare of a Sync in.
    pub(crate) fn declare(&mut self, declare: &'a Declare) {
        let origin = Origin::Declare(declare.index);
        self.origins.push(origin);
        once(&mut self.definition, (origin, &declare.definition), origin, "definition", &mut self.problems);
        if let Some(scheduler) = declare.scheduler {
            once(&mut self.scheduler, (origin, scheduler), origin, "scheduler", &mut self.problems);
        }
        self.listing(origin, Listing::Whole(&declare.endpoints));
    }

    fn listing(&mut self, origin: Origin, listing: Listing<'a>) {
        once(&mut self.endpoints, (origin, listing), origin, "endpoint list", &mut self.problems);
    }

    /// The operation that a problem of the whole service is put on.
    pub(crate) fn first_origin(&self) -> Origin {
        self.origins.first().copied().unwrap_or(Origin::Call)
    }
}

fn once<T>(part: &mut Option<T>, value: T, origin: Origin, what: &str, problems: &mut Vec<Problem>) {
    if part.is_some() {
        let message = format!("another part of this call says the {what} of the same service already; send it once");
        problems.push(Problem::invalid(origin.root(), message));
    } else {
        *part = Some(value);
    }
}

/// A name for each operation: its field in `vipd.v1.Operation`.
fn field(operation: &Operation) -> &'static str {
    match operation {
        Operation::UpsertService { .. } => "upsert_service",
        Operation::DeleteService { .. } => "delete_service",
        Operation::SetEndpoints { .. } => "set_endpoints",
        Operation::PatchEndpoints { .. } => "patch_endpoints",
        Operation::SetScheduler { .. } => "set_scheduler",
    }
}

/// The groups of a call.
pub(crate) type Groups<'a> = BTreeMap<&'a ServiceKey, Group<'a>>;

/// Of a single call.
pub(crate) fn single(operation: &Operation) -> Groups<'_> {
    let mut groups = Groups::new();
    groups.entry(operation.key()).or_default().operation(Origin::Call, operation);
    groups
}

/// Of an Apply.
pub(crate) fn several(operations: &[Operation]) -> Groups<'_> {
    let mut groups = Groups::new();
    for (index, operation) in (0..).zip(operations) {
        groups.entry(operation.key()).or_default().operation(Origin::Operation(index, field(operation)), operation);
    }
    groups
}

/// Of a Sync.
pub(crate) fn declared(declares: &[Declare]) -> Groups<'_> {
    let mut groups = Groups::new();
    for declare in declares {
        groups.entry(&declare.key).or_default().declare(declare);
    }
    groups
}
