//! The balancer's own statements: the word, frontends by packet and by original tuple, draws, affinity.

use std::time::Duration;

use vipd_model::{Family, Protocol};
use vipd_netlink::nft::{Cmp, CtKey, Direction, Expr, FIB_DADDR, Header, MetaKey, Numbers, Reg, SetChange, Verdict};

use super::{
    kind::{Affinity, Kind, Pick},
    names::{Content, Reach, SetName},
    nets,
    table::{EQUAL, EQUAL_HASHES},
    word::{LOW, POOL, Word},
};
use crate::rule::{KEY, KeyFields, Rule};

/// Where an address that was found goes; its port follows.
const TARGET: Reg = Reg(8);
/// The slot, beside the pool.
const SLOT: Reg = Reg(1);
/// What is hashed.
const HASHED: Reg = Reg(2);
/// For values that are compared at once.
const SCRATCH: Reg = Reg(15);
/// Hashes of a client are the same on every node and after every start.
pub(super) const SEED: u32 = 0x7669_7064;

impl Rule {
    /// One of these bits of the word is set.
    pub(super) fn flag(self, bits: u32) -> Self {
        let compare = Expr::Cmp { op: Cmp::Ne, from: SCRATCH, value: vec![0; 4] };
        self.with(&format!("{} != none", word_text(bits)), word(bits, SCRATCH).into_iter().chain([compare]))
    }

    /// Takes bits off the word.
    pub(super) fn without_flag(self, bits: u32) -> Self {
        let text = format!("meta priority set {}", word_text(!bits));
        self.with(&text, word(!bits, KEY)).set_word("")
    }

    /// The word is done with.
    pub(super) fn no_word(self) -> Self {
        self.with("", [Expr::Immediate { to: KEY, value: vec![0; 4] }]).set_word("meta priority set none")
    }

    fn set_word(self, text: &str) -> Self {
        self.with(text, [Expr::MetaSet { key: MetaKey::Priority, from: KEY }])
    }

    /// The packet is for a frontend: the word is what its map has.
    pub(super) fn find(self, reach: Reach, family: Family) -> Self {
        let set = SetName::Frontends { reach, family };
        let (rule, key) = match reach {
            Reach::Vip | Reach::At => (self.family_implied(family), KeyFields::default().destination(family).port()),
            Reach::Node => (self.not_to_loopback(family), KeyFields::default().port()),
        };
        rule.with(&format!("meta priority set {} map @{set}", key.text), key.expressions)
            .lookup(set, Some(KEY))
            .set_word("")
    }

    /// The first packet of the flow was for a frontend, before it was translated.
    pub(super) fn find_original(self, reach: Reach, family: Family) -> Self {
        let set = SetName::Frontends { reach, family };
        let (rule, key) = match reach {
            Reach::Vip | Reach::At => (self.family_implied(family), KeyFields::default().original_destination(family)),
            // Another's translation of the same port number at some other address is none of ours.
            Reach::Node => {
                let own = KeyFields::default().original_destination(family);
                let text = format!("{} @{}", own.text, SetName::Node(family));
                let rule = self.family_implied(family).with(&text, own.expressions).lookup(SetName::Node(family), None);
                (rule, KeyFields::default())
            }
        };
        let key = key.original_port();
        rule.with(&format!("meta priority set {} map @{set}", key.text), key.expressions)
            .lookup(set, Some(KEY))
            .set_word("")
    }

    /// The flow's endpoint is in a set, under the pool in the word.
    pub(super) fn answered_by(self, set: SetName, family: Family) -> Self {
        let (text, key, registers) = match family {
            Family::V4 => ("ct reply ip saddr", CtKey::SourceIpv4, 1),
            Family::V6 => ("ct reply ip6 saddr", CtKey::SourceIpv6, 4),
        };
        let direction = Some(Direction::Reply);
        let fields = KeyFields::default().word(POOL);
        let load = Expr::Ct { key, direction, to: Reg(fields.next()) };
        let fields = fields.and(text, load, registers);
        let load = Expr::Ct { key: CtKey::SourcePort, direction, to: Reg(fields.next()) };
        let fields = fields.and("ct reply proto-src", load, 1);
        self.family(family).with(&format!("{} @{set}", fields.text), fields.expressions).lookup(set, None)
    }

    fn not_to_loopback(self, family: Family) -> Self {
        let destination = KeyFields::default().destination(family);
        let rule = self.family_implied(family);
        match family {
            Family::V4 => {
                let mask = Expr::Bitwise { from: KEY, to: KEY, mask: vec![255, 0, 0, 0], xor: vec![0; 4] };
                let compare = Expr::Cmp { op: Cmp::Ne, from: KEY, value: vec![127, 0, 0, 0] };
                let rule = rule.with("ip daddr != 127.0.0.0/8", destination.expressions);
                rule.with("", [mask, compare])
            }
            Family::V6 => {
                let mut value = vec![0; 16];
                value[15] = 1;
                let compare = Expr::Cmp { op: Cmp::Ne, from: KEY, value };
                rule.with("ip6 daddr != ::1", destination.expressions).with("", [compare])
            }
        }
    }

