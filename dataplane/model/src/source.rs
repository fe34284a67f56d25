//! Where a packet comes from, and whether its source address is translated.
//!
//! Both are decided here for every engine; how a translation is made is the engine's or the guard's.

use std::fmt;
use std::net::IpAddr;

use crate::frontend::{Family, Frontend, Policy, Scope, SourceNat};
use crate::owner::Network;
use crate::service::ClientAffinity;

/// How a packet reached the node's frontends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival<'a> {
    /// Sent by a process of this node.
    Node,
    /// Through this interface.
    Interface(&'a str),
    /// Not known: a proxy sees an accepted connection, not the packet.
    Unknown,
}

/// What a source is to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceClass {
    /// A process of this node, even where the node's address lies in an owner's local sources.
    Node,
    /// A local source of some owner's Network, such as a pod.
    Local,
    /// Everybody else.
    Outside,
}

impl SourceClass {
    /// Classifies a source. `is_node_address` says whether an address is one of this node's; loopback always is.
    #[must_use]
    pub fn of(
        source: IpAddr,
        arrival: Arrival<'_>,
        network: &Network,
        is_node_address: impl FnOnce(IpAddr) -> bool,
    ) -> Self {
        if arrival == Arrival::Node || source.is_loopback() || is_node_address(source) {
            return Self::Node;
        }
        let by_interface = |name: &str| network.local_source_interfaces.iter().any(|p| interface_matches(p, name));
        let local = network.local_sources.iter().any(|net| net.contains(&source))
            || matches!(arrival, Arrival::Interface(name) if by_interface(name));
        if local { Self::Local } else { Self::Outside }
    }

    /// Whether its traffic to an EXTERNAL frontend never left this node.
    #[must_use]
    pub fn is_inside(self) -> bool {
        self != Self::Outside
    }
}

impl fmt::Display for SourceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "a process of this node",
            Self::Local => "a local source",
            Self::Outside => "from outside",
        })
    }
}

/// Whether an interface name matches a pattern: itself, or a prefix followed by `*`.
#[must_use]
pub fn interface_matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

/// Why a source address is translated or kept. Shown to people by `Display`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NatReason {
    /// Translated: the endpoint reaches itself, and would answer itself directly.
    Hairpin,
    /// Translated: the proxy opens the connection to the endpoint itself.
    Relayed,
    /// Translated: the frontend says ALWAYS.
    Always,
    /// Translated: AUTO at EXTERNAL + ALL, where the reply must come back through this node.
    External,
    /// Translated: AUTO at EXTERNAL + LOCAL, for a process of this node.
    NodeProcess,
    /// Translated: AUTO at INTERNAL, and some owner says so for all.
    All,
    /// Translated: AUTO at INTERNAL, for a source that is no local one.
    NotLocal,
    /// Kept: the frontend says NEVER.
    Never,
    /// Kept: AUTO at EXTERNAL + LOCAL, for everybody but this node's processes.
    ExternalLocal,
    /// Kept: AUTO at INTERNAL, for a local source.
    LocalSource,
    /// Kept: AUTO at INTERNAL, and no owner has said which sources are local.
    LocalUnknown,
}

impl NatReason {
    /// Whether the source is translated.
    #[must_use]
    pub fn translates(self) -> bool {
        match self {
            Self::Hairpin
            | Self::Relayed
            | Self::Always
            | Self::External
            | Self::NodeProcess
            | Self::All
            | Self::NotLocal => true,
            Self::Never | Self::ExternalLocal | Self::LocalSource | Self::LocalUnknown => false,
        }
    }
}

impl fmt::Display for NatReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hairpin => "hairpin: the endpoint reaches itself",
            Self::Relayed => "relayed: the proxy connects from this node's address",
            Self::Always => "source_nat ALWAYS",
            Self::External => "AUTO: EXTERNAL + ALL always translates",
            Self::NodeProcess => "AUTO: EXTERNAL + LOCAL, sent by a process of this node",
            Self::All => "AUTO: source_nat_all",
            Self::NotLocal => "AUTO: INTERNAL, not a local source",
            Self::Never => "source_nat NEVER",
            Self::ExternalLocal => "AUTO: EXTERNAL + LOCAL keeps the client's address",
            Self::LocalSource => "AUTO: INTERNAL, a local source",
            Self::LocalUnknown => "AUTO: INTERNAL, and no local sources of this family are declared",
        })
    }
}

/// Decides source NAT for one flow. `hairpin`: the source address is the chosen endpoint's own.
#[must_use]
pub fn source_nat(
    frontend: &Frontend,
    family: Family,
    class: SourceClass,
    network: &Network,
    hairpin: bool,
) -> NatReason {
    match (frontend.source_nat, frontend.scope, frontend.policy) {
        _ if hairpin => NatReason::Hairpin,
        (SourceNat::Always, ..) => NatReason::Always,
        (SourceNat::Never, ..) => NatReason::Never,
        (SourceNat::Auto, Scope::External, Policy::All) => NatReason::External,
        (SourceNat::Auto, Scope::External, Policy::Local) if class == SourceClass::Node => NatReason::NodeProcess,
        (SourceNat::Auto, Scope::External, Policy::Local) => NatReason::ExternalLocal,
        (SourceNat::Auto, Scope::Internal, _) if network.source_nat_all => NatReason::All,
        (SourceNat::Auto, Scope::Internal, _) if !knows_local_sources(network, family) => NatReason::LocalUnknown,
        (SourceNat::Auto, Scope::Internal, _) if class == SourceClass::Local => NatReason::LocalSource,
        (SourceNat::Auto, Scope::Internal, _) => NatReason::NotLocal,
    }
}

