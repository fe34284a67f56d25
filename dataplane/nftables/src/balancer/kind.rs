//! Kinds of pick: how one of a pool's endpoints is taken. Pools that pick alike share a chain.
//!
//! A *direct* kind finds address and port under the slot that it draws. An *indexed* one finds the endpoint's index
//! first, because affinity must ask whether a remembered endpoint still serves, and a limit counts per endpoint.

use std::fmt;

use vipd_model::Family;

use crate::digit;

/// Which slot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pick {
    /// At random.
    Random,
    /// In turn. The counter lives in the rule, so every pool has a chain of its own.
    Turns {
        /// Whose.
        pool: u32,
    },
    /// By hash of the source.
    Hash {
        /// And of its port.
        port: bool,
    },
}

/// One client, one endpoint: chains with the same time-out and prefix are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Affinity {
    /// Since the client's last new flow.
    pub milliseconds: u32,
    /// Clients of one such prefix are one client.
    pub prefix: u8,
}

/// The way from a slot to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Slot → address and port.
    Direct,
    /// Slot → address; the packet keeps its port.
    Hosts,
    /// Slot → index → whatever the endpoint has.
    Indexed {
        /// A remembered endpoint comes first.
        affinity: Option<Affinity>,
        /// Some endpoints have limits: where the drawn one is full, every other is tried.
        limited: bool,
    },
}

/// A kind of pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// Of the pools that use it.
    pub family: Family,
    /// Of their maps.
    pub bank: u16,
    /// Which slot.
    pub pick: Pick,
    /// How many there are.
    pub slots: u16,
    /// From the slot to the address.
    pub way: Way,
}

impl Kind {
    /// The kind whose chain has this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let mut kind = Self { family: Family::V4, bank: 0, pick: Pick::Random, slots: 0, way: Way::Direct };
        let mut parts = name.split('-');
        kind.pick = match parts.next()? {
            "random" => Pick::Random,
            "turns" => Pick::Turns { pool: 0 },
            "hash" => Pick::Hash { port: false },
            _ => return None,
        };
        kind.slots = parts.next()?.parse().ok()?;
        for part in parts {
            match part {
                "port" => kind.pick = Pick::Hash { port: true },
                "hosts" => kind.way = Way::Hosts,
                "indexed" => kind.way = Way::Indexed { affinity: None, limited: false },
                "limited" => {
                    let Way::Indexed { limited, .. } = &mut kind.way else { return None };
                    *limited = true;
                }
                _ => kind.take(part)?,
            }
        }
        (kind.to_string() == name).then_some(kind)
    }

    fn take(&mut self, part: &str) -> Option<()> {
        if let Some(pool) = part.strip_prefix('p') {
            self.pick = Pick::Turns { pool: pool.parse().ok()? };
        } else if let Some(bank) = part.strip_prefix('v') {
            let (family, bank) = bank.split_once('b')?;
            self.family = if family == "4" { Family::V4 } else { Family::V6 };
            self.bank = bank.parse().ok()?;
        } else {
            let found = Affinity::parse(part)?;
            let Way::Indexed { affinity, .. } = &mut self.way else { return None };
            *affinity = Some(found);
        }
        Some(())
    }
}

impl Affinity {
    /// The part of a chain's name that says it.
    pub(super) fn parse(part: &str) -> Option<Self> {
        let (milliseconds, prefix) = part.strip_prefix('a')?.split_once("ms")?;
        Some(Self { milliseconds: milliseconds.parse().ok()?, prefix: prefix.parse().ok()? })
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a{}ms{}", self.milliseconds, self.prefix)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pick {
            Pick::Random => write!(f, "random-{}", self.slots)?,
            Pick::Turns { pool } => write!(f, "turns-{}-p{pool}", self.slots)?,
            Pick::Hash { port: false } => write!(f, "hash-{}", self.slots)?,
            Pick::Hash { port: true } => write!(f, "hash-{}-port", self.slots)?,
        }
        match self.way {
            Way::Direct => {}
            Way::Hosts => f.write_str("-hosts")?,
            Way::Indexed { affinity, limited } => {
                f.write_str("-indexed")?;
                if let Some(affinity) = affinity {
                    write!(f, "-{affinity}")?;
                }
                f.write_str(if limited { "-limited" } else { "" })?;
            }
        }
        write!(f, "-v{}b{}", digit(self.family), self.bank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let affinity = Some(Affinity { milliseconds: 10_800_000, prefix: 24 });
        for pick in [Pick::Random, Pick::Turns { pool: 77 }, Pick::Hash { port: false }, Pick::Hash { port: true }] {
            for way in [
                Way::Direct,
                Way::Hosts,
                Way::Indexed { affinity: None, limited: false },
                Way::Indexed { affinity, limited: true },
            ] {
                let kind = Kind { family: Family::V6, bank: 3, pick, slots: 5, way };
                assert_eq!(Kind::parse(&kind.to_string()), Some(kind));
            }
        }
        for foreign in ["", "random", "random-05-v4b0", "random-5-limited-v4b0", "sources", "turns-5-v4b0x"] {
            assert_eq!(Kind::parse(foreign), None, "{foreign}");
        }
    }
}