    /// The destination is an address of this node.
    pub(super) fn local_destination(self) -> Self {
        let load = Expr::FibAddressType { flags: FIB_DADDR, to: SCRATCH };
        let value = 2u32.to_ne_bytes().to_vec();
        self.with("fib daddr type local", [load, Expr::Cmp { op: Cmp::Eq, from: SCRATCH, value }])
    }

    /// The source is in a set of addresses.
    pub(super) fn source_in(self, set: SetName, family: Family) -> Self {
        let key = KeyFields::default().source(family);
        self.family_implied(family).with(&format!("{} @{set}", key.text), key.expressions).lookup(set, None)
    }

    /// Source and destination are one and the same endpoint, by hashes of both.
    pub(super) fn hairpin(self, family: Family) -> Self {
        let modulus = u32::from(EQUAL);
        let one = |rule: Self, seed| {
            let hash = |name, offset: u32, to| {
                let (word, length, offset) = match family {
                    Family::V4 => ("ip", 4, 12 + 4 * offset),
                    Family::V6 => ("ip6", 16, 8 + 16 * offset),
                };
                let load = Expr::Payload { header: Header::Network, offset, length, to: HASHED };
                let text = format!("jhash {word} {name} mod {modulus} seed {seed:#x}");
                ([load, Expr::Hash { from: HASHED, length, modulus, seed, to }], text)
            };
            let (source, from) = hash("saddr", 0, KEY);
            let (destination, to) = hash("daddr", 1, SLOT);
            let rule = rule.with(&format!("{from} . {to} @{}", SetName::Equal), source).with("", destination);
            rule.lookup(SetName::Equal, None)
        };
        (1..=EQUAL_HASHES).fold(self.family(family), one)
    }

    /// The source is where endpoints answer.
    pub(super) fn source_answers(self, family: Family) -> Self {
        let length = match family {
            Family::V4 => nets::LENGTH_V4,
            Family::V6 => nets::LENGTH_V6,
        };
        let set = SetName::EndpointNets(family);
        let key = KeyFields::default().source(family).masked(family, length);
        let load = Expr::Payload { header: Header::Transport, offset: 0, length: 2, to: Reg(key.next()) };
        let key = key.and("th sport", load, 1);
        self.family_implied(family).with(&format!("{} @{set}", key.text), key.expressions).lookup(set, None)
    }

    /// Came through an interface of this name, or whose name begins like `veth*`.
    pub(super) fn through(self, pattern: &str) -> Self {
        const INTERFACE_NAME: usize = 16;
        let load = Expr::Meta { key: MetaKey::InputInterfaceName, to: KEY };
        let value = match pattern.strip_suffix('*') {
            Some(prefix) => prefix.as_bytes().to_vec(),
            None => {
                let mut value = pattern.as_bytes().to_vec();
                value.resize(INTERFACE_NAME.max(value.len()), 0);
                value
            }
        };
        let compare = (!value.is_empty()).then_some(Expr::Cmp { op: Cmp::Eq, from: KEY, value });
        self.with(&format!("iifname \"{pattern}\""), [load].into_iter().chain(compare))
    }

    /// From the pool to its kind, or to another pool and its kind, which is now in the word.
    pub(super) fn kind_of(self, map: SetName) -> Self {
        let text = format!("meta priority set {} map @{map}", word_text(POOL));
        self.with(&text, word(POOL, KEY)).lookup(map, Some(KEY)).set_word("")
    }

    /// Goes where the kind in the word leads.
    pub(super) fn by_kind(self) -> Self {
        let lookup =
            Expr::Lookup { set: SetName::Kinds.to_string(), key: KEY, data: Some(Reg::VERDICT), inverted: false };
        let text = format!("{} vmap @{}", word_text(LOW), SetName::Kinds);
        self.with(&text, word(LOW, KEY).into_iter().chain([lookup]))
    }

    /// The kind in the word is this one.
    pub(super) fn kind_is(self, kind: u32) -> Self {
        let compare = Expr::Cmp { op: Cmp::Eq, from: KEY, value: kind.to_ne_bytes().to_vec() };
        self.with(&format!("{} {}", word_text(LOW), Word(kind)), word(LOW, KEY).into_iter().chain([compare]))
    }

    /// The source, cut to a length, is in the frontend's list.
    pub(super) fn listed(self, bits: u32, family: Family, length: u8) -> Self {
        let set = SetName::Allowed { family, length };
        let key = KeyFields::default().word(bits).source(family).masked(family, length);
        self.family_implied(family).with(&format!("{} @{set}", key.text), key.expressions).lookup(set, None)
    }

