//! Engines, and what one may lack.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::scheduler::Algorithm;

/// What moves packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineKind {
    /// The proxy.
    Userspace,
    /// By `iptables-restore`.
    Iptables,
    /// By netlink.
    Nftables,
    /// By generic netlink.
    Ipvs,
}

impl EngineKind {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Userspace, Self::Iptables, Self::Nftables, Self::Ipvs];
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Userspace => "userspace",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        })
    }
}

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $text:literal),+ $(,)?) => {
        /// What an engine may lack; the names of `vipd.v1.Feature` without the prefix.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Feature { $($(#[$doc])* $name),+ }

        impl Feature {
            /// Every one, in the order of the API.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// As the API spells it, without `FEATURE_`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}

features! {
    /// TCP services.
    Tcp = "TCP",
    /// UDP services.
    Udp = "UDP",
    /// SCTP services.
    Sctp = "SCTP",
    /// IPv6 frontends.
    Ipv6 = "IPV6",
    /// Node ports.
    NodePort = "NODE_PORT",
    /// Port ranges.
    PortRange = "PORT_RANGE",
    /// Source ranges.
    SourceRanges = "SOURCE_RANGES",
    /// Policy LOCAL, with the exception for local sources.
    PolicyLocal = "POLICY_LOCAL",
    /// Source NAT NEVER.
    KeepsSource = "KEEPS_SOURCE",
    /// Weights.
    Weight = "WEIGHT",
    /// Client affinity.
    Affinity = "AFFINITY",
    /// Client prefixes in affinity.
    AffinityPrefix = "AFFINITY_PREFIX",
    /// Affinity outlives the daemon.
    AffinitySurvivesRestart = "AFFINITY_SURVIVES_RESTART",
    /// Flows outlive the daemon.
    FlowsSurviveRestart = "FLOWS_SURVIVE_RESTART",
    /// Drain with RESET.
    DrainReset = "DRAIN_RESET",
    /// `max_connections` of an endpoint.
    MaxConnections = "MAX_CONNECTIONS",
    /// `idle_timeout` of a service.
    IdleTimeout = "IDLE_TIMEOUT",
    /// PROXY protocol.
    ProxyProtocol = "PROXY_PROTOCOL",
    /// Another endpoint when the first does not answer.
    Retry = "RETRY",
    /// Counts connections.
    CountConnections = "COUNT_CONNECTIONS",
    /// Counts active connections.
    CountActive = "COUNT_ACTIVE",
    /// Counts bytes.
    CountBytes = "COUNT_BYTES",
    /// `hash_source_port`.
    HashSourcePort = "HASH_SOURCE_PORT",
    /// Affinity ends when its time-out says.
    AffinityExactTimeout = "AFFINITY_EXACT_TIMEOUT",
    /// Endpoints on 127/8 and ::1.
    LoopbackEndpoints = "LOOPBACK_ENDPOINTS",
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What one engine can do on this node, probed at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ability {
    /// Whether it can run at all.
    pub usable: bool,
    /// When it cannot: in words.
    pub reason: String,
    /// What it has. Kept for an engine that is not usable too, so that a refusal can name it.
    pub features: BTreeSet<Feature>,
    /// What it schedules by.
    pub algorithms: BTreeSet<Algorithm>,
}

/// The engines of this node: what each can do, and in which order they are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engines {
    /// Every engine that this build knows.
    pub abilities: BTreeMap<EngineKind, Ability>,
    /// The configured order; the first is the configured default.
    pub order: Vec<EngineKind>,
    /// Why that one is the default: "configured", "ipvs wanted; no module: fell back".
    pub default_reason: String,
}

/// What an engine is designed to do where its kernel has everything, for a node that cannot run it: so that a refusal
/// names every engine that has a Feature, usable here or not. Not usable, without a reason.
#[must_use]
pub fn designed(kind: EngineKind) -> Ability {
    use Algorithm::{Default, Dh, Fo, Lblc, Lblcr, Lc, Mh, Nq, Ovf, Random, Rr, Sed, Sh, Wlc, Wrr};
    use Feature::{
        AffinityExactTimeout, CountActive, CountBytes, DrainReset, HashSourcePort, IdleTimeout, KeepsSource,
        LoopbackEndpoints, MaxConnections, ProxyProtocol, Retry,
    };
    let (lacks, algorithms): (&[Feature], &[Algorithm]) = match kind {
        EngineKind::Userspace => (&[KeepsSource], &Algorithm::ALL),
        EngineKind::Iptables => (
            &[
                CountActive,
                CountBytes,
                DrainReset,
                HashSourcePort,
                IdleTimeout,
                LoopbackEndpoints,
                MaxConnections,
                ProxyProtocol,
                Retry,
            ],
            &[Default, Rr, Random],
        ),
        EngineKind::Nftables => (
            &[CountActive, CountBytes, IdleTimeout, LoopbackEndpoints, ProxyProtocol, Retry],
            &[Default, Rr, Random, Sh, Mh],
        ),
        EngineKind::Ipvs => (
            &[AffinityExactTimeout, IdleTimeout, LoopbackEndpoints, ProxyProtocol, Retry],
            &[Default, Rr, Wrr, Lc, Wlc, Sh, Mh, Dh, Sed, Nq, Lblc, Lblcr, Fo, Ovf],
        ),
    };
    Ability {
        usable: false,
        reason: String::new(),
        features: Feature::ALL.iter().copied().filter(|feature| !lacks.contains(feature)).collect(),
        algorithms: algorithms.iter().copied().collect(),
    }
}
