//! A service: its definition, its endpoints, its scheduler, each with a revision of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::{Drain, Endpoint, Leaving};
use crate::feature::EngineKind;
use crate::frontend::{Family, Frontend};
use crate::name::ServiceKey;
use crate::scheduler::Scheduler;
use crate::validate::size;
use crate::{Millis, Revision};

/// The L4 protocol of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP, the default.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The IANA protocol number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

/// What a client gets where no endpoint may serve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoEndpoints {
    /// Told at once: TCP reset or ICMP port unreachable.
    Reject,
    /// Silence.
    Drop,
}

/// What happens to a frontend that another service holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Contest {
    /// The call is refused.
    #[default]
    Refuse,
    /// Accepted; the service has the frontend when it is free.
    Wait,
}

/// The header that tells an endpoint who its client is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProxyProtocol {
    /// None.
    #[default]
    None,
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// One client, one endpoint, while that endpoint is usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientAffinity {
    /// Since the client's last new flow; 1 s to 24 h.
    pub timeout: Duration,
    /// Clients of one such prefix are one client; 0..=32.
    pub prefix_v4: u8,
    /// Likewise for IPv6; 0..=128.
    pub prefix_v6: u8,
}

/// How an endpoint is asked whether it lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Probe {
    /// A TCP connection.
    Tcp,
    /// An HTTP GET that answers 200 to 399.
    Http {
        /// Path, with its slash.
        path: String,
        /// Host header; empty: the endpoint's address.
        host: String,
        /// 0: the endpoint's.
        port: u16,
    },
}

/// Active checks of endpoints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HealthCheck {
    /// What is sent.
    pub probe: Probe,
    /// From one probe to the next.
    pub interval: Duration,
    /// Until a probe has failed.
    pub timeout: Duration,
    /// Successes in a row that make healthy.
    pub rise: u32,
    /// Failures in a row that make unhealthy.
    pub fall: u32,
    /// Also endpoints that are not `local`.
    pub remote_too: bool,
}

/// What UpsertService declares, every default filled in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Definition {
    /// L4 protocol.
    pub protocol: Protocol,
    /// Where clients connect; may be empty.
    pub frontends: Vec<Frontend>,
    /// Absent: none.
    pub client_affinity: Option<ClientAffinity>,
    /// Services of one logical service, within the owner; empty: none.
    pub group: String,
    /// Never interpreted.
    pub labels: BTreeMap<String, String>,
    /// No endpoint is usable anywhere.
    pub on_no_endpoints: NoEndpoints,
    /// Policy LOCAL, and the usable ones are elsewhere.
    pub on_no_local_endpoints: NoEndpoints,
    /// For endpoints without a drain of their own.
    pub drain: Drain,
    /// What if another service holds a frontend.
    pub on_contest: Contest,
    /// Among those that wait, the lowest has it. 0: order of arrival.
    pub precedence: u64,
    /// TCP port of the HTTP health answer; 0: none.
    pub health_port: u16,
    /// Absent: none.
    pub health_check: Option<HealthCheck>,
    /// Named, or left to the node.
    pub engine: Option<EngineKind>,
    /// A flow that says nothing for so long ends; absent: the engine's own.
    pub idle_timeout: Option<Duration>,
    /// Header sent to endpoints.
    pub proxy_protocol: ProxyProtocol,
}

impl Default for Definition {
    fn default() -> Self {
        Self {
            protocol: Protocol::default(),
            frontends: Vec::new(),
            client_affinity: None,
            group: String::new(),
            labels: BTreeMap::new(),
            on_no_endpoints: NoEndpoints::Reject,
            on_no_local_endpoints: NoEndpoints::Drop,
            drain: Drain::default(),
            on_contest: Contest::default(),
            precedence: 0,
            health_port: 0,
            health_check: None,
            engine: None,
            idle_timeout: None,
            proxy_protocol: ProxyProtocol::default(),
        }
    }
}

/// When each part of a service was last changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revisions {
    /// When the service came to be; ranks those that wait with precedence 0.
    pub created: Revision,
    /// UpsertService.
    pub definition: Revision,
    /// SetEndpoints, PatchEndpoints.
    pub endpoints: Revision,
    /// SetScheduler.
    pub scheduler: Revision,
}

impl Revisions {
    /// The newest of the parts.
    #[must_use]
    pub fn newest(&self) -> Revision {
        self.definition.max(self.endpoints).max(self.scheduler)
    }
}

/// A declared service, as a value that is shared and never changed in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Owner and name.
    pub key: ServiceKey,
    /// Written by UpsertService.
    pub definition: Arc<Definition>,
    /// Written by SetScheduler, or by an UpsertService that has one.
    pub scheduler: Scheduler,
    /// Written by SetEndpoints and PatchEndpoints: merged, in (address, port) order.
    pub endpoints: Arc<[Endpoint]>,
    /// Removed endpoints whose established flows still have a deadline, in key order.
    pub leaving: Arc<[Leaving]>,
    /// Of each part.
    pub revisions: Revisions,
    /// Indices of frontends that another service holds, ascending. Derived from the whole state, not stored.
    pub waiting: Vec<u32>,
}

impl Service {
    /// The frontends that this service holds, with their indices in the definition.
    pub fn held_frontends(&self) -> impl Iterator<Item = (u32, &Frontend)> {
        (0u32..).zip(&self.definition.frontends).filter(|(index, _)| self.waiting.binary_search(index).is_err())
    }

    /// Whether any frontend speaks this family.
    #[must_use]
    pub fn has_family(&self, family: Family) -> bool {
        self.definition.frontends.iter().any(|f| f.at.has_family(family))
    }

    /// What it takes on the wire at most, with its endpoints and without its status; bytes.
    #[must_use]
    pub fn size_bound(&self) -> usize {
        size::of_definition(&self.definition) + size::of_endpoints(&self.endpoints)
    }

    /// The drain that holds for an endpoint: its own, else the service's.
    #[must_use]
    pub fn drain_of(&self, endpoint: &Endpoint) -> Drain {
        endpoint.drain.unwrap_or(self.definition.drain)
    }

    /// When an endpoint's established flows must end, if it is leaving and there is a limit.
    #[must_use]
    pub fn drain_deadline(&self, endpoint: &Endpoint) -> Option<Millis> {
        self.drain_of(endpoint).deadline(endpoint.left_at?)
    }
}
