//! Whom affinity remembers, as the kernel lists it in `/proc/net/xt_recent`. For Explain.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use vipd_model::{EndpointKey, Family, Selected};

use crate::render::pool;

/// Of the network namespace of this thread.
const LISTS: &str = "/proc/thread-self/net/xt_recent";

/// The endpoint that a client (with the service's prefix) is led to: the first in the order of the rules.
pub(crate) fn endpoint(selected: &Selected, client: IpAddr) -> Option<EndpointKey> {
    let service = &selected.service;
    let timeout = service.definition.client_affinity?.timeout;
    let family = Family::of(client) as usize;
    let sets = [selected.all.get(family)?, selected.local.get(family)?];
    let mut members: Vec<u32> = sets.iter().flat_map(|set| &set.members).copied().collect();
    members.sort_unstable();
    members.dedup();
    let clock = Clock::read()?;
    let mut endpoints = members.into_iter().filter_map(|index| service.endpoints.get(index as usize));
    let knows = |key: EndpointKey| {
        let list = fs::read_to_string(format!("{LISTS}/{}", pool::list_of(&service.key, key))).ok()?;
        list.lines().filter_map(parse).find(|(address, _)| *address == client).map(|(_, seen)| seen)
    };
    endpoints.find(|e| knows(e.key).is_some_and(|seen| clock.since(seen) <= timeout)).map(|e| e.key)
}

/// `src=10.1.0.2 ttl: 63 last_seen: 4294937296 oldest_pkt: 1 4294937296`
fn parse(line: &str) -> Option<(IpAddr, u64)> {
    let (address, rest) = line.strip_prefix("src=")?.split_once(' ')?;
    let seen = rest.split("last_seen: ").nth(1)?.split(' ').next()?;
    Some((address.parse().ok()?, seen.parse().ok()?))
}

/// The clock that the lists are stamped by.
#[derive(Debug)]
struct Clock {
    jiffies: u64,
    /// A second.
    hz: u64,
}

impl Clock {
    /// Root may read it (`timer_list`); how many make a second is seen by how long the kernel runs.
    fn read() -> Option<Self> {
        let timers = fs::read_to_string("/proc/timer_list").ok()?;
        let jiffies = timers.lines().find_map(|line| line.strip_prefix("jiffies: "))?.trim().parse().ok()?;
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
        Some(Self { jiffies, hz: second(jiffies, uptime) })
    }

    fn since(&self, seen: u64) -> Duration {
        Duration::from_millis(self.jiffies.saturating_sub(seen) * 1000 / self.hz)
    }
}

/// Counting begins five minutes before 2³² (`INITIAL_JIFFIES`, linux/jiffies.h).
fn second(jiffies: u64, uptime: f64) -> u64 {
    let error = |hz: &u64| {
        let start = (1u64 << 32) - 300 * hz;
        // Far below 2⁵³.
        #[expect(clippy::cast_precision_loss, reason = "a count of jiffies since the start")]
        let counted = jiffies.saturating_sub(start) as f64 / *hz as f64;
        (counted - uptime).abs()
    };
    // Every value that kernels are built with (kernel/Kconfig.hz).
    [100, 250, 300, 1000].into_iter().min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or(250)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_list() {
        let line = "src=fd01:0000:0000:0000:0000:0000:0000:0002 ttl: 63 last_seen: 4294937296 oldest_pkt: 1 4294937296";
        assert_eq!(parse(line), Some(("fd01::2".parse().unwrap(), 4_294_937_296)));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn a_second_is_known_by_the_uptime() {
        for hz in [100, 250, 300, 1000] {
            let jiffies = (1u64 << 32) - 300 * hz + 5000 * hz;
            assert_eq!(second(jiffies, 5000.4), hz);
        }
    }
}
