//! A service as the data path sees it: an immutable value, [`Served`], that a change swaps as a whole, and the state that
//! outlives the swap: counters, affinity, gauges, and what was learnt of each endpoint.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use vipd_model::{
    At, Endpoint, EndpointKey, EndpointState, Family, FrontendSelection, Millis, OnExpiry, Protocol, Selected,
    ServiceKey,
};

use crate::affinity::{AFFINITY_CLIENTS_MAX, Affinity};
use crate::passive::PassiveHealth;
use crate::pick::Pickers;
use crate::stats::{Counters, EndpointStatistics, Failures, ServiceStatistics, Traffic};
use crate::table::{Place, Spot};

/// What the table points to: one service, always its newest value.
pub(crate) struct Slot {
    pub(crate) current: ArcSwap<Served>,
}

/// One version of a service.
pub(crate) struct Served {
    pub(crate) value: Arc<Selected>,
    /// Like `value.service.endpoints`, index by index.
    pub(crate) endpoints: Box<[Arc<Target>]>,
    /// Endpoints that left and still have flows; one that comes back finds its state here.
    departed: Vec<Arc<Target>>,
    /// Frontends by place, sorted.
    fronts: Box<[(Place, FrontendSelection)]>,
    pub(crate) pickers: Pickers,
    pub(crate) state: Arc<ServiceState>,
}

/// What a service keeps while its values come and go.
pub(crate) struct ServiceState {
    pub(crate) key: ServiceKey,
    pub(crate) protocol: Protocol,
    pub(crate) counters: Counters,
    pub(crate) failures: Failures,
    pub(crate) active: AtomicU64,
    /// The service was removed.
    pub(crate) ended: AtomicBool,
    /// Only the data path locks it; the control side makes entries void by [`Target::forgotten`].
    pub(crate) affinity: Mutex<Affinity<Remembered>>,
}

/// An endpoint as affinity remembers it.
#[derive(Clone)]
pub(crate) struct Remembered {
    pub(crate) target: Arc<Target>,
    /// [`Target::forgotten`] at that time; another number now means that it was not usable in between.
    pub(crate) forgotten: u32,
}

/// What an endpoint keeps while its service's values come and go.
pub(crate) struct Target {
    pub(crate) key: EndpointKey,
    pub(crate) counters: Counters,
    /// Flows now.
    pub(crate) active: AtomicU32,
    pub(crate) health: PassiveHealth,
    /// Counts the times that its flows were cut; a flow that began under another number must end.
    cuts: AtomicU32,
    /// Tells flows to look at `cuts`.
    pub(crate) cut_wakes: Notify,
    /// Counts the times that it took no more flows, so that affinity entries from before are void.
    forgotten: AtomicU32,
    /// When its flows must end, in milliseconds since the Unix epoch; 0: never.
    deadline: AtomicU64,
}

impl Target {
    pub(crate) fn new(key: EndpointKey) -> Arc<Self> {
        Arc::new(Self {
            key,
            counters: Counters::default(),
            active: AtomicU32::new(0),
            health: PassiveHealth::default(),
            cuts: AtomicU32::new(0),
            cut_wakes: Notify::new(),
            forgotten: AtomicU32::new(0),
            deadline: AtomicU64::new(0),
        })
    }

    pub(crate) fn cuts(&self) -> u32 {
        self.cuts.load(Ordering::Acquire)
    }

