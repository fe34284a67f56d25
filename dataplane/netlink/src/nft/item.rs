//! Elements that are written and read without being copied: a full load is some hundred thousand of them.
//!
//! [`Item`] is what goes to the kernel, [`Found`] what comes back; both borrow. [`super::Element`] is the owned form for
//! sets of modest size.

use std::time::Duration;

use super::{LIST_ELEM, operand::Verdict};
use crate::attr::{Attrs, Encoder};

/// `NFTNL_UDATA_SET_ELEM_COMMENT`
const COMMENT: u8 = 0;
/// What fits into the kernel's user data (`NFT_USERDATA_MAXLEN` is 256) with type, length and terminating zero.
pub(super) const COMMENT_BYTES: usize = 250;

/// Data of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Payload<'a> {
    /// A set has none; nor has a key that is to be deleted.
    #[default]
    None,
    /// As in registers.
    Bytes(&'a [u8]),
    /// Of a verdict map.
    Verdict(&'a Verdict),
}

/// An element on its way to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Item<'a> {
    /// Key in register layout.
    pub key: &'a [u8],
    /// Ends a range of a set with a single field: the first key that is *not* in it.
    pub interval_end: bool,
    /// A map's data.
    pub data: Payload<'a>,
    /// Shown by `nft`; cut at 250 bytes.
    pub comment: Option<&'a str>,
    /// Goes by itself after so long.
    pub timeout: Option<Duration>,
    /// Not found by a packet that would make more than so many connections of it; others are counted.
    pub connections: Option<u32>,
}

impl Item<'_> {
    pub(super) fn encode(&self, encoder: &mut Encoder) {
        encoder.nest(LIST_ELEM, |element| {
            if self.interval_end {
                element.be32(3, 1);
            }
            element.nest(1, |key| key.bytes(1, self.key));
            match self.data {
                Payload::None => {}
                Payload::Bytes(data) => element.nest(2, |value| value.bytes(1, data)),
                Payload::Verdict(verdict) => element.nest(2, |value| verdict.encode(value)),
            }
            if let Some(timeout) = self.timeout {
                element.be64(4, u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
            }
            if let Some(comment) = self.comment {
                let mut end = comment.len().min(COMMENT_BYTES);
                while !comment.is_char_boundary(end) {
                    end -= 1;
                }
                let (text, mut bytes) = (&comment.as_bytes()[..end], [0; COMMENT_BYTES + 3]);
                bytes[0] = COMMENT;
                bytes[1] = text.len() as u8 + 1;
                bytes[2..2 + text.len()].copy_from_slice(text);
                element.bytes(6, &bytes[..text.len() + 3]);
            }
            if let Some(most) = self.connections {
                element.nest(11, |list| {
                    list.nest(LIST_ELEM, |expression| {
                        expression.string(1, "connlimit");
                        expression.nest(2, |attrs| attrs.be32(1, most));
                    });
                    list.nest(LIST_ELEM, |expression| expression.string(1, "counter"));
                });
            }
        });
    }
}

/// An element as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found<'a> {
    /// Key in register layout.
    pub key: &'a [u8],
    /// Ends a range of a set with a single field.
    pub interval_end: bool,
    /// A map's data; empty if it has none.
    pub data: &'a [u8],
    /// Of a verdict map.
    pub verdict: Option<Verdict>,
    /// As `nft` shows it.
    pub comment: Option<&'a str>,
    /// Its whole time-out.
    pub timeout: Option<Duration>,
    /// What is left of it.
    pub expires: Option<Duration>,
    /// Packets that found it, where it counts them.
    pub packets: Option<u64>,
    /// Most connections.
    pub connections: Option<u32>,
}

/// Reads one element of a `NFTA_SET_ELEM_LIST_ELEMENTS`.
#[must_use]
pub fn parse_found(bytes: &[u8]) -> Option<Found<'_>> {
    let mut found = Found::default();
    let mut has_key = false;
    for attr in Attrs::new(bytes) {
        let inner = Attrs::new(attr.payload);
        match attr.kind {
            1 => {
                found.key = inner.get(1)?;
                has_key = true;
            }
            2 => {
                found.data = inner.get(1).unwrap_or_default();
                found.verdict = inner.nested(2).and_then(Verdict::parse);
            }
            3 => found.interval_end = attr.payload == 1u32.to_be_bytes(),
            4 => found.timeout = be64(attr.payload).map(Duration::from_millis),
            5 => found.expires = be64(attr.payload).map(Duration::from_millis),
            6 => found.comment = comment(attr.payload),
            7 => found.take_expression(inner),
            11 => inner.for_each(|expression| found.take_expression(Attrs::new(expression.payload))),
            _ => {}
        }
    }
    has_key.then_some(found)
}

impl Found<'_> {
    fn take_expression(&mut self, expression: Attrs<'_>) {
        let Some(inner) = expression.nested(2) else { return };
        match expression.get(1) {
            Some(b"counter\0") => self.packets = inner.be64(2),
            Some(b"connlimit\0") => self.connections = inner.be32(1),
            _ => {}
        }
    }
}

fn be64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// User data are type, length, value, one byte each for the first two.
fn comment(mut user_data: &[u8]) -> Option<&str> {
    while let [kind, length, rest @ ..] = user_data {
        let value = rest.get(..usize::from(*length))?;
        if *kind == COMMENT {
            return std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok();
        }
        user_data = &rest[usize::from(*length)..];
    }
    None
}
