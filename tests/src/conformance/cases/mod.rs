//! The cases, by subject. Each file lists its own; the order here is the order in which they run.

mod affinity;
mod contest;
mod drain;
mod field;
mod health;
mod host;
mod kernel;
mod lifecycle;
mod limits;
mod node_ports;
mod policy;
mod ranges;
mod refusal;
mod schedulers;
mod spread;
mod stateful;
mod stream;
mod tracking;
mod udp;

use super::Case;

/// Every case.
#[must_use]
pub fn all() -> Vec<Case> {
    [
        spread::CASES,
        schedulers::CASES,
        stateful::CASES,
        affinity::CASES,
        policy::CASES,
        node_ports::CASES,
        ranges::CASES,
        refusal::CASES,
        drain::CASES,
        limits::CASES,
        stream::CASES,
        udp::CASES,
        contest::CASES,
        lifecycle::CASES,
        tracking::CASES,
        kernel::CASES,
        host::CASES,
        health::CASES,
        field::CASES,
    ]
    .concat()
}