    /// Draws a slot, looks it up, and goes to the address there.
    pub(super) fn straight_to(self, kind: Kind, draw: Draw, content: Content) -> Self {
        let set = SetName::Bank { content, family: kind.family, bank: kind.bank };
        let (expressions, text) = drawn(kind, draw);
        let rule = self.family(kind.family).with("", expressions);
        let found = Expr::Lookup { set: set.to_string(), key: KEY, data: Some(TARGET), inverted: false };
        rule.with("", [found]).no_word().translate(kind.family, &text, set, content)
    }

    /// Draws a slot and puts the index there into the word.
    pub(super) fn index_of(self, kind: Kind, draw: Draw) -> Self {
        let set = SetName::Bank { content: Content::Slots, family: kind.family, bank: kind.bank };
        let (expressions, text) = drawn(kind, draw);
        let rule = match (kind.pick, draw) {
            (Pick::Hash { .. }, Draw::AsKind) => self.family_implied(kind.family),
            _ => self,
        };
        rule.with(&format!("meta priority set {text} map @{set}"), expressions).lookup(set, Some(KEY)).set_word("")
    }

    /// Goes to the address of the index in the word, if the endpoint may take the flow.
    pub(super) fn at_member(self, family: Family, bank: u16, content: Content) -> Self {
        let set = SetName::Bank { content, family, bank };
        let rule = self.family(family).with("", word(u32::MAX, KEY));
        let found = Expr::Lookup { set: set.to_string(), key: KEY, data: Some(TARGET), inverted: false };
        rule.with("", [found]).no_word().translate(family, "meta priority", set, content)
    }

    fn translate(self, family: Family, key: &str, set: SetName, content: Content) -> Self {
        let (word, number, registers) = match family {
            Family::V4 => ("ip", 2, 1),
            Family::V6 => ("ip6", 10, 4),
        };
        let port = (!content.is_host()).then_some(Reg(TARGET.0 + registers));
        let translate = Expr::DestinationNat { family: number, address: TARGET, port };
        self.with(&format!("dnat {word} to {key} map @{set}"), [translate])
    }

    /// A remembered client: its endpoint's index is in the word.
    pub(super) fn remembered(self, family: Family, affinity: Affinity) -> Self {
        let set = SetName::Clients(family);
        let key = client(family, affinity);
        self.family_implied(family)
            .with(&format!("meta priority set {} map @{set}", key.text), key.expressions)
            .lookup(set, Some(KEY))
            .set_word("")
    }

    /// Records the endpoint in the word for this client, or prolongs the record, whatever it says.
    pub(super) fn remember(self, family: Family, affinity: Affinity) -> Self {
        let key = client(family, affinity);
        let timeout = Duration::from_millis(affinity.milliseconds.into());
        let set = SetName::Clients(family);
        let text = format!("update @{set} {{ {} timeout {timeout:?} : meta priority }}", key.text);
        self.change_client(family, key, SetChange::Update, Some(timeout), &text)
    }

    /// Forgets this client.
    pub(super) fn forget(self, family: Family, affinity: Affinity) -> Self {
        let key = client(family, affinity);
        let text = format!("delete @{} {{ {} : meta priority }}", SetName::Clients(family), key.text);
        self.change_client(family, key, SetChange::Delete, None, &text)
    }

    fn change_client(
        self,
        family: Family,
        key: KeyFields,
        change: SetChange,
        timeout: Option<Duration>,
        text: &str,
    ) -> Self {
        let data = Reg(key.next());
        let load = Expr::Meta { key: MetaKey::Priority, to: data };
        let set = SetName::Clients(family).to_string();
        let change = Expr::ChangeSet { set, change, key: KEY, data: Some(data), timeout };
        self.family_implied(family).with(text, key.expressions).with("", [load, change])
    }

    pub(super) fn masquerade(self) -> Self {
        self.with("masquerade fully-random", [Expr::Masquerade { fully_random: true }])
    }

    pub(super) fn translated(self) -> Self {
        const STATUS_DNAT: u32 = 0x20;
        let load = Expr::Ct { key: CtKey::Status, direction: None, to: SCRATCH };
        let mask =
            Expr::Bitwise { from: SCRATCH, to: SCRATCH, mask: STATUS_DNAT.to_ne_bytes().into(), xor: vec![0; 4] };
        let compare = Expr::Cmp { op: Cmp::Ne, from: SCRATCH, value: vec![0; 4] };
        self.with("ct status dnat", [load, mask, compare])
    }

