//! The layout of the balancer's table. A constant number of rules, and a few for each kind of pick.
//!
//! ```text
//! -101 nat-pre, nat-out       frontend → word → choose: source ranges, inside or outside, pool → kind → endpoint
//!  -91 refuse-pre, refuse-out new, untranslated, to a frontend → refused: answer where nobody serves, else silence
//!                             invalid → to a frontend or from an endpoint: drop
//!   -1 end-forward, -in, -out only while a drain may end with a reset: established, endpoint's time is over → reset
//!   99 nat-post               translated, came for a frontend → source-nat: hairpin, ALWAYS, NEVER, AUTO
//! ```
//! What a service is lives in elements of maps; rules do not know services. The word of [`super::word`] carries pool
//! and flags from rule to rule. A packet that falls between two transactions finds slot 0, or silence: its sender tries
//! again. One place before the guard (−100, −90), so that in a switch of engines the new one's frontends win.

use vipd_engine::{InvalidPackets, Node};
use vipd_model::{Family, Network, Protocol};
use vipd_netlink::nft::{ChainKind, Data, Field, Hook, HookPoint, Set, Traits};

use super::{
    kind::{Kind, Way},
    names::{ChainName, Content, Reach, SetName},
    statements::Draw,
    word::{LIST, NAT_ALWAYS, NAT_NEVER, NAT_NODE, POOL, SPLIT},
};
use crate::rule::Rule;

/// Just before the guard and before iptables.
const NAT: i32 = -101;
/// Right after NAT, just before the guard.
const AFTER_NAT: i32 = -91;
/// Just before `NF_IP_PRI_FILTER`.
const END: i32 = -1;
/// Just before `NF_IP_PRI_NAT_SRC`.
const SOURCE_NAT: i32 = 99;

/// The kind of a pool without endpoints whose clients are told.
pub(super) const REJECTED: u32 = 1;
/// The kind of a pool without endpoints whose clients get silence.
pub(super) const DROPPED: u32 = 2;
/// The first kind that picks.
pub(super) const FIRST_KIND: u32 = 3;
/// Where an endpoint is full, so many slots are tried one after the other.
const TRIES: u32 = 64;
/// Elements of `equal`, and how many hashes must be equal for two addresses to be the same: one pair in 2^40 is taken for
/// a hairpin and is none, which costs its client's address. The kernel compares registers with constants only, and a pair
/// for every endpoint would be half of a load.
pub(super) const EQUAL: u16 = 32;
/// See [`EQUAL`].
pub(super) const EQUAL_HASHES: u32 = 8;
/// Most clients that affinity remembers, per family; others are served and forgotten.
const MAX_CLIENTS: u32 = 1 << 18;

/// How a chain hangs in the packet's way; none of those that are jumped to.
pub(super) fn hook(chain: ChainName) -> Option<Hook> {
    let hook = |kind, point, priority| Some(Hook { kind, point, priority });
    match chain {
        ChainName::NatPre => hook(ChainKind::Nat, HookPoint::Prerouting, NAT),
        ChainName::NatOut => hook(ChainKind::Nat, HookPoint::Output, NAT),
        ChainName::NatPost => hook(ChainKind::Nat, HookPoint::Postrouting, SOURCE_NAT),
        ChainName::RefusePre => hook(ChainKind::Filter, HookPoint::Prerouting, AFTER_NAT),
        ChainName::RefuseOut => hook(ChainKind::Filter, HookPoint::Output, AFTER_NAT),
        ChainName::EndForward => hook(ChainKind::Filter, HookPoint::Forward, END),
        ChainName::EndIn => hook(ChainKind::Filter, HookPoint::Input, END),
        ChainName::EndOut => hook(ChainKind::Filter, HookPoint::Output, END),
        _ => None,
    }
}

/// Whether a chain's rules depend on the node.
pub(super) fn is_of_node(chain: ChainName) -> bool {
    matches!(chain, ChainName::Classify | ChainName::IfForeign | ChainName::Invalid)
}

