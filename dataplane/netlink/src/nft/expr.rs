//! Expressions, the instructions of a rule: a small machine with sixteen 32-bit registers.
//!
//! [`Expr::encode`] and [`parse_expressions`] are inverse for all that we write. What we never write is read as
//! [`Expr::Other`], which equals nothing of ours: a rule that somebody altered shows up as a difference.

use std::time::Duration;

use super::{
    LIST_ELEM,
    operand::{Cmp, CtKey, Direction, Header, MetaKey, Numbers, Reg, RejectWith, SetChange, Verdict, parse_meta_key},
};
use crate::attr::{Attrs, Encoder};

/// Bit of [`Expr::FibAddressType`]: look the destination address up (`NFTA_FIB_F_DADDR`).
pub const FIB_DADDR: u32 = 2;
/// Bit of [`Expr::FibAddressType`]: look the source address up (`NFTA_FIB_F_SADDR`).
pub const FIB_SADDR: u32 = 1;
/// `NFT_NAT_DNAT`
const NAT_DESTINATION: u32 = 1;
/// `NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED`
const NAT_RANGES: u32 = 0x3;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`
const RANDOM_FULLY: u32 = 0x10;
/// `NFT_HASH_JENKINS`
const HASH_JENKINS: u32 = 0;
/// `NFT_FIB_RESULT_ADDRTYPE`
const FIB_RESULT_ADDRESS_TYPE: u32 = 3;

/// One expression of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Loads packet metadata.
    Meta {
        /// What to load.
        key: MetaKey,
        /// Where to.
        to: Reg,
    },
    /// Sets packet metadata from a register.
    MetaSet {
        /// What to set.
        key: MetaKey,
        /// Where from.
        from: Reg,
    },
    /// Loads bytes of the packet.
    Payload {
        /// Header that `offset` counts from.
        header: Header,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        length: u32,
        /// Where to.
        to: Reg,
    },
    /// Loads a conntrack value; the rule does not match if the packet has no entry.
    Ct {
        /// What to load.
        key: CtKey,
        /// For keys that exist once per direction.
        direction: Option<Direction>,
        /// Where to.
        to: Reg,
    },
    /// Loads the routing type of an address, host order: 1 unicast, 2 local, 3 broadcast.
    FibAddressType {
        /// `NFTA_FIB_F_*`, such as [`FIB_DADDR`].
        flags: u32,
        /// Where to.
        to: Reg,
    },
    /// Goes on if register and value compare so.
    Cmp {
        /// Comparison.
        op: Cmp,
        /// Register.
        from: Reg,
        /// As many bytes as are compared.
        value: Vec<u8>,
    },
    /// `to = from & mask ^ xor`
    Bitwise {
        /// Source.
        from: Reg,
        /// Destination, may be the source.
        to: Reg,
        /// Mask; its length is that of the operation.
        mask: Vec<u8>,
        /// As long as the mask.
        xor: Vec<u8>,
    },
    /// Goes on if the key is in the set (or is not, if inverted); a map's data is loaded.
    Lookup {
        /// Set or map of the same table.
        set: String,
        /// First register of the key.
        key: Reg,
        /// Where a map's data goes.
        data: Option<Reg>,
        /// Match on absence.
        inverted: bool,
    },
    /// Loads a constant.
    Immediate {
        /// Where to.
        to: Reg,
        /// Bytes as in registers.
        value: Vec<u8>,
    },
    /// Ends the rule with a verdict.
    Verdict(Verdict),
    /// Destination NAT to this host, to the port in the register (network order), else to the packet's own.
    Redirect {
        /// Register with the port.
        port: Option<Reg>,
    },
    /// Source NAT to the address of the outgoing interface.
    Masquerade {
        /// Take the new port at random (`NF_NAT_RANGE_PROTO_RANDOM_FULLY`), so that two packets that are translated at
        /// the same time do not meet on one.
        fully_random: bool,
    },
    /// Destination NAT to an address in registers, and to a port, else the packet keeps its own.
    DestinationNat {
        /// `NFPROTO_IPV4` or `NFPROTO_IPV6`.
        family: u8,
        /// First register of the address.
        address: Reg,
        /// Register with the port.
        port: Option<Reg>,
    },
    /// Loads a number below a modulus, plus an offset, host order.
    Number {
        /// Which.
        numbers: Numbers,
        /// Not 0.
        modulus: u32,
        /// Added to it; with modulus 1 the number itself.
        offset: u32,
        /// Where to.
        to: Reg,
    },
    /// Loads the Jenkins hash of a key, scaled below a modulus, host order.
    Hash {
        /// First register of the key.
        from: Reg,
        /// Bytes of the key.
        length: u32,
        /// Not 0.
        modulus: u32,
        /// Changes all hashes.
        seed: u32,
        /// Where to.
        to: Reg,
    },
    /// Changes an element of a dynamic set or map of the same table. The rule goes on whatever comes of it, except where
    /// an element cannot be added.
    ChangeSet {
        /// Which.
        set: String,
        /// What to do.
        change: SetChange,
        /// First register of the key.
        key: Reg,
        /// First register of a map's data.
        data: Option<Reg>,
        /// How long it stays.
        timeout: Option<Duration>,
    },
    /// Refuses the packet and ends the rule.
    Reject(RejectWith),
    /// Counts packets and bytes; equal whatever it has counted.
    Counter,
    /// One that we never write, by its name.
    Other(String),
}

impl Expr {
    fn name(&self) -> &str {
        match self {
            Self::Meta { .. } | Self::MetaSet { .. } => "meta",
            Self::Payload { .. } => "payload",
            Self::Ct { .. } => "ct",
            Self::FibAddressType { .. } => "fib",
            Self::Cmp { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Redirect { .. } => "redir",
            Self::Masquerade { .. } => "masq",
            Self::DestinationNat { .. } => "nat",
            Self::Number { .. } => "numgen",
            Self::Hash { .. } => "hash",
            Self::ChangeSet { .. } => "dynset",
            Self::Reject(_) => "reject",
            Self::Counter => "counter",
            Self::Other(name) => name,
        }
    }

    /// Writes one element of an expression list.
    pub fn encode(&self, encoder: &mut Encoder) {
        encoder.nest(LIST_ELEM, |element| {
            element.string(1, self.name());
            element.nest(2, |attrs| self.encode_attributes(attrs));
        });
    }

    fn encode_attributes(&self, attrs: &mut Encoder) {
        let data = |attrs: &mut Encoder, kind, value: &[u8]| attrs.nest(kind, |data| data.bytes(1, value));
        match self {
            Self::Meta { key, to } => {
                attrs.be32(1, to.encoded());
                attrs.be32(2, *key as u32);
            }
            Self::MetaSet { key, from } => {
                attrs.be32(2, *key as u32);
                attrs.be32(3, from.encoded());
            }
            Self::Payload { header, offset, length, to } => {
                attrs.be32(1, to.encoded());
                attrs.be32(2, *header as u32);
                attrs.be32(3, *offset);
                attrs.be32(4, *length);
            }
            Self::Ct { key, direction, to } => {
                attrs.be32(1, to.encoded());
                attrs.be32(2, *key as u32);
                if let Some(direction) = direction {
                    attrs.u8(3, *direction as u8);
                }
            }
            Self::FibAddressType { flags, to } => {
                attrs.be32(1, to.encoded());
                attrs.be32(2, FIB_RESULT_ADDRESS_TYPE);
                attrs.be32(3, *flags);
            }
            Self::Cmp { op, from, value } => {
                attrs.be32(1, from.encoded());
                attrs.be32(2, *op as u32);
                data(attrs, 3, value);
            }
            Self::Bitwise { from, to, mask, xor } => {
                attrs.be32(1, from.encoded());
                attrs.be32(2, to.encoded());
                attrs.be32(3, mask.len() as u32);
                data(attrs, 4, mask);
                data(attrs, 5, xor);
            }
            Self::Lookup { set, key, data, inverted } => {
                attrs.string(1, set);
                attrs.be32(2, key.encoded());
                if let Some(data) = data {
                    attrs.be32(3, data.encoded());
                }
                if *inverted {
                    attrs.be32(5, 1);
                }
            }
            Self::Immediate { to, value } => {
                attrs.be32(1, to.encoded());
                data(attrs, 2, value);
            }
            Self::Verdict(verdict) => {
                attrs.be32(1, 0);
                attrs.nest(2, |data| verdict.encode(data));
            }
            Self::Redirect { port: Some(port) } => attrs.be32(1, port.encoded()),
            Self::Reject(RejectWith::TcpReset) => {
                attrs.be32(1, 1);
                attrs.u8(2, 0);
            }
            Self::Reject(RejectWith::PortUnreachable) => {
                attrs.be32(1, 2);
                attrs.u8(2, 1);
            }
            Self::Masquerade { fully_random: true } => attrs.be32(1, RANDOM_FULLY),
            Self::DestinationNat { family, address, port } => {
                attrs.be32(1, NAT_DESTINATION);
                attrs.be32(2, u32::from(*family));
                attrs.be32(3, address.encoded());
                if let Some(port) = port {
                    attrs.be32(5, port.encoded());
                }
            }
            Self::Number { numbers, modulus, offset, to } => {
                attrs.be32(1, to.encoded());
                attrs.be32(2, *modulus);
                attrs.be32(3, *numbers as u32);
                attrs.be32(4, *offset);
            }
            Self::Hash { from, length, modulus, seed, to } => {
                attrs.be32(1, from.encoded());
                attrs.be32(2, to.encoded());
                attrs.be32(3, *length);
                attrs.be32(4, *modulus);
                attrs.be32(5, *seed);
                attrs.be32(7, HASH_JENKINS);
            }
            Self::ChangeSet { set, change, key, data, timeout } => {
                attrs.string(1, set);
                attrs.be32(3, *change as u32);
                attrs.be32(4, key.encoded());
                if let Some(data) = data {
                    attrs.be32(5, data.encoded());
                }
                if let Some(timeout) = timeout {
                    attrs.be64(6, milliseconds(*timeout));
                }
            }
            Self::Redirect { port: None }
            | Self::Masquerade { fully_random: false }
            | Self::Counter
            | Self::Other(_) => {}
        }
    }
}

/// Reads an expression list (`NFTA_RULE_EXPRESSIONS`).
#[must_use]
pub fn parse_expressions(list: &[u8]) -> Vec<Expr> {
    Attrs::new(list)
        .filter(|attr| attr.kind == LIST_ELEM)
        .map(|attr| {
            let attrs = Attrs::new(attr.payload);
            let name = attrs.string(1).unwrap_or_default();
            let known = attrs.nested(2).or(Some(Attrs::new(&[]))).and_then(|attrs| parse_known(&name, attrs));
            known.unwrap_or(Expr::Other(name))
        })
        .collect()
}

fn parse_known(name: &str, attrs: Attrs<'_>) -> Option<Expr> {
    let reg = |kind| attrs.be32(kind).and_then(Reg::parse);
    let value = |kind| Some(attrs.nested(kind)?.get(1)?.to_vec());
    Some(match name {
        "meta" => {
            let key = parse_meta_key(attrs.be32(2)?)?;
            match reg(3) {
                Some(from) => Expr::MetaSet { key, from },
                None => Expr::Meta { key, to: reg(1)? },
            }
        }
        "payload" => Expr::Payload {
            header: match attrs.be32(2)? {
                1 => Header::Network,
                2 => Header::Transport,
                _ => return None,
            },
            offset: attrs.be32(3)?,
            length: attrs.be32(4)?,
            to: reg(1)?,
        },
        "ct" => Expr::Ct {
            key: CtKey::parse(attrs.be32(2)?)?,
            direction: match attrs.u8(3) {
                None => None,
                Some(0) => Some(Direction::Original),
                Some(_) => Some(Direction::Reply),
            },
            to: reg(1)?,
        },
        "fib" if attrs.be32(2)? == FIB_RESULT_ADDRESS_TYPE => {
            Expr::FibAddressType { flags: attrs.be32(3)?, to: reg(1)? }
        }
        "cmp" => Expr::Cmp {
            op: match attrs.be32(2)? {
                0 => Cmp::Eq,
                1 => Cmp::Ne,
                _ => return None,
            },
            from: reg(1)?,
            value: value(3)?,
        },
        // Operation 0 is mask and xor; shifts and the like are never ours.
        "bitwise" if attrs.be32(6).unwrap_or(0) == 0 => {
            Expr::Bitwise { from: reg(1)?, to: reg(2)?, mask: value(4)?, xor: value(5)? }
        }
        "lookup" => Expr::Lookup {
            set: attrs.string(1)?,
            key: reg(2)?,
            data: reg(3),
            inverted: attrs.be32(5).is_some_and(|flags| flags & 1 != 0),
        },
        "immediate" if attrs.be32(1)? == 0 => Expr::Verdict(Verdict::parse(attrs.nested(2)?.nested(2)?)?),
        "immediate" => Expr::Immediate { to: reg(1)?, value: value(2)? },
        "redir" => Expr::Redirect { port: reg(1) },
        "masq" => match attrs.be32(1).unwrap_or(0) {
            0 => Expr::Masquerade { fully_random: false },
            RANDOM_FULLY => Expr::Masquerade { fully_random: true },
            _ => return None,
        },
        "nat" | "numgen" | "hash" | "dynset" => return parse_active(name, attrs),
        "reject" => Expr::Reject(match (attrs.be32(1)?, attrs.u8(2)) {
            (1, _) => RejectWith::TcpReset,
            (2, Some(1)) => RejectWith::PortUnreachable,
            _ => return None,
        }),
        "counter" => Expr::Counter,
        _ => return None,
    })
}

/// Those that choose, translate and remember.
fn parse_active(name: &str, attrs: Attrs<'_>) -> Option<Expr> {
    let reg = |kind| attrs.be32(kind).and_then(Reg::parse);
    Some(match name {
        // The kernel repeats the registers as the ends of ranges, and adds a flag for each range that is given.
        "nat" if attrs.be32(1)? == NAT_DESTINATION && attrs.be32(7).unwrap_or(0) & !NAT_RANGES == 0 => {
            Expr::DestinationNat { family: u8::try_from(attrs.be32(2)?).ok()?, address: reg(3)?, port: reg(5) }
        }
        "numgen" => Expr::Number {
            numbers: match attrs.be32(3)? {
                0 => Numbers::Increasing,
                1 => Numbers::Random,
                _ => return None,
            },
            modulus: attrs.be32(2)?,
            offset: attrs.be32(4).unwrap_or(0),
            to: reg(1)?,
        },
        "hash" if attrs.be32(7).unwrap_or(HASH_JENKINS) == HASH_JENKINS && attrs.be32(6).unwrap_or(0) == 0 => {
            Expr::Hash {
                from: reg(1)?,
                length: attrs.be32(3)?,
                modulus: attrs.be32(4)?,
                seed: attrs.be32(5)?,
                to: reg(2)?,
            }
        }
        "dynset" => Expr::ChangeSet {
            set: attrs.string(1)?,
            change: match attrs.be32(3)? {
                1 => SetChange::Update,
                2 => SetChange::Delete,
                _ => return None,
            },
            key: reg(4)?,
            data: reg(5),
            timeout: attrs.be64(6).filter(|&timeout| timeout != 0).map(Duration::from_millis),
        },
        _ => return None,
    })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
