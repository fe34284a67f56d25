//! Definitions and schedulers.

use std::time::Duration;

use super::address::{not_a_prefix, not_a_vip};
use super::{Violations, field};
use crate::frontend::{At, Frontend, PortRange};
use crate::limits::{LABEL_BYTES, LONGEST, Limits};
use crate::scheduler::{Algorithm, Scheduler};
use crate::service::{ClientAffinity, Definition};

/// The shortest and the longest affinity time-out.
const AFFINITY: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// Checks a definition as sent; paths begin below `service`.
pub(crate) fn definition(definition: &Definition, limits: &Limits) -> Violations {
    let mut found = Violations::default();
    let most = limits.frontends_per_service;
    if definition.frontends.len() > most {
        let given = definition.frontends.len();
        found.limit(field!("frontends"), format!("{given} frontends; the most is {most}; split the service"));
    } else {
        for (i, frontend) in definition.frontends.iter().enumerate() {
            check_frontend(i, frontend, limits, &mut found);
        }
        overlaps(&definition.frontends, &mut found);
    }
    if let Some(affinity) = &definition.client_affinity {
        check_affinity(*affinity, &mut found);
    }
    texts(definition, limits, &mut found);
    if definition.drain.timeout.is_some_and(|t| t > LONGEST) {
        found.invalid(field!("drain.timeout"), "longer than a year; leave it out for no limit");
    }
    match definition.idle_timeout {
        Some(Duration::ZERO) => found.invalid(field!("idle_timeout"), "is 0; leave it out for the engine's own"),
        Some(t) if t > LONGEST => found.invalid(field!("idle_timeout"), "longer than a year; leave it out"),
        _ => {}
    }
    found
}

/// Checks a scheduler; paths begin below `scheduler`.
pub(crate) fn scheduler(scheduler: &Scheduler) -> Violations {
    let mut found = Violations::default();
    if scheduler.hash_source_port && !matches!(scheduler.algorithm, Algorithm::Sh | Algorithm::Mh) {
        found.invalid(
            field!("hash_source_port"),
            "only SH and MH hash the source; leave it out, or ask for one of them",
        );
    }
    found
}

fn check_frontend(i: usize, frontend: &Frontend, limits: &Limits, found: &mut Violations) {
    match &frontend.at {
        At::Address(address) => {
            if let Some(why) = not_a_vip(*address) {
                found.invalid(field!("frontends[{i}].address"), why);
            }
        }
        At::NodePort(node_port) => {
            if !node_port.v4 && !node_port.v6 {
                found.invalid(field!("frontends[{i}].node_port.family"), "names no family; write IPV4, IPV6 or BOTH");
            }
            for (j, net) in node_port.addresses.iter().enumerate() {
                if let Some(why) = not_a_prefix(net) {
                    found.invalid(field!("frontends[{i}].node_port.addresses[{j}]"), why);
                }
            }
        }
    }
    check_ports(i, frontend.ports, found);
    let (given, most) = (frontend.source_ranges.len(), limits.source_ranges_per_frontend);
    if given > most {
        found.limit(field!("frontends[{i}].source_ranges"), format!("{given} ranges; the most is {most}; merge them"));
    }
    for (j, net) in frontend.source_ranges.iter().enumerate() {
        if let Some(why) = not_a_prefix(net) {
            found.invalid(field!("frontends[{i}].source_ranges[{j}]"), why);
        }
    }
}

fn check_ports(i: usize, ports: PortRange, found: &mut Violations) {
    if ports.first == 0 {
        found.invalid(field!("frontends[{i}].port"), "is 0 or missing; write 1 to 65535");
    } else if ports.last < ports.first {
        found.invalid(
            field!("frontends[{i}].port_end"),
            format!(
                "{} is below port {}; write the last port of the range, or 0 for one port",
                ports.last, ports.first
            ),
        );
    }
}

/// Frontends of one service that would meet: the same address, or node ports of one family, with a port in common.
fn overlaps(frontends: &[Frontend], found: &mut Violations) {
    let mut spans: Vec<_> = (0..).zip(frontends).flat_map(|(i, f)| f.spans().map(move |span| (span, i))).collect();
    spans.sort_unstable();
    let mut widest: Option<(crate::frontend::Span, usize)> = None;
    let mut reported = Vec::new();
    for (span, i) in spans {
        match widest {
            Some((other, j)) if other.overlaps(span) && i != j => {
                let pair = (i.max(j), i.min(j));
                if !reported.contains(&pair) {
                    reported.push(pair);
                    let (later, earlier) = pair;
                    found.invalid(
                        field!("frontends[{later}]"),
                        format!("overlaps frontends[{earlier}] of the same service; leave one of the two out"),
                    );
                }
                if span.ports.last > other.ports.last {
                    widest = Some((span, i));
                }
            }
            _ => widest = Some((span, i)),
        }
    }
}

fn check_affinity(affinity: ClientAffinity, found: &mut Violations) {
    if !AFFINITY.contains(&affinity.timeout) {
        found.invalid(
            field!("client_affinity.timeout"),
            format!("{:?} is outside 1s to 86400s (24 h); leave it out for 3 h", affinity.timeout),
        );
    }
    if affinity.prefix_v4 > 32 {
        found.invalid(field!("client_affinity.prefix_v4"), format!("{} is above 32", affinity.prefix_v4));
    }
    if affinity.prefix_v6 > 128 {
        found.invalid(field!("client_affinity.prefix_v6"), format!("{} is above 128", affinity.prefix_v6));
    }
}

fn texts(definition: &Definition, limits: &Limits, found: &mut Violations) {
    let too_long = |text: &str| {
        (text.len() > LABEL_BYTES).then(|| format!("has {} bytes; the most is {LABEL_BYTES}; shorten it", text.len()))
    };
    if let Some(why) = too_long(&definition.group) {
        found.limit(field!("group"), why);
    }
    let (given, most) = (definition.labels.len(), limits.labels_per_service);
    if given > most {
        found.limit(field!("labels"), format!("{given} labels; the most is {most}; leave out what nobody selects by"));
        return;
    }
    for (key, value) in &definition.labels {
        if let Some(why) = too_long(key) {
            found.limit(field!("labels"), format!("a key {why}"));
        } else if let Some(why) = too_long(value) {
            found.limit(field!("labels[{key:?}]"), why);
        }
    }
}