/// The rules of a chain, in order. Those of prefixes in use stand before them.
pub(super) fn rules(chain: ChainName, node: &Node) -> Vec<Rule> {
    let rule = Rule::default;
    match chain {
        ChainName::Answer => vec![rule().no_word(), rule().protocol(Protocol::Tcp).reset(), rule().unreachable()],
        ChainName::Masquerade => vec![rule().no_word(), rule().masquerade()],
        ChainName::IfNode => {
            let mut rules: Vec<_> = Family::ALL.map(from_node).into();
            rules.push(rule().no_word());
            rules
        }
        ChainName::IfForeign => if_foreign(&node.network),
        ChainName::SourceNat => source_nat(),
        ChainName::Translated => {
            everywhere().map(|(reach, family)| rule().find_original(reach, family).goto(ChainName::SourceNat)).collect()
        }
        ChainName::IsInside => vec![rule().without_flag(SPLIT)],
        ChainName::Classify => classify(&node.network),
        ChainName::Admit => vec![rule().drop()],
        ChainName::Outside => vec![rule().kind_of(SetName::Outside).by_kind(), rule().no_word()],
        ChainName::Choose => vec![
            rule().flag(LIST).jump(ChainName::Admit),
            rule().flag(SPLIT).jump(ChainName::Classify),
            rule().flag(SPLIT).goto(ChainName::Outside),
            rule().kind_of(SetName::Pools).by_kind(),
            rule().no_word(),
        ],
        ChainName::NodePorts => node_ports(ChainName::Choose),
        ChainName::RefusedOutside => refused(SetName::Outside),
        ChainName::Refused => {
            let mut rules =
                vec![rule().flag(SPLIT).jump(ChainName::Classify), rule().flag(SPLIT).goto(ChainName::RefusedOutside)];
            rules.extend(refused(SetName::Pools));
            rules
        }
        ChainName::RefuseNodePorts => node_ports(ChainName::Refused),
        ChainName::Refuse => frontends(ChainName::Refused, ChainName::RefuseNodePorts),
        ChainName::Invalid => invalid(node.invalid_packets),
        ChainName::NatPre | ChainName::NatOut => frontends(ChainName::Choose, ChainName::NodePorts),
        ChainName::NatPost => vec![rule().translated().goto(ChainName::Translated)],
        ChainName::RefusePre | ChainName::RefuseOut => {
            vec![rule().new_flow().untranslated().goto(ChainName::Refuse), rule().invalid().goto(ChainName::Invalid)]
        }
        ChainName::Member { family, bank } => {
            Content::INDEXED.map(|content| rule().at_member(family, bank, content)).into()
        }
        ChainName::Remember { affinity, family, bank } => {
            vec![rule().remember(family, affinity), rule().goto(ChainName::Member { family, bank })]
        }
        ChainName::Keep { affinity, family, bank } => vec![
            rule().remember(family, affinity),
            rule().jump(ChainName::Member { family, bank }),
            rule().forget(family, affinity),
        ],
        ChainName::Kind(kind) => pick(kind),
        ChainName::EndForward | ChainName::EndIn | ChainName::EndOut => {
            vec![rule().translated().no_reset().goto(ChainName::Ending)]
        }
        ChainName::Ending => {
            everywhere().map(|(reach, family)| rule().find_original(reach, family).goto(ChainName::End)).collect()
        }
        ChainName::End => {
            let mut rules: Vec<_> = Family::ALL.map(|f| rule().answered_by(SetName::Grace(f), f).done()).into();
            let end = |family| rule().answered_by(SetName::Ending(family), family).goto(ChainName::Answer);
            rules.extend(Family::ALL.map(end));
            rules.push(rule().no_word());
            rules
        }
    }
}

/// An address wins over the node, so that a node's address can be a VIP.
fn everywhere() -> impl Iterator<Item = (Reach, Family)> {
    Reach::ALL.into_iter().flat_map(|reach| Family::ALL.into_iter().map(move |family| (reach, family)))
}