/// An interface has no family, so one pattern makes the local sources of both families known.
fn knows_local_sources(network: &Network, family: Family) -> bool {
    !network.local_source_interfaces.is_empty() || network.local_sources.iter().any(|net| Family::of_net(net) == family)
}

/// Who a client is to affinity: its address, with what lies behind the service's prefix set to 0.
#[must_use]
pub fn affinity_client(affinity: &ClientAffinity, source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(affinity.prefix_v4.into())).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(affinity.prefix_v6.into())).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn network() -> Network {
        Network {
            local_sources: vec!["10.244.0.0/16".parse().unwrap()],
            local_source_interfaces: vec!["veth*".into()],
            ..Network::default()
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_source_is_classed_by_arrival_then_address_then_interface() {
        let class = |source, arrival| SourceClass::of(ip(source), arrival, &network(), |a| a == ip("10.244.0.1"));
        assert_eq!(class("192.0.2.1", Arrival::Node), SourceClass::Node);
        assert_eq!(class("127.0.0.1", Arrival::Unknown), SourceClass::Node);
        assert_eq!(class("10.244.0.1", Arrival::Interface("veth0")), SourceClass::Node);
        assert_eq!(class("10.244.0.2", Arrival::Interface("eth0")), SourceClass::Local);
        assert_eq!(class("10.9.9.9", Arrival::Interface("veth12")), SourceClass::Local);
        assert_eq!(class("fd00::1", Arrival::Interface("veth12")), SourceClass::Local);
        assert_eq!(class("10.9.9.9", Arrival::Interface("eth0")), SourceClass::Outside);
        assert_eq!(class("10.9.9.9", Arrival::Unknown), SourceClass::Outside);
    }

    #[test]
    fn an_interface_pattern_is_a_name_or_a_prefix() {
        assert!(interface_matches("cni0", "cni0"));
        assert!(!interface_matches("cni0", "cni01"));
        assert!(interface_matches("veth*", "veth"));
        assert!(interface_matches("*", "anything"));
        assert!(!interface_matches("veth*", "eth0"));
    }

    /// The source NAT column of KUBE-PROXY-SEMANTICS §3.2, and the fields that override it.
    #[test]
    fn source_nat_follows_the_matrix() {
        use NatReason as R;
        use SourceClass::{Local, Node, Outside};
        let given = network();
        let none = Network::default();
        let all = Network { source_nat_all: true, ..network() };
        let rows = [
            (Scope::Internal, Policy::All, Local, &given, R::LocalSource),
            (Scope::Internal, Policy::Local, Local, &given, R::LocalSource),
            (Scope::Internal, Policy::All, Node, &given, R::NotLocal),
            (Scope::Internal, Policy::Local, Outside, &given, R::NotLocal),
            (Scope::Internal, Policy::All, Outside, &none, R::LocalUnknown),
            (Scope::Internal, Policy::All, Local, &all, R::All),
            (Scope::External, Policy::All, Local, &given, R::External),
            (Scope::External, Policy::All, Node, &none, R::External),
            (Scope::External, Policy::Local, Local, &given, R::ExternalLocal),
            (Scope::External, Policy::Local, Outside, &all, R::ExternalLocal),
            (Scope::External, Policy::Local, Node, &none, R::NodeProcess),
        ];
        for (scope, policy, class, network, expected) in rows {
            let mut frontend = Frontend { scope, policy, ..Frontend::vip(ip("10.96.0.1"), 80) };
            let mut decide = |nat, hairpin| {
                frontend.source_nat = nat;
                source_nat(&frontend, Family::V4, class, network, hairpin)
            };
            assert_eq!(decide(SourceNat::Auto, false), expected, "{scope:?} {policy:?} {class:?}");
            assert_eq!(decide(SourceNat::Always, false), R::Always);
            assert_eq!(decide(SourceNat::Never, false), R::Never);
            assert_eq!(decide(SourceNat::Never, true), R::Hairpin, "a hairpin is translated or it cannot work");
        }
    }

    #[test]
    fn local_sources_of_one_family_say_nothing_of_the_other() {
        let v4_only = Network { local_sources: vec!["10.244.0.0/16".parse().unwrap()], ..Network::default() };
        let frontend = Frontend::vip(ip("fd00::10"), 80);
        let reason = source_nat(&frontend, Family::V6, SourceClass::Outside, &v4_only, false);
        assert_eq!(reason, NatReason::LocalUnknown);
        let reason = source_nat(&frontend, Family::V6, SourceClass::Outside, &network(), false);
        assert_eq!(reason, NatReason::NotLocal, "an interface pattern knows both families");
    }

    #[test]
    fn clients_of_one_prefix_are_one_client() {
        let affinity = |prefix_v4, prefix_v6| ClientAffinity { timeout: Duration::from_secs(1), prefix_v4, prefix_v6 };
        assert_eq!(affinity_client(&affinity(24, 64), ip("192.0.2.77")), ip("192.0.2.0"));
        assert_eq!(affinity_client(&affinity(32, 128), ip("192.0.2.77")), ip("192.0.2.77"));
        assert_eq!(affinity_client(&affinity(0, 0), ip("192.0.2.77")), ip("0.0.0.0"));
        assert_eq!(affinity_client(&affinity(0, 0), ip("fd00::1")), ip("::"));
        assert_eq!(affinity_client(&affinity(24, 64), ip("fd00::1:2:3:4")), ip("fd00::"));
    }
}