    pub(crate) fn forgotten(&self) -> u32 {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Ends every flow that it has now.
    pub(crate) fn cut(&self) {
        self.cuts.fetch_add(1, Ordering::AcqRel);
        self.cut_wakes.notify_waiters();
    }

    pub(crate) fn deadline(&self) -> u64 {
        self.deadline.load(Ordering::Acquire)
    }

    /// Sets when its flows must end. True if that is news.
    pub(crate) fn set_deadline(&self, deadline: u64) -> bool {
        self.deadline.swap(deadline, Ordering::AcqRel) != deadline
    }

    /// It may not take new flows any more.
    fn retire(&self, protocol: Protocol) {
        self.forgotten.fetch_add(1, Ordering::AcqRel);
        // TCP flows last until the drain ends; UDP has no end of its own, and a sender would follow it for ever.
        if protocol == Protocol::Udp {
            self.cut();
        }
    }
}

/// What remains to be done once a new version stands where flows find it. Not before: a flow that chose by the old one
/// reads the endpoint's numbers, then looks whether its version is still the newest.
#[derive(Default)]
pub(crate) struct Aftermath {
    /// Endpoints that take no more new flows.
    retired: Vec<Arc<Target>>,
    /// Which endpoint's flows end when, in milliseconds since the Unix epoch.
    pub(crate) deadlines: Vec<(u64, Arc<Target>)>,
}

impl Aftermath {
    fn set_deadline(&mut self, target: &Arc<Target>, deadline: Option<Millis>) {
        let deadline = deadline.map_or(0, |at| at.0);
        if target.set_deadline(deadline) && deadline != 0 {
            self.deadlines.push((deadline, Arc::clone(target)));
        }
    }

    pub(crate) fn retire(&self, protocol: Protocol) {
        for target in &self.retired {
            target.retire(protocol);
        }
    }
}

impl Served {
    /// The next version of a service. Endpoints that are still there keep their state.
    pub(crate) fn next(before: Option<&Self>, value: Arc<Selected>) -> (Self, Aftermath) {
        let service = &value.service;
        let known = |key: &EndpointKey| before.and_then(|before| before.target(key));
        let endpoints: Box<[Arc<Target>]> =
            service.endpoints.iter().map(|e| known(&e.key).unwrap_or_else(|| Target::new(e.key))).collect();
        let mut aftermath = Aftermath::default();
        for (endpoint, target) in service.endpoints.iter().zip(&endpoints) {
            let was = before.and_then(|before| before.endpoint(&endpoint.key));
            if endpoint.state == EndpointState::NotReady && was.is_some_and(|was| was.state != EndpointState::NotReady)
            {
                aftermath.retired.push(Arc::clone(target));
            }
            let reset = service.drain_of(endpoint).on_expiry == OnExpiry::Reset;
            aftermath.set_deadline(target, service.drain_deadline(endpoint).filter(|_| reset));
        }
        let departed = before.map_or_else(Vec::new, |before| before.departing(&value, &mut aftermath));
        let state = before.map_or_else(|| ServiceState::new(&value), |before| Arc::clone(&before.state));
        let fronts = fronts_of(&value);
        let pickers = Pickers::new(&value, before.map(|before| &before.pickers));
        (Self { value, endpoints, departed, fronts, pickers, state }, aftermath)
    }

    /// The endpoint that affinity remembers for a client and that a new flow of it may still get. For who asks, not for
    /// flows: the table's lock is held for one look.
    pub(crate) fn remembered(&self, client: IpAddr, now: u64) -> Option<EndpointKey> {
        let timeout = self.value.service.definition.client_affinity?.timeout;
        let timeout = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let mut affinity = self.state.affinity.lock().unwrap_or_else(PoisonError::into_inner);
        let remembered = affinity.get(client, timeout, now)?;
        (remembered.forgotten == remembered.target.forgotten()).then_some(remembered.target.key)
    }

    /// The endpoints that the next value does not have, as far as flows still hang on them.
    fn departing(&self, next: &Selected, aftermath: &mut Aftermath) -> Vec<Arc<Target>> {
        let service = &next.service;
        let stays = |key: &EndpointKey| service.endpoints.binary_search_by(|e| e.key.cmp(key)).is_ok();
        let mut departed = Vec::new();
        for target in self.targets().filter(|target| !stays(&target.key)) {
            if self.index(&target.key).is_some() {
                aftermath.retired.push(Arc::clone(target));
            }
            let leaving = service.leaving.iter().find(|leaving| leaving.key == target.key);
            let leaving = leaving.filter(|leaving| leaving.drain.on_expiry == OnExpiry::Reset);
            aftermath.set_deadline(target, leaving.and_then(|leaving| leaving.drain.deadline(leaving.since)));
            if target.active.load(Ordering::Relaxed) != 0 {
                departed.push(Arc::clone(target));
            }
        }
        departed
    }

