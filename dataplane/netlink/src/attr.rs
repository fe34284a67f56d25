//! Netlink attributes: a type, a length and a payload, nested at will (`struct nlattr` in linux/netlink.h).
//!
//! [`Encoder`] writes them into one growing buffer, [`Attrs`] walks them in place. Neither allocates per attribute:
//! a full load is some hundred thousand of them. The crate's own message types build on these two.

/// Set in the type of an attribute whose payload is attributes again (`NLA_F_NESTED`).
const NESTED: u16 = 0x8000;
/// What is left of an attribute's type without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER` (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;
/// Size of `struct nlattr`.
const HEADER: usize = 4;

/// Writes messages and attributes into one buffer.
///
/// An attribute's length has 16 bits: what does not fit is the caller's to split (see [`Encoder::FITS`]).
#[derive(Debug, Default, Clone)]
pub struct Encoder {
    buffer: Vec<u8>,
}

impl Encoder {
    /// The largest payload of one attribute, in bytes.
    pub const FITS: usize = u16::MAX as usize - HEADER;

    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether nothing was written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// What was written.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer
    }

    /// Gives the buffer away.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.buffer
    }

    /// Bytes as they are, without an attribute around them.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// One attribute with a ready payload of at most [`Encoder::FITS`] bytes, padded to four.
    pub fn bytes(&mut self, kind: u16, payload: &[u8]) {
        self.attribute(kind, |encoder| encoder.raw(payload));
    }

    /// One byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    /// 16 bits in network order, as ports are.
    pub fn be16(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// 32 bits in network order, as nearly every number of nf_tables is.
    pub fn be32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// 32 bits in host order, as most other netlink families have them.
    pub fn ne32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// 64 bits in network order.
    pub fn be64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Text with the terminating zero that the kernel expects.
    pub fn string(&mut self, kind: u16, text: &str) {
        self.attribute(kind, |encoder| {
            encoder.raw(text.as_bytes());
            encoder.raw(&[0]);
        });
    }

    /// An attribute that holds attributes.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.attribute(kind | NESTED, fill);
    }

    fn attribute(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.buffer.len();
        self.raw(&[0; 2]);
        self.raw(&kind.to_ne_bytes());
        fill(self);
        let length = self.buffer.len() - start;
        debug_assert!(length <= usize::from(u16::MAX), "attribute {kind:#x} of {length} bytes must be split");
        self.patch(start, &(length as u16).to_ne_bytes());
        self.align();
    }

    /// Overwrites bytes written before, such as a length that is known only at the end.
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        self.buffer[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Forgets what was written after `length`.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.buffer.truncate(length);
    }

    fn align(&mut self) {
        self.buffer.resize(self.buffer.len().next_multiple_of(4), 0);
    }
}

/// One attribute as read: its type without flags, and its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr<'a> {
    /// `NLA_TYPE_MASK`ed type.
    pub kind: u16,
    /// Payload without padding.
    pub payload: &'a [u8],
}

/// Walks the attributes of a buffer; stops at the first that does not fit, as the kernel's own parser does.
#[derive(Debug, Clone, Copy)]
pub struct Attrs<'a> {
    rest: &'a [u8],
}

impl<'a> Attrs<'a> {
    /// Attributes that start at the first byte of `buffer`.
    #[must_use]
    pub fn new(buffer: &'a [u8]) -> Self {
        Self { rest: buffer }
    }

    /// Payload of the first attribute of this type.
    #[must_use]
    pub fn get(mut self, kind: u16) -> Option<&'a [u8]> {
        self.find(|attr| attr.kind == kind).map(|attr| attr.payload)
    }

    /// The attributes nested in this one.
    #[must_use]
    pub fn nested(self, kind: u16) -> Option<Attrs<'a>> {
        self.get(kind).map(Attrs::new)
    }

    /// A byte.
    #[must_use]
    pub fn u8(self, kind: u16) -> Option<u8> {
        self.get(kind)?.first().copied()
    }

    /// 16 bits in network order.
    #[must_use]
    pub fn be16(self, kind: u16) -> Option<u16> {
        Some(u16::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    /// 32 bits in network order.
    #[must_use]
    pub fn be32(self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    /// 32 bits in host order.
    #[must_use]
    pub fn ne32(self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(self.get(kind)?.try_into().ok()?))
    }

    /// 64 bits in network order.
    #[must_use]
    pub fn be64(self, kind: u16) -> Option<u64> {
        Some(u64::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    /// Text up to its terminating zero; foreign names need not be UTF-8, so it is read with replacement.
    #[must_use]
    pub fn string(self, kind: u16) -> Option<String> {
        let payload = self.get(kind)?;
        let end = payload.iter().position(|&byte| byte == 0).unwrap_or(payload.len());
        Some(String::from_utf8_lossy(&payload[..end]).into_owned())
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Attr<'a>;

    fn next(&mut self) -> Option<Attr<'a>> {
        let (length, kind) = (read_u16(self.rest, 0)?, read_u16(self.rest, 2)?);
        let length = usize::from(length);
        let payload = self.rest.get(HEADER..length)?;
        self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Attr { kind: kind & TYPE_MASK, payload })
    }
}

/// 16 bits in host order at an offset, if they are there.
#[must_use]
pub fn read_u16(buffer: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(buffer.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// 32 bits in host order at an offset, if they are there.
#[must_use]
pub fn read_u32(buffer: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(buffer.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut encoder = Encoder::new();
        encoder.string(1, "vipd");
        encoder.nest(2, |inner| {
            inner.be32(1, 7);
            inner.be16(2, 443);
        });
        let attrs = Attrs::new(encoder.as_slice());
        assert_eq!(attrs.string(1).as_deref(), Some("vipd"));
        let inner = attrs.nested(2).unwrap();
        assert_eq!((inner.be32(1), inner.be16(2), inner.be64(3)), (Some(7), Some(443), None));
        assert_eq!(encoder.len() % 4, 0);
    }

    #[test]
    fn a_length_that_lies_ends_the_walk() {
        let mut encoder = Encoder::new();
        encoder.be32(1, 7);
        encoder.be32(2, 8);
        let mut bytes = encoder.into_bytes();
        bytes[8..10].copy_from_slice(&200u16.to_ne_bytes());
        assert_eq!(Attrs::new(&bytes).count(), 1);
        bytes[0..2].copy_from_slice(&2u16.to_ne_bytes());
        assert_eq!(Attrs::new(&bytes).count(), 0, "a length below the header must not loop");
    }
}
