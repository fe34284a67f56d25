//! Schedulers: how an endpoint is chosen for a new flow.

use std::fmt;

/// The algorithm of a scheduler. `Default` is an even spread that the engine is best at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// Round robin in userspace and IPVS, random in iptables and nftables.
    #[default]
    Default,
    /// In turn.
    Rr,
    /// In turn, by weight.
    Wrr,
    /// At random, by weight.
    Random,
    /// Fewest connections.
    Lc,
    /// Fewest connections per weight.
    Wlc,
    /// By hash of the source.
    Sh,
    /// By hash of the source, Maglev.
    Mh,
    /// By hash of the destination.
    Dh,
    /// Shortest expected delay.
    Sed,
    /// Never queue.
    Nq,
    /// Locality based, fewest connections.
    Lblc,
    /// The same with replication.
    Lblcr,
    /// Fail over: the heaviest that is usable.
    Fo,
    /// Overflow: the heaviest until its weight in connections is reached.
    Ovf,
    /// The less busy of two at random.
    P2c,
}

impl Algorithm {
    /// Every one, in the order of the API.
    pub const ALL: [Self; 16] = [
        Self::Default,
        Self::Rr,
        Self::Wrr,
        Self::Random,
        Self::Lc,
        Self::Wlc,
        Self::Sh,
        Self::Mh,
        Self::Dh,
        Self::Sed,
        Self::Nq,
        Self::Lblc,
        Self::Lblcr,
        Self::Fo,
        Self::Ovf,
        Self::P2c,
    ];

    /// Whether source or destination decide, so that one client always gets the same endpoint.
    #[must_use]
    pub fn is_hash(self) -> bool {
        matches!(self, Self::Sh | Self::Mh | Self::Dh)
    }
}

/// As the API spells it.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Rr => "RR",
            Self::Wrr => "WRR",
            Self::Random => "RANDOM",
            Self::Lc => "LC",
            Self::Wlc => "WLC",
            Self::Sh => "SH",
            Self::Mh => "MH",
            Self::Dh => "DH",
            Self::Sed => "SED",
            Self::Nq => "NQ",
            Self::Lblc => "LBLC",
            Self::Lblcr => "LBLCR",
            Self::Fo => "FO",
            Self::Ovf => "OVF",
            Self::P2c => "P2C",
        })
    }
}

/// What to do where the service's engine does not have the algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fallback {
    /// The call is refused.
    #[default]
    Refused,
    /// The nearest one runs, and the status says so.
    Nearest,
}

/// How an endpoint is chosen for a new flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scheduler {
    /// Which algorithm.
    pub algorithm: Algorithm,
    /// SH and MH: also the client's port.
    pub hash_source_port: bool,
    /// Where the engine does not have it.
    pub fallback: Fallback,
}
