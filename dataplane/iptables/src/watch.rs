//! Notices, cheaply, that somebody else may have written to the tables.
//!
//! nf_tables counts its commits, whoever makes them; the legacy tables only have a size. What is noticed is a reason to
//! read everything back, which costs seconds where there is much: so the answer is no until ten times the time of the last
//! reading has passed.

use std::time::{Duration, Instant};

use vipd_model::Family;
use vipd_netlink::conntrack::IpFamily;
use vipd_netlink::nft::Nft;
use vipd_netlink::xtables::{TableSize, Xtables};

use crate::backend::{Backend, legacy_tables};
use crate::names::Table;

/// Readings cost a tenth of the time at most.
const REST: u32 = 10;

/// What is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mark {
    /// The generation of nf_tables.
    generation: Option<u32>,
    /// Sizes of legacy tables.
    sizes: Vec<TableSize>,
}

/// What we knew when we last read or wrote.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    nft: Option<Nft>,
    legacy: Vec<(Family, Xtables)>,
    known: Option<Mark>,
    moved: bool,
    not_before: Option<Instant>,
}

impl Watch {
    /// All is about to be read. What is written meanwhile is noticed afterwards.
    pub(crate) fn reading(&mut self, backend: Backend) {
        self.known = self.mark(backend);
        self.moved = false;
    }

    /// All was read, in so much time.
    pub(crate) fn read(&mut self, took: Duration) {
        self.not_before = Some(Instant::now() + took * REST);
    }

    /// We are about to write: what others wrote before is remembered.
    pub(crate) fn writing(&mut self, backend: Backend) {
        self.moved |= self.mark(backend) != self.known;
    }

    /// We have written.
    pub(crate) fn written(&mut self, backend: Backend) {
        self.known = self.mark(backend);
    }

    /// Whether somebody else was noticed.
    pub(crate) fn is_disturbed(&mut self, backend: Backend) -> bool {
        if self.not_before.is_some_and(|time| Instant::now() < time) {
            return false;
        }
        self.moved || self.mark(backend) != self.known
    }

    fn mark(&mut self, backend: Backend) -> Option<Mark> {
        match backend {
            Backend::Nft => {
                if self.nft.is_none() {
                    self.nft = Nft::open().ok();
                }
                let generation = self.nft.as_mut()?.generation().ok()?;
                Some(Mark { generation: Some(generation), sizes: Vec::new() })
            }
            Backend::Legacy => {
                if self.legacy.is_empty() {
                    let open = |family| Some((family, Xtables::open(ip_family(family)).ok()?));
                    self.legacy = Family::ALL.into_iter().filter_map(open).collect();
                }
                let mut sizes = Vec::new();
                for (family, socket) in &self.legacy {
                    let there = legacy_tables(*family);
                    let ours = Table::ALL.into_iter().filter(|table| there.iter().any(|name| name == table.as_str()));
                    sizes.extend(ours.filter_map(|table| socket.size(table.as_str()).ok()));
                }
                Some(Mark { generation: None, sizes })
            }
        }
    }
}

/// The family, as netlink's crate calls it.
pub(crate) fn ip_family(family: Family) -> IpFamily {
    match family {
        Family::V4 => IpFamily::V4,
        Family::V6 => IpFamily::V6,
    }
}
