//! How large a service is on the wire: an upper bound that follows the messages of `service.proto`, in bytes.

use crate::endpoint::Endpoint;
use crate::frontend::{At, Frontend};
use crate::service::{Definition, Probe};

/// A tag and a one-byte length or value.
const FIELD: usize = 2;
/// A tag with a varint of 32 bits.
const NUMBER: usize = 6;
/// A tag and the length of text up to 16 KiB.
const TEXT: usize = 4;
/// A duration with its own tag and length.
const DURATION: usize = 14;
/// The longest text of an IPv4 and of an IPv6 address, and of their prefix lengths.
const V4: usize = 15;
const V6: usize = 39;
const PREFIX: usize = 4;

/// Of a definition with its key and scheduler.
pub(crate) fn of_definition(definition: &Definition) -> usize {
    let frontends: usize = definition.frontends.iter().map(of_frontend).sum();
    let labels: usize = definition.labels.iter().map(|(k, v)| 3 * TEXT + k.len() + v.len()).sum();
    let probe = match definition.health_check.as_ref().map(|check| &check.probe) {
        Some(Probe::Http { path, host, .. }) => path.len() + host.len(),
        _ => 0,
    };
    // Two names, numbers, durations, affinity and health check stay below 1 KiB together.
    1024 + definition.group.len() + frontends + labels + probe
}

fn of_frontend(frontend: &Frontend) -> usize {
    let address = |v4: bool| FIELD + if v4 { V4 } else { V6 };
    let range = |net: &ipnet::IpNet| address(net.addr().is_ipv4()) + PREFIX;
    let at = match &frontend.at {
        At::Address(vip) => address(vip.is_ipv4()),
        At::NodePort(node_port) => TEXT + FIELD + node_port.addresses.iter().map(range).sum::<usize>(),
    };
    TEXT + at + 2 * NUMBER + 3 * FIELD + frontend.source_ranges.iter().map(range).sum::<usize>()
}

/// Of an endpoint list.
pub(crate) fn of_endpoints(endpoints: &[Endpoint]) -> usize {
    endpoints.iter().map(of_endpoint).sum()
}

fn of_endpoint(endpoint: &Endpoint) -> usize {
    let small = |value: u32| match value {
        0 => 0,
        1..0x80 => FIELD,
        0x80..0x4000 => FIELD + 1,
        _ => NUMBER,
    };
    let address = if endpoint.key.address.is_ipv4() { V4 } else { V6 };
    let target = endpoint.target.as_ref().map_or(0, |t| TEXT + t.len());
    let drain = endpoint.drain.map_or(0, |_| DURATION + 2 * FIELD);
    // Message header, address, port, weight (always sent), state, local.
    TEXT + FIELD + address + 2 * NUMBER - 4
        + 2 * FIELD
        + target
        + drain
        + small(endpoint.tier)
        + small(endpoint.max_connections)
}
