//! What an operator should know of the host before packets go missing: settings that we do not change, and limits near.

use std::fs;
use std::path::Path;

use vipd_model::{Problem, ProblemCode};

/// From how full a connection tracking table is a finding.
const NEARLY_FULL: f64 = 0.9;

/// The kernel's release.
#[must_use]
pub fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Flows tracked now, and at most; absent where the kernel tracks none.
#[must_use]
pub fn conntrack() -> Option<(u64, u64)> {
    Some((setting("net/netfilter/nf_conntrack_count")?, setting("net/netfilter/nf_conntrack_max")?))
}

/// Everything worth knowing, now.
#[must_use]
pub fn host() -> Vec<Problem> {
    let mut found = Vec::new();
    let finding = |text: String| Problem::new(ProblemCode::Host, "", text);
    for (path, family) in [("net/ipv4/ip_forward", "IPv4"), ("net/ipv6/conf/all/forwarding", "IPv6")] {
        if setting(path) == Some(0) {
            let name = path.replace('/', ".");
            found.push(finding(format!(
                "{name} is 0: {family} clients on other machines reach VIPs only through engines that end connections \
                 here (userspace); set it to 1 where this node routes"
            )));
        }
    }
    if let Some((count, most)) = conntrack()
        && count as f64 >= most as f64 * NEARLY_FULL
    {
        found.push(finding(format!(
            "connection tracking holds {count} of at most {most} flows; beyond that the kernel drops packets of new \
             ones: raise net.netfilter.nf_conntrack_max"
        )));
    }
    found
}

fn setting(path: &str) -> Option<u64> {
    fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?.trim().parse().ok()
}
