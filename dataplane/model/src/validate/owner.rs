//! Owners' settings.

use std::time::Duration;

use ipnet::IpNet;

use super::address::not_a_prefix;
use super::{Violations, field};
use crate::limits::LONGEST;
use crate::owner::Owner;

/// The shortest and the longest lease.
const LEASE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 3600);

/// CIDRs, and interface patterns, that one owner may name; the guard holds the union in every packet's way.
const ENTRIES: usize = 4096;

/// Longest interface name of Linux (IFNAMSIZ of `include/uapi/linux/if.h`, less the terminating 0).
const INTERFACE_BYTES: usize = 15;

/// Checks settings; paths begin below `owner`, or `settings` in a Sync.
pub(crate) fn owner(owner: &Owner) -> Violations {
    let mut found = Violations::default();
    if let Some(lease) = owner.lease
        && !LEASE.contains(&lease.ttl)
    {
        found.invalid(field!("lease.ttl"), format!("{:?} is outside 1s to 604800s (7 d)", lease.ttl));
    }
    prefixes("local_sources", &owner.network.local_sources, &mut found);
    prefixes("virtual_ranges", &owner.network.virtual_ranges, &mut found);
    for (i, pattern) in owner.network.local_source_interfaces.iter().enumerate() {
        if let Some(why) = not_an_interface(pattern) {
            found.invalid(field!("network.local_source_interfaces[{i}]"), why);
        }
    }
    if owner.restore_max_age.is_some_and(|age| age > LONGEST) {
        found.invalid(field!("restore_max_age"), "longer than a year; leave it out for any age");
    }
    found
}

fn prefixes(field: &str, nets: &[IpNet], found: &mut Violations) {
    if nets.len() > ENTRIES {
        found.limit(field!("network.{field}"), format!("{} CIDRs; the most is {ENTRIES}; merge them", nets.len()));
        return;
    }
    for (i, net) in nets.iter().enumerate() {
        if let Some(why) = not_a_prefix(net) {
            found.invalid(field!("network.{field}[{i}]"), why);
        }
    }
}

/// A name as the kernel takes it, perhaps with one `*` at its end.
fn not_an_interface(pattern: &str) -> Option<String> {
    let stem = pattern.strip_suffix('*').unwrap_or(pattern);
    let wrong = |c: char| c == '/' || c == '*' || c.is_whitespace() || c.is_control() || !c.is_ascii();
    if pattern.is_empty() || pattern == "*" {
        Some(
            "names no interface; write a name such as cni0, or the beginning of names with a star, such as veth*"
                .into(),
        )
    } else if stem.len() > INTERFACE_BYTES {
        Some(format!("has {} bytes; an interface name has at most {INTERFACE_BYTES}", stem.len()))
    } else {
        stem.contains(wrong).then(|| format!("{pattern:?} cannot be an interface; one star may stand at the end only"))
    }
}
