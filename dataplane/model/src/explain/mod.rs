//! Explain: from a packet to every decision about it. The oracle: conformance tests ask it what must happen.
//!
//! [`explain`] walks the stages in the order in which every engine must decide: frontend, source ranges, source class,
//! endpoint set, affinity, scheduler, source NAT. It knows no tables; a [`View`] looks things up for it. New flows only:
//! what is established goes where it went. The walk is in `walk.rs`, the probabilities are in `chances.rs`.

mod chances;
#[cfg(test)]
mod tests;
mod walk;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::endpoint::{Endpoint, EndpointKey};
use crate::feature::EngineKind;
use crate::frontend::Place;
use crate::name::ServiceKey;
use crate::owner::Network;
use crate::select::{Selected, Serve};
use crate::service::Protocol;
use crate::source::{Arrival, NatReason};

pub use walk::explain;

/// A frontend found, with the service that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The service as programmed.
    pub selected: Arc<Selected>,
    /// The frontend's index in its definition.
    pub frontend: u32,
}

/// What Explain must be told of the node. Cheap to make: it only looks things up.
pub trait View {
    /// Who holds a port of a place, by a range too. On which of the node's addresses a node port is served, Explain
    /// decides.
    fn holder(&self, place: Place, protocol: Protocol, port: u16) -> Option<Held>;
    /// The union over the owners.
    fn network(&self) -> &Network;
    /// Whether this node has the address. Not asked for loopback.
    fn is_node_address(&self, address: IpAddr) -> bool;
    /// Configured CIDRs that select the addresses of node ports that name none; empty: every address.
    fn node_port_addresses(&self) -> &[IpNet];
    /// Whether the daemon serves node ports on loopback, by the userspace engine's listener.
    fn serves_loopback(&self) -> bool;
    /// The endpoint that affinity remembers for a client (see [`crate::affinity_client`]), if there is a record and the
    /// engine can be asked for it.
    fn affinity(&self, service: &ServiceKey, client: IpAddr) -> Option<EndpointKey>;
    /// The endpoint that the hash of an engine of the kernel gives the packet, of the set that `serve` names, if the engine
    /// can be asked.
    fn hashed(&self, selected: &Selected, serve: Serve) -> Option<EndpointKey> {
        let _ = (selected, serve);
        None
    }
    /// Whether an engine relays: it picks by the model's pickers and connects to the endpoint from this node's address.
    fn relays(&self, engine: EngineKind) -> bool {
        engine == EngineKind::Userspace
    }
    /// Whether there is a guard. Without one nobody refuses what no frontend names.
    fn has_guard(&self) -> bool {
        true
    }
}

/// The first packet of a flow. Source and destination have one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Who sends it.
    pub source: IpAddr,
    /// Absent: any.
    pub source_port: Option<u16>,
    /// Where to.
    pub destination: IpAddr,
    /// Where to.
    pub destination_port: u16,
    /// L4 protocol.
    pub protocol: Protocol,
    /// How it reached this node.
    pub arrival: Arrival<'a>,
}

/// What becomes of the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// No frontend; it is left alone.
    #[default]
    NotOurs,
    /// It goes to an endpoint.
    Forwarded,
    /// Its sender is told at once that nobody serves it.
    Rejected,
    /// It vanishes.
    Dropped,
}

/// A decision, in the order in which they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Which frontend it is for, if any.
    Frontend,
    /// Whether its source may come in.
    SourceRanges,
    /// What its source is to this node.
    LocalSource,
    /// Which endpoints may serve it.
    Tiers,
    /// Whether its client is bound to one of them.
    Affinity,
    /// Which of them it gets, or how likely.
    Scheduler,
    /// Whether its source address is translated.
    SourceNat,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Frontend => "frontend",
            Self::SourceRanges => "source-ranges",
            Self::LocalSource => "local-source",
            Self::Tiers => "tiers",
            Self::Affinity => "affinity",
            Self::Scheduler => "scheduler",
            Self::SourceNat => "source-nat",
        })
    }
}

/// One decision and how it came out, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which.
    pub stage: Stage,
    /// In words.
    pub outcome: String,
}

/// An endpoint of the service, and what the packet means to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// As declared.
    pub endpoint: Endpoint,
    /// That a new flow goes there, while nobody carries anything. The candidates of a forwarded packet add up to 1.
    pub probability: f64,
    /// Present exactly where the probability is 0.
    pub why_not: Option<String>,
    /// Affinity or a hash decides for it.
    pub pinned: bool,
    /// The packet comes from this endpoint's own address, so its source would be translated in any case.
    pub hairpin: bool,
}

/// Every decision about one packet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// What becomes of it.
    pub verdict: Verdict,
    /// How that came about.
    pub steps: Vec<Step>,
    /// The service and the frontend that it is for.
    pub held: Option<Held>,
    /// Every endpoint of the service in order; empty if the packet did not get so far.
    pub candidates: Vec<Candidate>,
    /// Present if it is forwarded. Where some candidates are hairpins and some are not, the decision for those that are
    /// not.
    pub source_nat: Option<NatReason>,
    /// What carries it.
    pub engine: Option<EngineKind>,
    /// Which of the service's sets of endpoints it gets; absent if it did not get so far.
    pub serve: Option<Serve>,
}
