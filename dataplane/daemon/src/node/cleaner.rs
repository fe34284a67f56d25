//! Forgets UDP flows that a change made stale, by the kernel's connection tracking.

use vipd_engine::FlowFilter;
use vipd_model::Family;
use vipd_netlink::conntrack::{self, Conntrack, IpFamily};

use crate::reconcile::Cleaner;

/// On a netlink socket of its own.
pub struct ConntrackCleaner(Conntrack);

impl ConntrackCleaner {
    /// Opens it.
    ///
    /// # Errors
    /// If the kernel has no connection tracking, or does not let us.
    pub fn open() -> Result<Self, vipd_netlink::Error> {
        Conntrack::open().map(Self)
    }
}

impl Cleaner for ConntrackCleaner {
    fn clean(&mut self, filters: &[FlowFilter]) -> Result<(), String> {
        let filters: Vec<_> = filters.iter().map(of_the_kernel).collect();
        self.0.delete(&filters).map_err(|error| error.to_string())
    }
}

fn of_the_kernel(filter: &FlowFilter) -> conntrack::FlowFilter {
    conntrack::FlowFilter {
        family: match filter.family {
            Family::V4 => IpFamily::V4,
            Family::V6 => IpFamily::V6,
        },
        protocol: filter.protocol.number(),
        destination: filter.destination,
        port: filter.port,
        reply_source: filter.reply_source,
    }
}
