//! Rules as values: what we write, and the same read back from `iptables-save`.
//!
//! Versions and back ends print a rule in their own order and spelling, so texts are compared only after they went
//! through [`Rule`]: parsed, and printed as we print. What has a part that we never write is no rule of ours, and
//! parses to nothing.

mod parse;
mod print;

use ipnet::IpNet;
use std::net::IpAddr;
use vipd_model::{Family, PortRange, Protocol};

pub(crate) use parse::words;

/// One rule of a chain of ours: everything that is given must match. Printed in the order of the fields, which is the
/// order in which the kernel looks: chance comes before affinity's record, or every client would be recorded everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// From here.
    pub source: Option<IpNet>,
    /// To here, or (`true`) to anywhere else.
    pub destination: Option<(bool, IpNet)>,
    /// In through this interface, or (`true`) any other; `+` at the end stands for the rest of the name.
    pub interface: Option<(bool, String)>,
    /// L4 protocol.
    pub protocol: Option<Protocol>,
    /// Destination ports of that protocol.
    pub ports: Option<PortRange>,
    /// From an address of this node.
    pub local_source: bool,
    /// To an address of this node.
    pub local_destination: bool,
    /// Each of these holds.
    pub states: Vec<State>,
    /// Where the flow's first packet was sent, before translation.
    pub original: Original,
    /// The port that answers.
    pub reply_port: Option<u16>,
    /// For people, and for reading back.
    pub comment: Option<String>,
    /// By chance, or every so many times.
    pub chance: Option<Chance>,
    /// Affinity.
    pub recent: Option<Recent>,
    /// Source and destination are the same address, of this family.
    pub to_itself: Option<Family>,
    /// What then.
    pub target: Option<Target>,
}

/// The original destination of a flow, as connection tracking remembers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Original {
    /// Within this.
    pub destination: Option<IpNet>,
    /// One of these.
    pub ports: Option<PortRange>,
}

/// What connection tracking says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The first of a flow.
    New,
    /// Of a flow whose destination was translated.
    Dnat,
    /// Of a flow whose destination was not.
    NotDnat,
    /// Of no flow.
    Invalid,
    /// Of a flow that was answered.
    Established,
}

/// Whether a packet that came so far is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chance {
    /// With this probability, in units of 2⁻³¹, as the kernel keeps it (`xt_statistic.c`).
    Random(u32),
    /// One of so many, in turn.
    Nth(u32),
}

/// A list of clients (`xt_recent`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recent {
    /// Its name in `/proc/net/xt_recent`.
    pub name: String,
    /// What of an address makes a client.
    pub mask: IpAddr,
    /// Absent: records the client, whoever it is. Given: matches clients recorded within so many seconds, and records
    /// them anew.
    pub within: Option<u32>,
}

/// What happens to what matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Another chain, and back here if nothing there decides.
    Jump(String),
    /// Another chain, and from there back to where this chain was jumped from.
    Goto(String),
    /// Back to where this chain was jumped from.
    Return,
    /// Another destination; without a port the client's is kept.
    Dnat(IpAddr, Option<u16>),
    /// A port of this node.
    Redirect(u16),
    /// The address of the interface that it leaves by becomes its source.
    Masquerade,
    /// TCP reset.
    Reset,
    /// ICMP port unreachable, of this family.
    Unreachable(Family),
    /// Silence.
    Drop,
}

/// 1 in [`Chance::Random`].
pub(crate) const CERTAIN: u32 = 1 << 31;

impl Rule {
    /// A rule that always does this.
    #[must_use]
    pub fn always(target: Target) -> Self {
        Self { target: Some(target), ..Self::default() }
    }

    /// The chain that it leads to, if it does.
    #[must_use]
    pub fn leads_to(&self) -> Option<&str> {
        match &self.target {
            Some(Target::Jump(chain) | Target::Goto(chain)) => Some(chain),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
