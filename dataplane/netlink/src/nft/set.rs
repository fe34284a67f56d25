//! Sets, maps and their elements.
//!
//! Keys and data are bytes as the kernel holds them in registers: fields in network order, those of a concatenation padded
//! to four bytes. [`KeyBytes`] builds them; [`Field`] says how wide a field is and what `nft` calls its type.

use std::net::IpAddr;

use super::{LIST_ELEM, operand::Verdict};
use crate::attr::{Attrs, Encoder};

const FLAG_INTERVAL: u32 = 0x4;
const FLAG_MAP: u32 = 0x8;
const FLAG_TIMEOUT: u32 = 0x10;
const FLAG_DYNAMIC: u32 = 0x20;
const FLAG_CONCAT: u32 = 0x80;
const FLAG_EXPRESSION: u32 = 0x100;
/// `NFT_DATA_VERDICT` as the data type of a map.
const TYPE_VERDICT: u32 = 0xffff_ff00;
/// Width in bits of one type number in a concatenated type (`TYPE_BITS` of nftables).
const TYPE_BITS: u32 = 6;
/// `NFT_SET_ELEM_INTERVAL_END`
const ELEMENT_INTERVAL_END: u32 = 1;

/// Type of one field of a key, by nftables' own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// `ipv4_addr`
    Ipv4,
    /// `ipv6_addr`
    Ipv6,
    /// `inet_proto`
    Protocol,
    /// `inet_service`
    Port,
    /// `classid`: 32 bits in host order, printed as two hexadecimal halves.
    Word,
    /// `mark`: 32 bits in host order, printed as one hexadecimal number.
    Mark,
    /// A type that we never write.
    Other(u8),
}

impl Field {
    /// Bytes of the value itself.
    #[must_use]
    pub fn width(self) -> usize {
        match self {
            Self::Ipv4 | Self::Word | Self::Mark => 4,
            Self::Ipv6 => 16,
            Self::Protocol => 1,
            Self::Port => 2,
            Self::Other(_) => 0,
        }
    }

    /// Bytes in registers.
    #[must_use]
    pub fn padded(self) -> usize {
        self.width().next_multiple_of(4)
    }

    /// What `nft` calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4_addr",
            Self::Ipv6 => "ipv6_addr",
            Self::Protocol => "inet_proto",
            Self::Port => "inet_service",
            Self::Word => "classid",
            Self::Mark => "mark",
            Self::Other(_) => "unknown",
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Ipv4 => 7,
            Self::Ipv6 => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Mark => 19,
            Self::Word => 23,
            Self::Other(number) => u32::from(number),
        }
    }

    fn parse(number: u8) -> Self {
        match number {
            7 => Self::Ipv4,
            8 => Self::Ipv6,
            12 => Self::Protocol,
            13 => Self::Port,
            19 => Self::Mark,
            23 => Self::Word,
            other => Self::Other(other),
        }
    }
}

/// Data type of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// A value, of more than one field if concatenated.
    Fields(Vec<Field>),
    /// A verdict: the packet jumps on.
    Verdict,
}

/// What elements of a set are beside key and data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traits {
    /// Rules may change it and elements may have a time-out.
    pub dynamic: bool,
    /// Elements may have a time-out.
    pub timeout: bool,
    /// Every element counts the packets that find it.
    pub counter: bool,
    /// Most elements; 0: as the kernel likes (65,535 if dynamic, any number otherwise).
    pub size: u32,
}

/// A named set, or a map if it has data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// At most 255 bytes.
    pub name: String,
    /// The key, more than one field if concatenated.
    pub key: Vec<Field>,
    /// Data of a map.
    pub data: Option<Data>,
    /// Whether elements are ranges. Ranges of a single field are pairs of elements; of several, elements with an end.
    pub interval: bool,
    /// What else they are.
    pub traits: Traits,
}

impl Set {
    fn flags(&self) -> u32 {
        let mut flags = 0;
        let Traits { dynamic, timeout, counter, .. } = self.traits;
        for (wanted, flag) in [(dynamic, FLAG_DYNAMIC), (timeout, FLAG_TIMEOUT), (counter, FLAG_EXPRESSION)] {
            flags |= if wanted { flag } else { 0 };
        }
        if self.data.is_some() {
            flags |= FLAG_MAP;
        }
        if self.interval {
            flags |= FLAG_INTERVAL;
            if self.key.len() > 1 {
                flags |= FLAG_CONCAT;
            }
        }
        flags
    }

    pub(super) fn encode(&self, encoder: &mut Encoder, id: u32) {
        encoder.string(2, &self.name);
        encoder.be32(3, self.flags());
        encoder.be32(4, type_number(&self.key));
        encoder.be32(5, length(&self.key));
        match &self.data {
            Some(Data::Fields(fields)) => {
                encoder.be32(6, type_number(fields));
                encoder.be32(7, length(fields));
            }
            Some(Data::Verdict) => encoder.be32(6, TYPE_VERDICT),
            None => {}
        }
        let ranges_of_several = self.interval && self.key.len() > 1;
        if ranges_of_several || self.traits.size > 0 {
            encoder.nest(9, |description| {
                if self.traits.size > 0 {
                    description.be32(1, self.traits.size);
                }
                if ranges_of_several {
                    description.nest(2, |fields| {
                        for field in &self.key {
                            fields.nest(LIST_ELEM, |f| f.be32(1, field.width() as u32));
                        }
                    });
                }
            });
        }
        encoder.be32(10, id);
        if self.traits.counter {
            encoder.nest(17, |expression| expression.string(1, "counter"));
        }
    }
}

