//! The layout of our tables: sets, chains and the rules in them. A constant, but for one rule per prefix length in use.
//!
//! ```text
//! -110  sources-pre, sources-out  new → sources: frontend with source ranges → allowed*: listed, or dropped
//! -100  nat-pre, nat-out          → capture: frontend → redirect to the proxy's port
//!  -90  refuse-pre, refuse-out    new, untranslated → refuse: frontend → answer or drop; virtual range → answer
//!                                 invalid → invalid: frontend → drop
//!    0  proxy-in                  new, untranslated, from outside, to a port of the proxy → answer
//! ```
//! What a frontend is lives in set elements; rules do not know services. `vipd-anchor` holds one rule that uses
//! connection tracking and one empty nat chain: established flows die with the last of either in the namespace.
//! The nftables balancer's chains and maps will stand in the same table, between `sources` and `refuse`.

use vipd_engine::InvalidPackets;
use vipd_model::{Family, Protocol};
use vipd_netlink::nft::{ChainKind, Data, Field, Hook, HookPoint, Set, Traits};

use super::names::{ChainName, Prefix, Reach, Role, SetName};
use crate::rule::Rule;

/// Before NAT, after connection tracking (−200).
const BEFORE_NAT: i32 = -110;
/// `NF_IP_PRI_NAT_DST`
const NAT: i32 = -100;
/// Right after NAT, before any rule of a host firewall could let the packet go.
const AFTER_NAT: i32 = -90;
/// `NF_IP_PRI_FILTER`
const FILTER: i32 = 0;

/// How a chain hangs in the packet's way; none of those that are jumped to.
#[must_use]
pub fn hook(chain: ChainName) -> Option<Hook> {
    let hook = |kind, point, priority| Some(Hook { kind, point, priority });
    match chain {
        ChainName::Track => hook(ChainKind::Filter, HookPoint::Prerouting, FILTER),
        ChainName::Translate => hook(ChainKind::Nat, HookPoint::Prerouting, NAT),
        ChainName::SourcesPre => hook(ChainKind::Filter, HookPoint::Prerouting, BEFORE_NAT),
        ChainName::SourcesOut => hook(ChainKind::Filter, HookPoint::Output, BEFORE_NAT),
        ChainName::NatPre => hook(ChainKind::Nat, HookPoint::Prerouting, NAT),
        ChainName::NatOut => hook(ChainKind::Nat, HookPoint::Output, NAT),
        ChainName::RefusePre => hook(ChainKind::Filter, HookPoint::Prerouting, AFTER_NAT),
        ChainName::RefuseOut => hook(ChainKind::Filter, HookPoint::Output, AFTER_NAT),
        ChainName::ProxyIn => hook(ChainKind::Filter, HookPoint::Input, FILTER),
        ChainName::Answer
        | ChainName::Allowed { .. }
        | ChainName::SourcesNode
        | ChainName::Sources
        | ChainName::CaptureNode
        | ChainName::Capture
        | ChainName::Virtual { .. }
        | ChainName::RefuseNode
        | ChainName::Refuse
        | ChainName::Invalid => None,
    }
}

/// The rules of a chain, in order. Those of prefixes in use stand before them.
#[must_use]
pub fn rules(chain: ChainName, invalid_packets: InvalidPackets) -> Vec<Rule> {
    match chain {
        ChainName::Track => vec![Rule::default().established().accept()],
        ChainName::Translate | ChainName::Virtual { .. } => Vec::new(),
        ChainName::Answer => vec![Rule::default().protocol(Protocol::Tcp).reset(), Rule::default().unreachable()],
        ChainName::Allowed { .. } => vec![Rule::default().drop()],
        ChainName::SourcesNode => sources(Reach::Node),
        ChainName::Sources => with_node(sources(Reach::Address), |rule| rule.goto(ChainName::SourcesNode)),
        ChainName::CaptureNode => capture(Reach::Node),
        ChainName::Capture => with_node(capture(Reach::Address), |rule| rule.goto(ChainName::CaptureNode)),
        ChainName::RefuseNode => refuse(Reach::Node),
        ChainName::Refuse => {
            let mut rules = with_node(refuse(Reach::Address), |rule| rule.jump(ChainName::RefuseNode));
            rules.extend(Family::ALL.map(|family| Rule::default().family(family).goto(ChainName::Virtual { family })));
            rules
        }
        ChainName::Invalid => invalid(invalid_packets),
        ChainName::SourcesPre | ChainName::SourcesOut => vec![Rule::default().new_flow().goto(ChainName::Sources)],
        ChainName::NatPre | ChainName::NatOut => vec![Rule::default().jump(ChainName::Capture)],
        ChainName::RefusePre | ChainName::RefuseOut => vec![
            Rule::default().new_flow().untranslated().goto(ChainName::Refuse),
            Rule::default().invalid().goto(ChainName::Invalid),
        ],
        ChainName::ProxyIn => {
            let direct = Rule::default().new_flow().untranslated().not_from_loopback();
            vec![direct.port_in(SetName::ProxyPorts).goto(ChainName::Answer)]
        }
    }
}

