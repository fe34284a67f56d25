//! Endpoint selection: which endpoints may take a new flow, from where.

use std::sync::Arc;

use crate::feature::EngineKind;
use crate::frontend::Family;
use crate::scheduler::Algorithm;
use crate::service::{NoEndpoints, Service};

/// Endpoints that may be chosen: indices into the service's endpoints, ascending. All have a weight above 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSet {
    /// Indices.
    pub members: Vec<u32>,
    /// No READY endpoint was usable, so these are DRAINING ones.
    pub draining: bool,
}

/// What a source class gets at a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Serve {
    /// One of [`Selected::all`].
    All,
    /// One of [`Selected::local`].
    Local,
    /// Refusal.
    Refuse(NoEndpoints),
}

/// A frontend that this service holds, in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendSelection {
    /// In the definition.
    pub index: u32,
    /// A node port may stand here once for each family.
    pub family: Family,
    /// What clients on this node and local sources get.
    pub inside: Serve,
    /// What everybody else gets.
    pub outside: Serve,
}

/// One service as engines see it. A function of the service and the engine chosen for it, nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// What was declared.
    pub service: Arc<Service>,
    /// What serves it.
    pub engine: EngineKind,
    /// What runs; never `Default`.
    pub algorithm: Algorithm,
    /// Held frontends by index and family.
    pub frontends: Vec<FrontendSelection>,
    /// Policy ALL, by family (V4, V6).
    pub all: [EndpointSet; 2],
    /// Policy LOCAL, by family (V4, V6).
    pub local: [EndpointSet; 2],
}
