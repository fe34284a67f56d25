//! UDP flows that a change made stale, as the kernel's connection tracking names them.

use std::net::IpAddr;

use vipd_model::{Family, Protocol};

/// Flows to forget. Every field that is given must match; the original port always is, so that a filter can never name
/// a flow that is not a service's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowFilter {
    /// Of both tuples.
    pub family: Family,
    /// Never TCP: established TCP flows end by drain.
    pub protocol: Protocol,
    /// Where the client sent it; absent: anywhere (a node port).
    pub destination: Option<IpAddr>,
    /// The port it sent it to.
    pub port: u16,
    /// Who answers, as address and port; absent: anybody.
    pub reply_source: Option<(IpAddr, u16)>,
}