fn type_number(fields: &[Field]) -> u32 {
    fields.iter().fold(0, |kind, field| kind << TYPE_BITS | field.number())
}

/// Fields of a concatenation fill whole registers; a field alone has its own width.
fn length(fields: &[Field]) -> u32 {
    match fields {
        [field] => field.width() as u32,
        _ => fields.iter().map(|field| field.padded() as u32).sum(),
    }
}

fn parse_fields(mut types: u32) -> Vec<Field> {
    let mut fields = Vec::new();
    while types != 0 {
        fields.push(Field::parse((types & ((1 << TYPE_BITS) - 1)) as u8));
        types >>= TYPE_BITS;
    }
    fields.reverse();
    fields
}

/// Reads a `NFT_MSG_NEWSET` behind its `nfgenmsg`.
#[must_use]
pub fn parse_set(attrs: Attrs<'_>) -> Option<Set> {
    let flags = attrs.be32(3).unwrap_or(0);
    let data = match attrs.be32(6) {
        _ if flags & FLAG_MAP == 0 => None,
        Some(TYPE_VERDICT) => Some(Data::Verdict),
        number => Some(Data::Fields(parse_fields(number?))),
    };
    let traits = Traits {
        dynamic: flags & FLAG_DYNAMIC != 0,
        timeout: flags & FLAG_TIMEOUT != 0,
        counter: attrs.nested(17).and_then(|e| e.string(1)).is_some_and(|name| name == "counter"),
        size: attrs.nested(9).and_then(|description| description.be32(1)).unwrap_or(0),
    };
    let key = parse_fields(attrs.be32(4)?);
    Some(Set { name: attrs.string(2)?, key, data, interval: flags & FLAG_INTERVAL != 0, traits })
}

/// One element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Element {
    /// Key in register layout; of a range, its first key.
    pub key: Vec<u8>,
    /// Last key of a range of a concatenated set (inclusive).
    pub key_end: Option<Vec<u8>>,
    /// Whether this ends a range of a set with a single field: the first key that is *not* in it.
    pub interval_end: bool,
    /// Data of a map with values.
    pub data: Option<Vec<u8>>,
}

impl Element {
    /// A plain key.
    #[must_use]
    pub fn key(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    /// A map's key and data.
    #[must_use]
    pub fn pair(key: impl Into<Vec<u8>>, data: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), data: Some(data.into()), ..Self::default() }
    }

    /// `verdict` is the data of an element of a verdict map.
    pub(super) fn encode(&self, encoder: &mut Encoder, verdict: Option<&Verdict>) {
        encoder.nest(LIST_ELEM, |element| {
            if self.interval_end {
                element.be32(3, ELEMENT_INTERVAL_END);
            }
            element.nest(1, |key| key.bytes(1, &self.key));
            if let Some(end) = &self.key_end {
                element.nest(10, |key| key.bytes(1, end));
            }
            if let Some(data) = &self.data {
                element.nest(2, |value| value.bytes(1, data));
            }
            if let Some(verdict) = verdict {
                element.nest(2, |value| verdict.encode(value));
            }
        });
    }
}

/// Reads one element of a `NFTA_SET_ELEM_LIST_ELEMENTS`.
#[must_use]
pub fn parse_element(bytes: &[u8]) -> Option<Element> {
    let attrs = Attrs::new(bytes);
    Some(Element {
        key: attrs.nested(1)?.get(1)?.to_vec(),
        key_end: attrs.nested(10).and_then(|end| end.get(1)).map(<[u8]>::to_vec),
        interval_end: attrs.be32(3).is_some_and(|flags| flags & ELEMENT_INTERVAL_END != 0),
        data: attrs.nested(2).and_then(|data| data.get(1)).map(<[u8]>::to_vec),
    })
}

/// Builds a key or data: a field alone as it is, several each padded to a register.
#[derive(Debug, Default, Clone)]
pub struct KeyBytes {
    bytes: Vec<u8>,
    fields: usize,
}

impl KeyBytes {
    /// An empty key.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an address.
    #[must_use]
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.field(&v4.octets()),
            IpAddr::V6(v6) => self.field(&v6.octets()),
        }
    }

    /// Adds a protocol number.
    #[must_use]
    pub fn protocol(self, protocol: u8) -> Self {
        self.field(&[protocol])
    }

    /// Adds a port.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        self.field(&port.to_be_bytes())
    }

    fn field(mut self, value: &[u8]) -> Self {
        self.pad();
        self.bytes.extend_from_slice(value);
        self.fields += 1;
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

impl From<KeyBytes> for Vec<u8> {
    fn from(mut key: KeyBytes) -> Self {
        if key.fields > 1 {
            key.pad();
        }
        key.bytes
    }
}
