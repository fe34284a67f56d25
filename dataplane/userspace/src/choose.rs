//! Which endpoint a new flow gets: its source class decides the set, affinity comes before the scheduler, and endpoints
//! that are full, that this flow has tried, or that did not answer of late are passed over.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use vipd_model::select::Serve;
use vipd_model::service::NoEndpoints;
use vipd_model::{EndpointKey, SourceClass, affinity_client};

use crate::pick::Flow;
use crate::served::{Remembered, Served, ServiceState, Slot, Target, family_of};
use crate::table::Place;

/// An endpoint with a place taken on it.
pub(crate) struct Chosen {
    pub(crate) target: Arc<Target>,
    /// The number that [`Target::cuts`] had; if it has another, the flow must end.
    pub(crate) cuts: u32,
    /// Whether there are more that this flow has not tried.
    pub(crate) others: bool,
    pub(crate) occupancy: Occupancy,
}

impl Chosen {
    pub(crate) fn service(&self) -> &Arc<ServiceState> {
        &self.occupancy.service
    }
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The service does not serve this client here.
    Refused(NoEndpoints),
    /// Every endpoint that could has its `max_connections`.
    Full,
    /// All were tried.
    Exhausted,
    /// The service or frontend is gone.
    Gone,
}

/// One flow on the gauges of an endpoint and its service; it leaves them when dropped.
pub(crate) struct Occupancy {
    target: Arc<Target>,
    service: Arc<ServiceState>,
}