/// Whose the packet's destination is; a node port only where the destination is this node's.
fn frontends(found: ChainName, node_port: ChainName) -> Vec<Rule> {
    let [v4, v6] = Family::ALL.map(|family| Rule::default().find(Reach::Vip, family).goto(found));
    vec![v4, v6, Rule::default().local_destination().goto(node_port)]
}

fn node_ports(found: ChainName) -> Vec<Rule> {
    let of_node = everywhere().filter(|(reach, _)| *reach != Reach::Vip);
    of_node.map(|(reach, family)| Rule::default().find(reach, family).goto(found)).collect()
}

/// A pool that has endpoints is met here only by who came between two of its changes: silence, and the client's next try
/// is served.
fn refused(pools: SetName) -> Vec<Rule> {
    vec![Rule::default().kind_of(pools).kind_is(REJECTED).goto(ChainName::Answer), Rule::default().no_word().drop()]
}

fn from_node(family: Family) -> Rule {
    Rule::default().source_in(SetName::Node(family), family).goto(ChainName::Masquerade)
}

fn source_nat() -> Vec<Rule> {
    let rule = Rule::default;
    let mut rules: Vec<_> = Family::ALL.map(|family| rule().hairpin(family).goto(ChainName::Masquerade)).into();
    rules.push(rule().flag(NAT_ALWAYS).goto(ChainName::Masquerade));
    rules.push(rule().flag(NAT_NEVER).done());
    rules.push(rule().flag(NAT_NODE).goto(ChainName::IfNode));
    rules.push(rule().goto(ChainName::IfForeign));
    rules
}

/// AUTO at an INTERNAL frontend: a local source is kept, if any are known in its family.
fn if_foreign(network: &Network) -> Vec<Rule> {
    let rule = Rule::default;
    if network.source_nat_all {
        return vec![rule().goto(ChainName::Masquerade)];
    }
    let by_interface = !network.local_source_interfaces.is_empty();
    let known = |family| by_interface || network.local_sources.iter().any(|net| Family::of_net(net) == family);
    let known: Vec<_> = Family::ALL.into_iter().filter(|family| known(*family)).collect();
    let mut rules: Vec<_> = known.iter().map(|family| from_node(*family)).collect();
    rules.extend(known.iter().map(|family| rule().source_in(SetName::Inside(*family), *family).done()));
    rules.extend(network.local_source_interfaces.iter().map(|pattern| rule().through(pattern).done()));
    rules.extend(known.iter().map(|family| rule().family(*family).goto(ChainName::Masquerade)));
    rules.push(rule().no_word());
    rules
}

/// Sources on the node, and local ones.
fn classify(network: &Network) -> Vec<Rule> {
    let rule = Rule::default;
    let by_address = |family| {
        [SetName::Node(family), SetName::Inside(family)]
            .map(|set| rule().source_in(set, family).goto(ChainName::IsInside))
    };
    let by_interface =
        network.local_source_interfaces.iter().map(|pattern| rule().through(pattern).goto(ChainName::IsInside));
    Family::ALL.into_iter().flat_map(by_address).chain(by_interface).collect()
}

/// Out of window, or of a flow that was forgotten. A reset could end a healthy connection, and what an endpoint sends
/// would reach the client with the endpoint's own address; so silence.
fn invalid(packets: InvalidPackets) -> Vec<Rule> {
    if packets == InvalidPackets::Off {
        return Vec::new();
    }
    let of_endpoint = Family::ALL.map(|family| Rule::default().source_answers(family).drop());
    let vips = Family::ALL.map(|family| Rule::default().find(Reach::Vip, family).no_word().drop());
    let of_node = everywhere().filter(|(reach, _)| *reach != Reach::Vip);
    let node_ports =
        of_node.map(|(reach, family)| Rule::default().local_destination().find(reach, family).no_word().drop());
    vips.into_iter().chain(node_ports).chain(of_endpoint).collect()
}

