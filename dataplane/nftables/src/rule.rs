//! Rules, built statement by statement: each adds its expressions and what `nft` prints for them.
//!
//! Two rules are equal if their expressions are; the text is for people, golden files and drift reports, and a test
//! compares it with what the real `nft` prints.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use vipd_model::{Family, Protocol};
use vipd_netlink::nft::{Cmp, CtKey, Expr, FIB_DADDR, Header, KeyBytes, MetaKey, Reg, RejectWith, Verdict};

/// First register of a key.
pub(crate) const KEY: Reg = Reg(0);
/// For values that are compared at once; past the longest key (IPv6, protocol, port, IPv6: ten registers).
const SCRATCH: Reg = Reg(12);
/// `NFPROTO_IPV4`
const NFPROTO_IPV4: u8 = 2;
/// `NFPROTO_IPV6`
const NFPROTO_IPV6: u8 = 10;
/// `NF_CT_STATE_BIT(IP_CT_NEW)`
const STATE_NEW: u32 = 8;
/// `NF_CT_STATE_INVALID_BIT`
const STATE_INVALID: u32 = 1;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`
const STATE_ESTABLISHED: u32 = 2;
/// `IPS_DST_NAT`
const STATUS_DNAT: u32 = 0x20;
/// `IFNAMSIZ`
const INTERFACE_NAME: usize = 16;
/// `RTN_LOCAL`
const LOCAL: u32 = 2;

/// A rule under construction, or complete.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    expressions: Vec<Expr>,
    text: String,
}

impl Rule {
    /// A rule that the kernel has and that is none of ours, or not any more.
    #[must_use]
    pub fn foreign(expressions: Vec<Expr>) -> Self {
        let text = format!("unknown {expressions:?}");
        Self { expressions, text }
    }

    /// For the kernel.
    #[must_use]
    pub fn expressions(&self) -> &[Expr] {
        &self.expressions
    }

    pub(crate) fn with(mut self, text: &str, expressions: impl IntoIterator<Item = Expr>) -> Self {
        if !self.text.is_empty() && !text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(text);
        self.expressions.extend(expressions);
        self
    }

    pub(crate) fn new_flow(self) -> Self {
        self.with("ct state new", ct_bits(CtKey::State, STATE_NEW, Cmp::Ne))
    }

    pub(crate) fn invalid(self) -> Self {
        self.with("ct state invalid", ct_bits(CtKey::State, STATE_INVALID, Cmp::Ne))
    }

    pub(crate) fn established(self) -> Self {
        self.with("ct state established", ct_bits(CtKey::State, STATE_ESTABLISHED, Cmp::Ne))
    }

    /// Its destination was not translated, by us or anybody.
    pub(crate) fn untranslated(self) -> Self {
        self.with("ct status ! dnat", ct_bits(CtKey::Status, STATUS_DNAT, Cmp::Eq))
    }

    /// Came from another host (or another namespace of this one).
    pub(crate) fn not_from_loopback(self) -> Self {
        let load = Expr::Meta { key: MetaKey::InputInterfaceName, to: KEY };
        let mut value = b"lo".to_vec();
        value.resize(INTERFACE_NAME, 0);
        self.with("iifname != \"lo\"", [load, Expr::Cmp { op: Cmp::Ne, from: KEY, value }])
    }

    pub(crate) fn protocol(self, protocol: Protocol) -> Self {
        let load = Expr::Meta { key: MetaKey::Protocol, to: SCRATCH };
        let cmp = Expr::Cmp { op: Cmp::Eq, from: SCRATCH, value: vec![protocol.number()] };
        self.with(&format!("meta l4proto {protocol}"), [load, cmp])
    }

    pub(crate) fn family(self, family: Family) -> Self {
        let text = match family {
            Family::V4 => "meta nfproto ipv4",
            Family::V6 => "meta nfproto ipv6",
        };
        self.with(text, of_family(family))
    }

    /// The same where an address follows that says it: `nft` prints it once.
    pub(crate) fn family_implied(self, family: Family) -> Self {
        self.with("", of_family(family))
    }

    /// Its destination is an address of this node.
    pub(crate) fn at_this_node(self) -> Self {
        let load = Expr::FibAddressType { flags: FIB_DADDR, to: SCRATCH };
        let value = LOCAL.to_ne_bytes().to_vec();
        self.with("fib daddr type local", [load, Expr::Cmp { op: Cmp::Eq, from: SCRATCH, value }])
    }

    /// Looks the key that stands in the registers from [`KEY`] on up in a set.
    pub(crate) fn lookup(self, set: impl fmt::Display, data: Option<Reg>) -> Self {
        self.with("", [Expr::Lookup { set: set.to_string(), key: KEY, data, inverted: false }])
    }

    pub(crate) fn jump(self, chain: impl fmt::Display) -> Self {
        self.with(&format!("jump {chain}"), [Expr::Verdict(Verdict::Jump(chain.to_string()))])
    }

    pub(crate) fn goto(self, chain: impl fmt::Display) -> Self {
        self.with(&format!("goto {chain}"), [Expr::Verdict(Verdict::Goto(chain.to_string()))])
    }

    pub(crate) fn drop(self) -> Self {
        self.with("drop", [Expr::Verdict(Verdict::Drop)])
    }

    pub(crate) fn accept(self) -> Self {
        self.with("accept", [Expr::Verdict(Verdict::Accept)])
    }

    pub(crate) fn back(self) -> Self {
        self.with("return", [Expr::Verdict(Verdict::Return)])
    }

    pub(crate) fn reset(self) -> Self {
        self.with("reject with tcp reset", [Expr::Reject(RejectWith::TcpReset)])
    }

    pub(crate) fn unreachable(self) -> Self {
        self.with("reject", [Expr::Reject(RejectWith::PortUnreachable)])
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.expressions == other.expressions
    }
}

impl Eq for Rule {}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The fields of a key, loaded into consecutive registers from [`KEY`] on.
#[derive(Default)]
pub(crate) struct KeyFields {
    pub(crate) expressions: Vec<Expr>,
    pub(crate) text: String,
    next: u8,
}

impl KeyFields {
    /// The register after the last field.
    pub(crate) fn next(&self) -> u8 {
        self.next
    }

    /// Protocol and destination port.
    pub(crate) fn port(self) -> Self {
        let protocol = Expr::Meta { key: MetaKey::Protocol, to: Reg(self.next) };
        let key = self.and("meta l4proto", protocol, 1);
        let port = Expr::Payload { header: Header::Transport, offset: 2, length: 2, to: Reg(key.next) };
        key.and("th dport", port, 1)
    }

    pub(crate) fn destination(self, family: Family) -> Self {
        match family {
            Family::V4 => self.address("ip daddr", 16, 4),
            Family::V6 => self.address("ip6 daddr", 24, 16),
        }
    }

    pub(crate) fn source(self, family: Family) -> Self {
        match family {
            Family::V4 => self.address("ip saddr", 12, 4),
            Family::V6 => self.address("ip6 saddr", 8, 16),
        }
    }

    fn address(self, text: &str, offset: u32, length: u32) -> Self {
        let load = Expr::Payload { header: Header::Network, offset, length, to: Reg(self.next) };
        self.and(text, load, length as u8 / 4)
    }

    pub(crate) fn and(mut self, text: &str, load: Expr, registers: u8) -> Self {
        if !self.text.is_empty() {
            self.text.push_str(" . ");
        }
        self.text.push_str(text);
        self.expressions.push(load);
        self.next += registers;
        self
    }

    /// Cuts the address that was loaded last to a prefix.
    pub(crate) fn masked(mut self, family: Family, length: u8) -> Self {
        let mask = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0))),
            Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0))),
        };
        let mask_bytes = Vec::from(KeyBytes::new().address(mask));
        if mask_bytes.iter().any(|&byte| byte != 0xff) {
            let at = Reg(self.next - mask_bytes.len() as u8 / 4);
            let xor = vec![0; mask_bytes.len()];
            self.expressions.push(Expr::Bitwise { from: at, to: at, mask: mask_bytes, xor });
            self.text.push_str(&format!(" & {mask}"));
        }
        self
    }
}

fn of_family(family: Family) -> [Expr; 2] {
    let number = match family {
        Family::V4 => NFPROTO_IPV4,
        Family::V6 => NFPROTO_IPV6,
    };
    [Expr::Meta { key: MetaKey::Family, to: SCRATCH }, Expr::Cmp { op: Cmp::Eq, from: SCRATCH, value: vec![number] }]
}

/// Loads bits of a conntrack value and compares them with none (`Ne`: one is set, `Eq`: none is).
fn ct_bits(key: CtKey, bits: u32, op: Cmp) -> [Expr; 3] {
    let mask = bits.to_ne_bytes().to_vec();
    [
        Expr::Ct { key, direction: None, to: SCRATCH },
        Expr::Bitwise { from: SCRATCH, to: SCRATCH, mask, xor: vec![0; 4] },
        Expr::Cmp { op, from: SCRATCH, value: vec![0; 4] },
    ]
}
