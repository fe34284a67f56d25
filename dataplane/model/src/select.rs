//! Endpoint selection: which endpoints may take a new flow, from where, and why the others may not.
//!
//! One predicate, [`Rule::why_not`], makes the sets that engines serve and the sentences that Explain shows, so the two
//! cannot disagree. What picks one member of a set is in [`crate::pick`].

use std::fmt;
use std::sync::Arc;

use crate::endpoint::{Endpoint, EndpointState};
use crate::feature::EngineKind;
use crate::frontend::{Family, Frontend, Policy, Scope};
use crate::scheduler::Algorithm;
use crate::service::{NoEndpoints, Service};
use crate::source::SourceClass;

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

impl FrontendSelection {
    /// What a source of this class gets.
    #[must_use]
    pub fn serve(&self, class: SourceClass) -> Serve {
        if class.is_inside() { self.inside } else { self.outside }
    }
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

impl Selected {
    /// The set that a serve decision names; absent for a refusal.
    #[must_use]
    pub fn set(&self, serve: Serve, family: Family) -> Option<&EndpointSet> {
        let family = family as usize;
        match serve {
            Serve::All => self.all.get(family),
            Serve::Local => self.local.get(family),
            Serve::Refuse(_) => None,
        }
    }

    /// The selection of one held frontend in one family.
    #[must_use]
    pub fn frontend(&self, index: u32, family: Family) -> Option<&FrontendSelection> {
        let found = self.frontends.binary_search_by_key(&(index, family), |f| (f.index, f.family));
        found.ok().and_then(|at| self.frontends.get(at))
    }
}

/// Applies [`Rule`] to every family and policy, and turns the outcome into what each held frontend gives.
#[must_use]
pub fn select(service: &Arc<Service>, engine: EngineKind, algorithm: Algorithm) -> Selected {
    let sets = |policy| Family::ALL.map(|family| Rule::of(service, family, policy).set(service));
    let mut selected = Selected {
        service: Arc::clone(service),
        engine,
        algorithm,
        frontends: Vec::new(),
        all: sets(Policy::All),
        local: sets(Policy::Local),
    };
    for (index, frontend) in service.held_frontends() {
        for family in Family::ALL.into_iter().filter(|&family| frontend.at.has_family(family)) {
            let serve = |inside| selected.serve_under(policy_for(frontend, inside), family);
            let (inside, outside) = (serve(true), serve(false));
            selected.frontends.push(FrontendSelection { index, family, inside, outside });
        }
    }
    selected
}

impl Selected {
    fn serve_under(&self, policy: Policy, family: Family) -> Serve {
        let definition = &self.service.definition;
        let is_empty = |sets: &[EndpointSet; 2]| sets[family as usize].members.is_empty();
        match policy {
            _ if is_empty(&self.all) => Serve::Refuse(definition.on_no_endpoints),
            Policy::All => Serve::All,
            Policy::Local if is_empty(&self.local) => Serve::Refuse(definition.on_no_local_endpoints),
            Policy::Local => Serve::Local,
        }
    }
}

/// The policy that a client meets. EXTERNAL + LOCAL means ALL for those inside: their traffic never left the node, so
/// there is no choice of node by a load balancer to respect.
#[must_use]
pub fn policy_for(frontend: &Frontend, inside: bool) -> Policy {
    match (frontend.scope, frontend.policy) {
        (Scope::External, Policy::Local) if inside => Policy::All,
        (_, policy) => policy,
    }
}

/// Why an endpoint is not in a set. Shown to people by `Display`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WhyNot {
    /// It has the other address family.
    OtherFamily,
    /// Weight 0: no new flows, whatever its state.
    ZeroWeight,
    /// State NOT_READY.
    NotReady,
    /// Policy LOCAL, and it is on another node.
    NotLocal,
    /// State DRAINING while so many READY ones are usable.
    Draining {
        /// How many.
        ready: usize,
    },
    /// A lower tier serves.
    Tier {
        /// Its own.
        own: u32,
        /// The one that serves.
        serving: u32,
        /// READY endpoints there.
        ready: usize,
    },
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherFamily => f.write_str("other family"),
            Self::ZeroWeight => f.write_str("weight 0"),
            Self::NotReady => f.write_str("NOT_READY"),
            Self::NotLocal => f.write_str("not local"),
            Self::Draining { ready: 1 } => f.write_str("DRAINING; 1 READY is usable"),
            Self::Draining { ready } => write!(f, "DRAINING; {ready} READY are usable"),
            Self::Tier { own, serving, ready } => write!(f, "tier {own}; tier {serving} has {ready} READY"),
        }
    }
}

/// The rule that one family and policy of a service follow, made from its endpoints once and asked for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    family: Family,
    policy: Policy,
    ready: usize,
    /// The lowest tier with a usable READY endpoint, and how many it has. Absent under LOCAL, which has no tiers.
    tier: Option<(u32, usize)>,
}

impl Rule {
    /// Counts what is usable. Linear in the endpoints.
    #[must_use]
    pub fn of(service: &Service, family: Family, policy: Policy) -> Self {
        let mut rule = Self { family, policy, ready: 0, tier: None };
        for endpoint in service.endpoints.iter().filter(|e| e.state == EndpointState::Ready) {
            if rule.never(endpoint).is_some() {
                continue;
            }
            rule.ready += 1;
            rule.tier = match (policy, rule.tier) {
                (Policy::Local, _) => None,
                (Policy::All, Some((tier, count))) if tier == endpoint.tier => Some((tier, count + 1)),
                (Policy::All, Some((tier, count))) if tier < endpoint.tier => Some((tier, count)),
                (Policy::All, _) => Some((endpoint.tier, 1)),
            };
        }
        rule
    }

    /// Why this endpoint of the service takes no new flow; absent: it may be picked.
    #[must_use]
    pub fn why_not(&self, endpoint: &Endpoint) -> Option<WhyNot> {
        if let Some(why) = self.never(endpoint) {
            return Some(why);
        }
        match (endpoint.state, self.tier) {
            // With nothing READY every DRAINING one serves, of any tier: the last that are left are not worth ranking.
            (EndpointState::Draining, _) => (self.ready > 0).then_some(WhyNot::Draining { ready: self.ready }),
            (_, Some((serving, ready))) if endpoint.tier != serving => {
                Some(WhyNot::Tier { own: endpoint.tier, serving, ready })
            }
            _ => None,
        }
    }

    /// The reasons that no other endpoint can lift.
    fn never(&self, endpoint: &Endpoint) -> Option<WhyNot> {
        if endpoint.key.family() != self.family {
            Some(WhyNot::OtherFamily)
        } else if endpoint.state == EndpointState::NotReady {
            Some(WhyNot::NotReady)
        } else if endpoint.weight == 0 {
            Some(WhyNot::ZeroWeight)
        } else if self.policy == Policy::Local && !endpoint.local {
            Some(WhyNot::NotLocal)
        } else {
            None
        }
    }

    fn set(&self, service: &Service) -> EndpointSet {
        let usable = (0u32..).zip(service.endpoints.iter()).filter(|(_, endpoint)| self.why_not(endpoint).is_none());
        let members: Vec<u32> = usable.map(|(index, _)| index).collect();
        EndpointSet { draining: self.ready == 0 && !members.is_empty(), members }
    }
}

/// [`Rule::why_not`] for one endpoint by its index; for all of them make the [`Rule`] once.
#[must_use]
pub fn why_not(service: &Service, index: u32, family: Family, policy: Policy) -> Option<WhyNot> {
    Rule::of(service, family, policy).why_not(service.endpoints.get(index as usize)?)
}

#[cfg(test)]
mod tests;