    /// A TCP packet that ends nothing yet: the reset that we send passes here as well.
    pub(super) fn no_reset(self) -> Self {
        const FLAGS: u32 = 13;
        const RST: u8 = 4;
        let load = Expr::Payload { header: Header::Transport, offset: FLAGS, length: 1, to: KEY };
        let mask = Expr::Bitwise { from: KEY, to: KEY, mask: vec![RST], xor: vec![0] };
        let compare = Expr::Cmp { op: Cmp::Eq, from: KEY, value: vec![0] };
        self.protocol(Protocol::Tcp).with("tcp flags ! rst", [load, mask, compare])
    }

    pub(super) fn done(self) -> Self {
        self.no_word().with("return", [Expr::Verdict(Verdict::Return)])
    }
}

impl KeyFields {
    fn word(self, bits: u32) -> Self {
        let to = Reg(self.next());
        let mut key = self;
        let [load, mask] = [Expr::Meta { key: MetaKey::Priority, to }, masked(bits, to)];
        key = key.and(&word_text(bits), load, 1);
        key.expressions.push(mask);
        key
    }

    fn original_destination(self, family: Family) -> Self {
        let (text, key, registers) = match family {
            Family::V4 => ("ct original ip daddr", CtKey::DestinationIpv4, 1),
            Family::V6 => ("ct original ip6 daddr", CtKey::DestinationIpv6, 4),
        };
        let load = Expr::Ct { key, direction: Some(Direction::Original), to: Reg(self.next()) };
        self.and(text, load, registers)
    }

    fn original_port(self) -> Self {
        let load = Expr::Meta { key: MetaKey::Protocol, to: Reg(self.next()) };
        let key = self.and("meta l4proto", load, 1);
        let direction = Some(Direction::Original);
        let load = Expr::Ct { key: CtKey::DestinationPort, direction, to: Reg(key.next()) };
        key.and("ct original proto-dst", load, 1)
    }
}

/// Which slot a rule of a kind's chain takes.
#[derive(Clone, Copy)]
pub(super) enum Draw {
    /// As the kind says.
    AsKind,
    /// This one.
    Slot(u32),
}

/// Loads pool and slot.
fn drawn(kind: Kind, draw: Draw) -> (Vec<Expr>, String) {
    let number = |numbers, modulus, offset| vec![Expr::Number { numbers, modulus, offset, to: SLOT }];
    let slots = u32::from(kind.slots);
    let (mut expressions, text) = match (draw, kind.pick) {
        (Draw::Slot(0), _) => (number(Numbers::Increasing, 1, 0), "numgen inc mod 1".to_owned()),
        (Draw::Slot(slot), _) => (number(Numbers::Increasing, 1, slot), format!("numgen inc mod 1 offset {slot}")),
        (Draw::AsKind, Pick::Random) => (number(Numbers::Random, slots, 0), format!("numgen random mod {slots}")),
        (Draw::AsKind, Pick::Turns { .. }) => {
            (number(Numbers::Increasing, slots, 0), format!("numgen inc mod {slots}"))
        }
        (Draw::AsKind, Pick::Hash { port }) => hashed(kind.family, port, slots),
    };
    expressions.extend(word(POOL, KEY));
    (expressions, format!("{} . {text}", word_text(POOL)))
}

fn hashed(family: Family, port: bool, modulus: u32) -> (Vec<Expr>, String) {
    let (text, offset, bytes) = match family {
        Family::V4 => ("ip saddr", 12, 4),
        Family::V6 => ("ip6 saddr", 8, 16),
    };
    let mut expressions = vec![Expr::Payload { header: Header::Network, offset, length: bytes, to: HASHED }];
    let (mut length, mut text) = (bytes, text.to_owned());
    if port {
        let to = Reg(HASHED.0 + bytes as u8 / 4);
        expressions.push(Expr::Payload { header: Header::Transport, offset: 0, length: 2, to });
        length += 4;
        text.push_str(" . th sport");
    }
    expressions.push(Expr::Hash { from: HASHED, length, modulus, seed: SEED, to: SLOT });
    (expressions, format!("jhash {text} mod {modulus} seed {SEED:#x}"))
}

/// Pool and client.
fn client(family: Family, affinity: Affinity) -> KeyFields {
    KeyFields::default().word(POOL).source(family).masked(family, affinity.prefix)
}

/// Loads bits of the word.
fn word(bits: u32, to: Reg) -> Vec<Expr> {
    let load = Expr::Meta { key: MetaKey::Priority, to };
    if bits == u32::MAX { vec![load] } else { vec![load, masked(bits, to)] }
}

fn masked(bits: u32, at: Reg) -> Expr {
    Expr::Bitwise { from: at, to: at, mask: bits.to_ne_bytes().to_vec(), xor: vec![0; 4] }
}

fn word_text(bits: u32) -> String {
    format!("meta priority & {}", Word(bits))
}