fn everywhere() -> impl Iterator<Item = (Reach, Family)> {
    Reach::ALL.into_iter().flat_map(|reach| Family::ALL.into_iter().map(move |family| (reach, family)))
}

/// Whether a packet is for this node is asked once, for that costs a look at the routes.
fn with_node(mut rules: Vec<Rule>, there: impl FnOnce(Rule) -> Rule) -> Vec<Rule> {
    rules.push(there(Rule::default().at_this_node()));
    rules
}

/// Whoever may not come is dropped, the node itself included, whatever becomes of the others.
fn sources(reach: Reach) -> Vec<Rule> {
    let ranged = |family| {
        let set = SetName::Spots { role: Role::Ranged, reach, family };
        Rule::default().at(reach, family, set).goto(ChainName::Allowed { reach, family })
    };
    Family::ALL.map(ranged).into()
}

/// A rule for each protocol, or `nft -f` would not read back what `nft list ruleset` prints: it wants a transport
/// protocol named before a port is mapped.
fn capture(reach: Reach) -> Vec<Rule> {
    let of_protocol = |protocol| {
        Family::ALL.map(|family| {
            let map = SetName::Spots { role: Role::Capture, reach, family };
            Rule::default().redirect(protocol, reach, family, map)
        })
    };
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().flat_map(of_protocol).collect()
}

/// A captured frontend here means that a change came between capture and refusal: silence, and the client's next try
/// finds the proxy. Unknown ports of virtual ranges come last.
fn refuse(reach: Reach) -> Vec<Rule> {
    let mut rules = Vec::new();
    for family in Family::ALL {
        for role in Role::FATES {
            let rule = Rule::default().at(reach, family, SetName::Spots { role, reach, family });
            rules.push(match role {
                Role::Reject => rule.goto(ChainName::Answer),
                _ => rule.drop(),
            });
        }
    }
    rules
}

/// Out of window, or of a flow that was forgotten. A reset could end a healthy connection, so silence.
fn invalid(invalid_packets: InvalidPackets) -> Vec<Rule> {
    if invalid_packets == InvalidPackets::Off {
        return Vec::new();
    }
    let drop = |(reach, family)| {
        Role::FATES.map(|role| {
            let rule = match reach {
                Reach::Address => Rule::default(),
                Reach::Node => Rule::default().at_this_node(),
            };
            rule.at(reach, family, SetName::Spots { role, reach, family }).drop()
        })
    };
    everywhere().flat_map(drop).collect()
}

/// The rule of a prefix length in use.
#[must_use]
pub fn prefix_rule(prefix: Prefix) -> Rule {
    let rule = Rule::default().in_prefix(prefix);
    match prefix {
        Prefix::Allow { .. } => rule.back(),
        Prefix::Virtual { .. } => rule.goto(ChainName::Answer),
    }
}

/// A set's type.
#[must_use]
pub fn set(name: SetName) -> Set {
    let address = |family| match family {
        Family::V4 => Field::Ipv4,
        Family::V6 => Field::Ipv6,
    };
    let spot = |reach, family| match reach {
        Reach::Address => vec![address(family), Field::Protocol, Field::Port],
        Reach::Node => vec![Field::Protocol, Field::Port],
    };
    let mut data = None;
    let key = match name {
        SetName::Spots { role, reach, family } => {
            data = (role == Role::Capture).then_some(Data::Fields(vec![Field::Port]));
            spot(reach, family)
        }
        SetName::ProxyPorts => vec![Field::Protocol, Field::Port],
        SetName::Prefix(Prefix::Allow { reach, family, .. }) => {
            let mut key = spot(reach, family);
            key.push(address(family));
            key
        }
        SetName::Prefix(Prefix::Virtual { family, .. }) => vec![address(family)],
    };
    Set { name: name.to_string(), key, data, interval: false, traits: Traits::default() }
}
