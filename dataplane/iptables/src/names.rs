//! Names: whose a chain is, and what it is called. A chain's name has 28 characters at most, in both back ends.

use std::fmt;
use std::net::IpAddr;

use vipd_model::{Family, Protocol, ServiceKey};

/// The two writers of this crate. Each touches and reads chains with its own prefix only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Picks endpoints.
    Balancer,
    /// Captures for the proxy, and refuses.
    Guard,
}

/// Everything of vipd's starts so.
const OURS: &str = "VIPD-";
const GUARDS: &str = "VIPD-G-";

impl Role {
    /// What its chains' names start with.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Balancer => OURS,
            Self::Guard => GUARDS,
        }
    }

    /// Whether a chain is its own.
    #[must_use]
    pub fn owns(self, chain: &str) -> bool {
        match self {
            Self::Balancer => chain.starts_with(OURS) && !chain.starts_with(GUARDS),
            Self::Guard => chain.starts_with(GUARDS),
        }
    }

    /// A chain of its own.
    #[must_use]
    pub fn chain(self, rest: impl fmt::Display) -> String {
        format!("{}{rest}", self.prefix())
    }
}

/// A table that we write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Where a new flow's destination and source are translated.
    Nat,
    /// Where packets are refused.
    Filter,
}

impl Table {
    /// Both. What is translated to the refusing ports must not come before what refuses there: written in this order.
    pub const ALL: [Self; 2] = [Self::Filter, Self::Nat];

    /// As iptables spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::Filter => "filter",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A short name for something longer: 80 bits of FNV-1a in base 32. Two services with one name would contend for a chain,
/// and the second be refused; nobody would get the other's traffic.
#[must_use]
pub fn short(text: &str) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = text.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    let folded = hash ^ (hash >> 64);
    let digit = |n: u32| b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[(folded >> (5 * n) & 31) as usize];
    (0..16).map(|n| char::from(digit(n))).collect()
}

/// The short name of a service.
#[must_use]
pub fn service(key: &ServiceKey) -> String {
    short(&key.to_string())
}

/// What a chain of a service or a frontend is for; the rest of its name says whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Picks one of all endpoints of a service.
    All,
    /// Picks one of those on this node.
    Local,
    /// Lets a frontend's sources pass.
    Gate,
    /// The same for clients inside, where they get something else.
    InsideGate,
}

impl Kind {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::All, Self::Local, Self::Gate, Self::InsideGate];

    fn letter(self) -> char {
        match self {
            Self::All => 'S',
            Self::Local => 'L',
            Self::Gate => 'F',
            Self::InsideGate => 'H',
        }
    }

    /// The chain of this kind.
    #[must_use]
    pub fn chain(self, role: Role, of: &str) -> String {
        role.chain(format_args!("{}-{of}", self.letter()))
    }

    /// What a chain is for, and whose it is; absent: it is no such chain.
    #[must_use]
    pub fn parse(role: Role, chain: &str) -> Option<(Self, &str)> {
        let (letter, of) = chain.strip_prefix(role.prefix())?.split_once('-')?;
        let kind = Self::ALL.into_iter().find(|kind| letter.chars().eq([kind.letter()]))?;
        Some((kind, of))
    }
}

/// What of a prefix fits into a chain's name: an IPv4 address, or an IPv6 prefix in short.
pub(crate) fn prefix(address: IpAddr, length: u8) -> String {
    match address {
        IpAddr::V4(address) => format!("{address}-{length}"),
        IpAddr::V6(address) => {
            let name = short(&address.to_string());
            format!("{}-{length}", &name[..12])
        }
    }
}

/// What of a range of ports fits into a chain's name: `t75` is TCP 0x7500 to 0x75ff.
pub(crate) fn ports(protocol: Protocol, first: u16, length: u8) -> String {
    let letter = match protocol {
        Protocol::Tcp => 't',
        Protocol::Udp => 'u',
        Protocol::Sctp => 's',
    };
    let digits = usize::from(length / 4);
    format!("{letter}{}", &format!("{first:04x}")[..digits])
}

/// Ends of a comment, so that it can be read back.
const COMMENT: usize = 100;

/// A comment that every version takes: printable ASCII, not long.
#[must_use]
pub fn comment(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    text.chars().map(plain).take(COMMENT).collect()
}

/// The IP version of a family's programs: `iptables`, `ip6tables`.
pub(crate) fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_are_told_apart() {
        let longest = [
            Role::Guard.chain(format_args!("T-{}", prefix("255.255.255.240".parse().unwrap(), 28))),
            Role::Guard.chain(format_args!("T-{}", prefix("fd00:ffff::".parse().unwrap(), 124))),
            Role::Guard.chain(format_args!("S-{}", short("k8s/shop/web:http"))),
            Role::Guard.chain(format_args!("A-{}{}", &short("x")[..12], ports(Protocol::Tcp, 0x7530, 16))),
        ];
        for name in longest {
            assert!(name.len() <= 28, "{name}");
            assert!(Role::Guard.owns(&name) && !Role::Balancer.owns(&name));
        }
        assert!(!Role::Balancer.owns("KUBE-SERVICES") && Role::Balancer.owns("VIPD-SERVICES"));
        assert_ne!(short("k8s/a"), short("k8s/b"));
    }
}
