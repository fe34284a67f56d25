//! Pools: the endpoints of one service, family and policy, as one object.
//!
//! In the kernel a pool is an element of `pools` that says how to pick, and one element for each slot and each
//! endpoint. It is one object, applied as the difference of its elements in one transaction: so a
//! service is cheap to keep, and is never seen half changed.

use std::{fmt, sync::Arc};

use vipd_model::{EndpointKey, frontend::PortRange};

use super::{names::Reach, word::Word};

/// An endpoint that is found by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Within the pool.
    pub index: u16,
    /// Where.
    pub endpoint: EndpointKey,
    /// Most connections; 0: no limit.
    pub limit: u32,
}

/// Where flows to a pool are addressed, for those that must be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spot {
    /// How it is found.
    pub reach: Reach,
    /// Absent for [`Reach::Node`].
    pub address: Option<std::net::IpAddr>,
    /// Which ports.
    pub ports: PortRange,
}

/// A pool. Two are equal if the kernel has the same of both.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Whose it is, as `nft` shows it.
    pub label: Arc<str>,
    /// Its id and kind; absent only where somebody took the element away.
    pub word: Option<Word>,
    /// The pool whose sources from outside come here.
    pub outside_of: Option<u32>,
    /// By slot, of direct kinds; ascending.
    pub direct: Box<[(u16, EndpointKey)]>,
    /// Slot to index, of indexed kinds; ascending.
    pub slots: Box<[(u16, u16)]>,
    /// By index; ascending.
    pub members: Box<[Member]>,
    /// Networks of its endpoints that their set lacks: only ever of a pool as read back.
    pub unlisted: u32,
    /// Endpoints that take no new flows and keep their UDP flows, ascending.
    pub lingering: Box<[EndpointKey]>,
    /// UDP frontends that lead here; not in the kernel.
    pub spots: Box<[Spot]>,
}

impl Pool {
    /// Every endpoint that it leads to; one with several slots may come several times.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointKey> {
        self.direct.iter().map(|(_, endpoint)| *endpoint).chain(self.members.iter().map(|member| member.endpoint))
    }
}

impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        (&self.word, &self.outside_of, self.unlisted) == (&other.word, &other.outside_of, other.unlisted)
            && self.label == other.label
            && (&self.direct, &self.slots, &self.members) == (&other.direct, &other.slots, &other.members)
            && self.lingering == other.lingering
    }
}

impl Eq for Pool {}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.word {
            Some(word) => write!(f, ": {word} comment \"{}\"", self.label)?,
            None => f.write_str("without its element")?,
        }
        if let Some(pool) = self.outside_of {
            write!(f, ", outside of {}", Word::new(pool, 0))?;
        }
        for (slot, endpoint) in &self.direct {
            write!(f, ", {slot} : {endpoint}")?;
        }
        for (slot, index) in &self.slots {
            write!(f, ", {slot} : #{index}")?;
        }
        for Member { index, endpoint, limit } in &self.members {
            write!(f, ", #{index} : {endpoint}")?;
            if *limit > 0 {
                write!(f, " up to {limit}")?;
            }
        }
        for endpoint in &self.lingering {
            write!(f, ", lingering {endpoint}")?;
        }
        match self.unlisted {
            0 => Ok(()),
            unlisted => write!(f, ", {unlisted} of its networks missing"),
        }
    }
}
