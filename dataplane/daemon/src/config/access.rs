//! `[[access]]`: who may declare for which owners, and which addresses and ports as frontends.

use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use vipd_model::PortRange;

/// One entry. Keys that are left out take the default of their kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AccessEntry {
    /// Whom it matches.
    pub who: Who,
    /// Owners that may be written; `*`: any.
    #[serde(default = "any")]
    pub owners: Vec<String>,
    /// Owners that may be read; `*`: any.
    #[serde(default = "any")]
    pub read: Vec<String>,
    /// The owner of a call that names none.
    #[serde(default)]
    pub default_owner: Option<String>,
    /// What may be a VIP. Absent: what every caller may use (`docs/security.md`).
    #[serde(default)]
    pub frontends: Option<Vec<AllowedFrontends>>,
    /// Which ports may be node ports.
    #[serde(default)]
    pub node_ports: Ports,
    /// Whether the node itself may be operated: SetDefaultEngine, ReleaseHold.
    #[serde(default = "yes")]
    pub operate: bool,
}

fn any() -> Vec<String> {
    vec!["*".to_owned()]
}

fn yes() -> bool {
    true
}

impl AccessEntry {
    /// What holds for a caller on the socket whom no entry matches.
    #[must_use]
    pub fn of_the_socket() -> Self {
        Self {
            who: Who::Socket,
            owners: any(),
            read: any(),
            default_owner: None,
            frontends: None,
            node_ports: Ports::default(),
            operate: true,
        }
    }
}

/// Addresses and ports that may be frontends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AllowedFrontends {
    /// The address must be inside.
    pub cidr: IpNet,
    /// So must the ports.
    #[serde(default)]
    pub ports: Ports,
}

/// One port or several, written `"80"` or `"1024-65535"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports(pub PortRange);

impl Default for Ports {
    fn default() -> Self {
        Self(PortRange { first: 1, last: u16::MAX })
    }
}

impl Ports {
    /// Whether all of these are allowed.
    #[must_use]
    pub fn allow(self, ports: PortRange) -> bool {
        self.0.first <= ports.first && ports.last <= self.0.last
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Self(PortRange { first, last })),
            _ => Err(format!("{text:?} are no ports; write \"80\" or \"1024-65535\"")),
        }
    }
}

/// Whom an entry matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// `socket`: everybody whom the unix socket's permissions let in.
    Socket,
    /// `uid:1000`.
    Uid(u32),
    /// `gid:1000`: the caller's effective group.
    Gid(u32),
    /// `san:spiffe://…` or `san:node7.example.org`: a name in the client's certificate.
    San(String),
    /// `loopback`: everybody who comes in by `insecure-loopback`.
    Loopback,
}

impl FromStr for Who {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok();
        let who = match text.split_once(':') {
            None if text == "socket" => Some(Self::Socket),
            None if text == "loopback" => Some(Self::Loopback),
            Some(("uid", id)) => number(id).map(Self::Uid),
            Some(("gid", id)) => number(id).map(Self::Gid),
            Some(("san", name)) if !name.is_empty() => Some(Self::San(name.to_owned())),
            _ => None,
        };
        who.ok_or_else(|| {
            format!("{text:?} is nobody; write \"socket\", \"loopback\", \"uid:1000\", \"gid:1000\" or \"san:NAME\"")
        })
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket => f.write_str("socket"),
            Self::Uid(id) => write!(f, "uid:{id}"),
            Self::Gid(id) => write!(f, "gid:{id}"),
            Self::San(name) => write!(f, "san:{name}"),
            Self::Loopback => f.write_str("loopback"),
        }
    }
}

impl std::fmt::Display for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
as_text!(Who);
as_text!(Ports);