    /// The service is gone since `now`, in milliseconds since the Unix epoch: its endpoints are to be retired, and their
    /// flows get the deadlines of their drains.
    pub(crate) fn end(&self, now: u64) -> Aftermath {
        self.state.ended.store(true, Ordering::Release);
        let service = &self.value.service;
        let mut aftermath = Aftermath::default();
        for (endpoint, target) in service.endpoints.iter().zip(&self.endpoints) {
            aftermath.retired.push(Arc::clone(target));
            let drain = service.drain_of(endpoint);
            let since = endpoint.left_at.unwrap_or(Millis(now));
            aftermath.set_deadline(target, drain.deadline(since).filter(|_| drain.on_expiry == OnExpiry::Reset));
        }
        aftermath
    }

    fn targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.endpoints.iter().chain(&self.departed)
    }

    fn target(&self, key: &EndpointKey) -> Option<Arc<Target>> {
        let departed = || self.departed.iter().find(|target| target.key == *key);
        self.index(key).map(|index| &self.endpoints[index]).or_else(departed).map(Arc::clone)
    }

    /// An endpoint's place in the list.
    pub(crate) fn index(&self, key: &EndpointKey) -> Option<usize> {
        self.value.service.endpoints.binary_search_by(|endpoint| endpoint.key.cmp(key)).ok()
    }

    fn endpoint(&self, key: &EndpointKey) -> Option<&Endpoint> {
        self.index(key).map(|index| &self.value.service.endpoints[index])
    }

    /// What clients get at one of its frontends; absent: this version does not have it.
    pub(crate) fn front(&self, place: &Place) -> Option<&FrontendSelection> {
        let at = self.fronts.binary_search_by(|(other, _)| other.cmp(place)).ok()?;
        Some(&self.fronts[at].1)
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        self.fronts.iter().map(|(place, _)| place)
    }

    pub(crate) fn statistics(&self, now: u64) -> ServiceStatistics {
        let state = &self.state;
        let endpoints = self.endpoints.iter().map(|target| EndpointStatistics {
            key: target.key,
            traffic: Traffic::of(&target.counters, u64::from(target.active.load(Ordering::Relaxed))),
            failures: target.health.failures(),
            avoided_for_ms: target.health.avoided_for(now),
        });
        ServiceStatistics {
            key: state.key.clone(),
            traffic: Traffic::of(&state.counters, state.active.load(Ordering::Relaxed)),
            refused: state.failures.refused.get(),
            full: state.failures.full.get(),
            unanswered: state.failures.unanswered.get(),
            retries: state.failures.retries.get(),
            endpoints: endpoints.collect(),
        }
    }
}

impl ServiceState {
    fn new(value: &Selected) -> Arc<Self> {
        Arc::new(Self {
            key: value.service.key.clone(),
            protocol: value.service.definition.protocol,
            counters: Counters::default(),
            failures: Failures::default(),
            active: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            affinity: Mutex::new(Affinity::new(AFFINITY_CLIENTS_MAX)),
        })
    }
}

/// The places of a service's frontends.
pub(crate) fn fronts_of(value: &Selected) -> Box<[(Place, FrontendSelection)]> {
    let definition = &value.service.definition;
    let mut fronts: Vec<_> = value
        .frontends
        .iter()
        .filter_map(|selection| {
            let frontend = definition.frontends.get(selection.index as usize)?;
            let spot = match &frontend.at {
                At::Address(address) => Spot::Vip(*address),
                At::NodePort(_) => Spot::Node(selection.family),
            };
            Some((Place { protocol: definition.protocol, spot, ports: frontend.ports }, selection.clone()))
        })
        .collect();
    fronts.sort_by_key(|(place, _)| *place);
    fronts.into()
}

/// The family of endpoints that serve a place.
pub(crate) fn family_of(place: &Place) -> Family {
    match place.spot {
        Spot::Vip(address) => Family::of(address),
        Spot::Node(family) => family,
    }
}
