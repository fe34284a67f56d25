//! Counters: cheap atomics on the data path, plain values for those who read them. They only grow, except `active`.

use std::sync::atomic::{AtomicU64, Ordering};

use vipd_model::{EndpointKey, ServiceKey};

/// One number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Of a service or an endpoint, live.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: Counter,
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) packets_in: Counter,
    pub(crate) packets_out: Counter,
}

/// What a service counts besides.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    pub(crate) refused: Counter,
    pub(crate) full: Counter,
    pub(crate) unanswered: Counter,
    pub(crate) retries: Counter,
}

/// What was counted for a service, or for one endpoint of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Flows since the proxy began to serve it: TCP connections that reached an endpoint, UDP sessions.
    pub connections: u64,
    /// Flows now.
    pub active: u64,
    /// Payload bytes from clients.
    pub bytes_in: u64,
    /// Payload bytes to clients.
    pub bytes_out: u64,
    /// Datagrams from clients; 0 for TCP.
    pub packets_in: u64,
    /// Datagrams to clients; 0 for TCP.
    pub packets_out: u64,
}

impl Traffic {
    pub(crate) fn of(counters: &Counters, active: u64) -> Self {
        Self {
            connections: counters.connections.get(),
            active,
            bytes_in: counters.bytes_in.get(),
            bytes_out: counters.bytes_out.get(),
            packets_in: counters.packets_in.get(),
            packets_out: counters.packets_out.get(),
        }
    }
}

/// One endpoint's part, with what its flows taught about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointStatistics {
    /// Which.
    pub key: EndpointKey,
    /// What it carried.
    pub traffic: Traffic,
    /// Attempts in a row that it did not answer; 0: healthy as far as the proxy knows.
    pub failures: u32,
    /// Avoided for so many milliseconds more; absent: it is not.
    pub avoided_for_ms: Option<u64>,
}

/// What one service counted since the proxy began to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceStatistics {
    /// Which.
    pub key: ServiceKey,
    /// The sum, endpoints that are gone included.
    pub traffic: Traffic,
    /// Flows that had no endpoint to go to.
    pub refused: u64,
    /// Flows turned away because every usable endpoint had its `max_connections`.
    pub full: u64,
    /// Flows for which no endpoint answered.
    pub unanswered: u64,
    /// Further attempts after an endpoint did not answer.
    pub retries: u64,
    /// In key order: those of the current list.
    pub endpoints: Vec<EndpointStatistics>,
}

/// Why flows were shed at the door, before they belonged to a service.
#[derive(Debug, Default)]
pub(crate) struct Shed {
    pub(crate) descriptors: Counter,
    pub(crate) sessions: Counter,
    pub(crate) unknown: Counter,
}

/// The proxy as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyStatistics {
    /// Connections turned away because the descriptor budget or the connection limit was reached.
    pub shed_descriptors: u64,
    /// Datagrams of new clients dropped because the session limit or the descriptor budget was reached.
    pub shed_sessions: u64,
    /// Connections that reached the proxy for an address that no service has.
    pub unknown: u64,
    /// TCP connections now.
    pub connections: u64,
    /// UDP sessions now.
    pub sessions: u64,
    /// Descriptors in use for doors and flows.
    pub descriptors: u64,
    /// Of so many.
    pub descriptor_limit: u64,
    /// Milliseconds since it began to shed; absent: it does not.
    pub shedding_for_ms: Option<u64>,
}