impl Occupancy {
    /// Absent: the endpoint has its `most` flows (0: no limit).
    fn take(target: &Arc<Target>, service: &Arc<ServiceState>, most: u32) -> Option<Self> {
        let before = target.active.fetch_add(1, Ordering::AcqRel);
        if most != 0 && before >= most {
            target.active.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        service.active.fetch_add(1, Ordering::Relaxed);
        Some(Self { target: Arc::clone(target), service: Arc::clone(service) })
    }
}

impl Drop for Occupancy {
    fn drop(&mut self) {
        self.target.active.fetch_sub(1, Ordering::AcqRel);
        self.service.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What one flow has tried.
#[derive(Debug, Default)]
pub(crate) struct Tried(Vec<EndpointKey>);

impl Tried {
    pub(crate) fn add(&mut self, target: &Target) {
        self.0.push(target.key);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn has(&self, target: &Target) -> bool {
        self.0.contains(&target.key)
    }
}

/// Chooses for a flow at a place. `now` is the proxy's own milliseconds.
pub(crate) fn choose(
    slot: &Slot,
    place: &Place,
    flow: &Flow,
    class: SourceClass,
    tried: &Tried,
    now: u64,
) -> Result<Chosen, Denied> {
    loop {
        let served = slot.current.load();
        let chosen = Choice { served: &served, place, flow, tried, now }.make(class)?;
        if served.state.ended.load(Ordering::Acquire) {
            return Err(Denied::Gone);
        }
        // A version that came meanwhile may have retired the endpoint before we read its numbers.
        if Arc::ptr_eq(&served, &slot.current.load()) {
            return Ok(chosen);
        }
    }
}

/// A flow's endpoint did not answer: its client is not bound to it any more.
pub(crate) fn forget_affinity(slot: &Slot, client: IpAddr, target: &Arc<Target>) {
    let served = slot.current.load();
    let Some(affinity) = served.value.service.definition.client_affinity else { return };
    let client = affinity_client(&affinity, client);
    let mut affinity = served.state.affinity.lock().unwrap_or_else(PoisonError::into_inner);
    if affinity.get(client, u64::MAX, 0).is_some_and(|remembered| Arc::ptr_eq(&remembered.target, target)) {
        affinity.remove(client);
    }
}

/// How often a flow tries to win the trial of a suspect endpoint before it takes any.
const CLAIMS_MAX: usize = 8;

struct Choice<'a> {
    served: &'a Served,
    place: &'a Place,
    flow: &'a Flow,
    tried: &'a Tried,
    now: u64,
}

impl Choice<'_> {
    fn make(&self, class: SourceClass) -> Result<Chosen, Denied> {
        let front = self.served.front(self.place).ok_or(Denied::Gone)?;
        let (value, family) = (&self.served.value, family_of(self.place));
        let serve = front.serve(class);
        let Some(members) = value.set(serve, family).map(|set| &set.members[..]) else {
            let how = if let Serve::Refuse(how) = serve { how } else { NoEndpoints::Reject };
            return Err(Denied::Refused(how));
        };
        let client = self.affinity_client();
        let index = match client.and_then(|(client, timeout)| self.remembered(client, timeout, members)) {
            Some(index) => index,
            None => self.pick(serve, members)?,
        };
        let others = members.len() > self.tried.0.len() + 1;
        let chosen = self.take(index, others).ok_or(Denied::Full)?;
        if let Some((client, _)) = client {
            self.remember(client, &chosen.target);
        }
        Ok(chosen)
    }

    fn affinity_client(&self) -> Option<(IpAddr, u64)> {
        let affinity = self.served.value.service.definition.client_affinity?;
        let client = affinity_client(&affinity, self.flow.client.ip());
        Some((client, u64::try_from(affinity.timeout.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The endpoint that this client had, if a new flow may go there.
    fn remembered(&self, client: IpAddr, timeout: u64, members: &[u32]) -> Option<u32> {
        if !self.tried.0.is_empty() {
            return None;
        }
        let mut affinity = self.served.state.affinity.lock().unwrap_or_else(PoisonError::into_inner);
        let remembered = affinity.get(client, timeout, self.now)?;
        let target = &remembered.target;
        let index = self.served.index(&target.key).filter(|at| Arc::ptr_eq(&self.served.endpoints[*at], target));
        let Some(index) = index.filter(|_| remembered.forgotten == target.forgotten()) else {
            affinity.remove(client);
            return None;
        };
        let index = u32::try_from(index).ok()?;
        let usable = members.binary_search(&index).is_ok() && !self.is_full(index) && target.health.claim(self.now);
        usable.then_some(index)
    }

    fn remember(&self, client: IpAddr, target: &Arc<Target>) {
        let remembered = Remembered { target: Arc::clone(target), forgotten: target.forgotten() };
        let mut affinity = self.served.state.affinity.lock().unwrap_or_else(PoisonError::into_inner);
        affinity.put(client, remembered, self.now);
    }

    fn pick(&self, serve: Serve, members: &[u32]) -> Result<u32, Denied> {
        let draw = self.served.pickers.draw(serve, family_of(self.place)).ok_or(Denied::Gone)?;
        let target = |index: u32| &self.served.endpoints[index as usize];
        let left = |index: u32| !self.tried.has(target(index)) && !self.is_full(index);
        let pick = |eligible: &dyn Fn(u32) -> bool| draw.pick(members, &self.served.endpoints, self.flow, eligible);
        // A claim is lost if another flow took the trial of a suspect endpoint; it is not open then, so the next pick is
        // another one.
        for _ in 0..CLAIMS_MAX {
            match pick(&|index| left(index) && target(index).health.is_open(self.now)) {
                Some(index) if target(index).health.claim(self.now) => return Ok(index),
                Some(_) => {}
                None => break,
            }
        }
        // Better one that did not answer of late than none.
        pick(&left).ok_or_else(|| {
            if members.iter().any(|index| self.is_full(*index)) { Denied::Full } else { Denied::Exhausted }
        })
    }

    fn is_full(&self, index: u32) -> bool {
        let most = self.served.value.service.endpoints[index as usize].max_connections;
        most != 0 && self.served.endpoints[index as usize].active.load(Ordering::Relaxed) >= most
    }

    fn take(&self, index: u32, others: bool) -> Option<Chosen> {
        let target = &self.served.endpoints[index as usize];
        let most = self.served.value.service.endpoints[index as usize].max_connections;
        let occupancy = Occupancy::take(target, &self.served.state, most)?;
        Some(Chosen { target: Arc::clone(target), cuts: target.cuts(), others, occupancy })
    }
}