/// Slot 0 is there as long as there are endpoints: for who came between two changes of the number of slots.
fn pick(kind: Kind) -> Vec<Rule> {
    let rule = Rule::default;
    let straight = |content| {
        vec![
            rule().straight_to(kind, Draw::AsKind, content),
            rule().straight_to(kind, Draw::Slot(0), content),
            rule().no_word(),
        ]
    };
    let (family, bank) = (kind.family, kind.bank);
    match kind.way {
        Way::Direct => straight(Content::Endpoints),
        Way::Hosts => straight(Content::Hosts),
        Way::Indexed { affinity, limited } => {
            let mut rules = Vec::new();
            let mut next = ChainName::Member { family, bank };
            if let Some(affinity) = affinity {
                let keep = ChainName::Keep { affinity, family, bank };
                rules.push(rule().remembered(family, affinity).jump(keep));
                next = ChainName::Remember { affinity, family, bank };
            }
            rules.push(rule().index_of(kind, Draw::AsKind).jump(next));
            let tries = if limited { u32::from(kind.slots).clamp(1, TRIES) } else { 1 };
            rules.extend((0..tries).map(|slot| rule().index_of(kind, Draw::Slot(slot)).jump(next)));
            rules.push(rule().no_word());
            rules
        }
    }
}

/// The rule of a prefix length in use.
pub(super) fn prefix_rule(family: Family, length: u8) -> Rule {
    Rule::default().listed(POOL | LIST, family, length).back()
}

/// A set's type.
pub(super) fn set(name: SetName) -> Set {
    let address = |family| match family {
        Family::V4 => Field::Ipv4,
        Family::V6 => Field::Ipv6,
    };
    let plain = Traits::default();
    let counter = Traits { counter: true, ..plain };
    let word = || Some(Data::Fields(vec![Field::Word]));
    let to = |family, content: Content| {
        let port = (!content.is_host()).then_some(Field::Port);
        Some(Data::Fields([address(family)].into_iter().chain(port).collect()))
    };
    let (key, data, traits) = match name {
        SetName::Clients(family) => {
            let traits = Traits { dynamic: true, timeout: true, size: MAX_CLIENTS, ..plain };
            (vec![Field::Word, address(family)], word(), traits)
        }
        SetName::Bank { content, family, .. } => match content {
            Content::Endpoints | Content::Hosts => (vec![Field::Word, Field::Mark], to(family, content), counter),
            Content::Slots => (vec![Field::Word, Field::Mark], word(), plain),
            Content::Members | Content::MemberHosts => (vec![Field::Word], to(family, content), counter),
            Content::Limited | Content::LimitedHosts => (vec![Field::Word], to(family, content), plain),
        },
        SetName::Kinds => (vec![Field::Word], Some(Data::Verdict), plain),
        SetName::Pools | SetName::Outside => (vec![Field::Word], word(), plain),
        SetName::Ending(family) => (vec![Field::Word, address(family), Field::Port], None, plain),
        SetName::Grace(family) => {
            (vec![Field::Word, address(family), Field::Port], None, Traits { timeout: true, ..plain })
        }
        SetName::Lingering(family) => (vec![Field::Word, address(family), Field::Port], None, plain),
        SetName::EndpointNets(family) => (vec![address(family), Field::Port], None, plain),
        SetName::Equal => (vec![Field::Mark; 2], None, plain),
        SetName::Node(family) | SetName::Inside(family) => (vec![address(family)], None, plain),
        SetName::Allowed { family, .. } => (vec![Field::Word, address(family)], None, plain),
        SetName::Frontends { reach: Reach::Node, .. } => (vec![Field::Protocol, Field::Port], word(), plain),
        SetName::Frontends { family, .. } => (vec![address(family), Field::Protocol, Field::Port], word(), plain),
    };
    Set { name: name.to_string(), key, data, interval: matches!(name, SetName::Inside(_)), traits }
}
