//! Owners: who declares, what they know of the network, and whether they still live.

use std::time::Duration;

use ipnet::IpNet;

use crate::name::OwnerName;
use crate::{Millis, Revision};

/// What happens when a lease runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseExpiry {
    /// A problem on every service; traffic flows.
    #[default]
    Report,
    /// They are not served until it is renewed.
    Withdraw,
}

/// "Still here", with a time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    /// 1 s to 7 d. A start of the daemon grants a full one.
    pub ttl: Duration,
    /// What then.
    pub on_expiry: LeaseExpiry,
}

/// What a restart of the daemon does with the stored state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Restart {
    /// Serve it at once.
    #[default]
    Restore,
    /// Keep what the kernel has, program nothing new until the owner's first Sync.
    AwaitSync,
}

/// What an owner knows of the network. The node uses the union over its owners.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    /// Clients that live here.
    pub local_sources: Vec<IpNet>,
    /// Or where they come in: `cni0`, `veth*`.
    pub local_source_interfaces: Vec<String>,
    /// Hold nothing but VIPs: what nobody serves there is refused.
    pub virtual_ranges: Vec<IpNet>,
    /// AUTO means always for INTERNAL too.
    pub source_nat_all: bool,
}

impl Network {
    /// The union with another owner's knowledge; sorted, without duplicates.
    pub fn merge(&mut self, other: &Self) {
        fn union<T: Clone + Ord>(into: &mut Vec<T>, from: &[T]) {
            into.extend_from_slice(from);
            into.sort();
            into.dedup();
        }
        union(&mut self.local_sources, &other.local_sources);
        union(&mut self.local_source_interfaces, &other.local_source_interfaces);
        union(&mut self.virtual_ranges, &other.virtual_ranges);
        self.source_nat_all |= other.source_nat_all;
    }
}

/// An owner's settings, every default filled in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Its name.
    pub name: OwnerName,
    /// Absent: none.
    pub lease: Option<Lease>,
    /// What it knows of the network.
    pub network: Network,
    /// What a restart does.
    pub on_restart: Restart,
    /// Restore only state younger than this; absent: any age.
    pub restore_max_age: Option<Duration>,
    /// `/healthz` says 503.
    pub node_draining: bool,
}

impl Owner {
    /// The owner that first use makes: a name and defaults.
    #[must_use]
    pub fn new(name: OwnerName) -> Self {
        Self {
            name,
            lease: None,
            network: Network::default(),
            on_restart: Restart::default(),
            restore_max_age: None,
            node_draining: false,
        }
    }
}

/// An owner and what is remembered of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRecord {
    /// What it set.
    pub owner: Owner,
    /// The newest accepted change of this owner's state (its services or settings).
    pub revision: Revision,
    /// The session that may write; 0: none was opened. It is the ticket that the Sync got at its begin.
    pub session: u64,
    /// Who holds it.
    pub session_holder: String,
    /// The last accepted write or renewal.
    pub last_write: Millis,
    /// The last commit of a Sync.
    pub last_sync: Option<Millis>,
}

impl OwnerRecord {
    /// An owner of which nothing is remembered yet.
    #[must_use]
    pub fn new(owner: Owner) -> Self {
        let (revision, last_write) = (Revision::default(), Millis::default());
        Self { owner, revision, session: 0, session_holder: String::new(), last_write, last_sync: None }
    }

    /// When the lease runs out, if there is one.
    #[must_use]
    pub fn lease_expires(&self) -> Option<Millis> {
        let ttl = u64::try_from(self.owner.lease?.ttl.as_millis()).unwrap_or(u64::MAX);
        Some(Millis(self.last_write.0.saturating_add(ttl)))
    }
}
