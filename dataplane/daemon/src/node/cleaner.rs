//! The kernel's connection tracking, for the reconciler: forgets UDP flows that a change made stale, and counts flows that
//! an engine left behind.

use std::collections::BTreeMap;

use vipd_engine::{FlowFilter, Judge};
use vipd_model::{Family, Protocol, ServiceKey};
use vipd_netlink::conntrack::{self, Conntrack, Flow, IpFamily};

use crate::reconcile::{Cleaner, Watched};

/// On netlink sockets of its own.
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
    fn clean(&mut self, filters: &[FlowFilter], judge: &Judge) -> Result<(), String> {
        let filters: Vec<_> = filters.iter().map(of_the_kernel).collect();
        self.0.delete(&filters).map_err(|error| error.to_string())?;
        if judge.is_empty() {
            return Ok(());
        }
        let stale = |flow: &Flow| {
            let (to, from) = (&flow.original, &flow.reply);
            to.protocol == Protocol::Udp.number()
                && judge.is_stale((to.destination, to.destination_port), (from.source, from.source_port))
        };
        let walk = |family| self.0.forget(family, stale);
        [IpFamily::V4, IpFamily::V6].into_iter().try_for_each(walk).map_err(|error| error.to_string())
    }

    fn carried(&mut self, watched: &Watched) -> Result<BTreeMap<ServiceKey, Vec<u32>>, String> {
        let mut carried: BTreeMap<ServiceKey, Vec<u32>> = BTreeMap::new();
        let mut see = |flow: &Flow| {
            let (to, from) = (&flow.original, &flow.reply);
            let Some(protocol) = protocol(to.protocol) else { return };
            let Some((service, answerers)) = watched.find(protocol, to.destination, to.destination_port) else {
                return;
            };
            if flow.is_live()
                && answerers.allow(from.source, from.source_port, to.destination_port)
                && let Some(id) = flow.id
            {
                match carried.get_mut(service) {
                    Some(ids) => ids.push(id),
                    None => drop(carried.insert(service.clone(), vec![id])),
                }
            }
        };
        for family in [IpFamily::V4, IpFamily::V6] {
            self.0.visit(family, &mut see).map_err(|error| error.to_string())?;
        }
        carried.values_mut().for_each(|ids| ids.sort_unstable());
        Ok(carried)
    }

    fn cut(&mut self, flows: &[u32]) -> Result<(), String> {
        let stale = |flow: &Flow| flow.id.is_some_and(|id| flows.binary_search(&id).is_ok());
        let mut walk = |family| self.0.forget(family, stale);
        [IpFamily::V4, IpFamily::V6].into_iter().try_for_each(&mut walk).map_err(|error| error.to_string())
    }
}

fn protocol(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|protocol| protocol.number() == number)
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
