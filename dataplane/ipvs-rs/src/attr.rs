//! Netlink attributes: written into one buffer, read without copying.
//!
//! An attribute is a length, a kind and a payload, padded to four bytes (linux/netlink.h). Numbers are in the machine's
//! byte order unless a method says otherwise.

use crate::error::Malformed;

/// Bytes of an attribute's header.
const HEADER: usize = 4;
/// `NLA_F_NESTED`: the payload is attributes.
const NESTED: u16 = 0x8000;
/// `NLA_TYPE_MASK`: the kind without its two flag bits.
const KIND: u16 = 0x3fff;

/// Rounds up to where the next message or attribute begins.
pub(crate) const fn align(length: usize) -> usize {
    (length + 3) & !3
}

/// One attribute, borrowed from the message that it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Its kind, a number of the enumeration that its place calls for.
    pub kind: u16,
    /// What it carries.
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The attributes nested in this one.
    #[must_use]
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }

    /// The first bytes of the payload; a longer payload is what a later kernel may send.
    fn bytes<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.payload.first_chunk().copied().ok_or(Malformed("an attribute is shorter than its kind"))
    }

    pub(crate) fn u8(&self) -> Result<u8, Malformed> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&self) -> Result<u16, Malformed> {
        self.bytes().map(u16::from_ne_bytes)
    }

    /// In network byte order: ports.
    pub(crate) fn u16_be(&self) -> Result<u16, Malformed> {
        self.bytes().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&self) -> Result<u32, Malformed> {
        self.bytes().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&self) -> Result<u64, Malformed> {
        self.bytes().map(u64::from_ne_bytes)
    }

    /// 4 or 16 bytes of an address; IPVS sends both families in a union of 16.
    pub(crate) fn array<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.bytes()
    }

    /// Text up to its first NUL.
    pub(crate) fn text(&self) -> &'a [u8] {
        let end = self.payload.iter().position(|&byte| byte == 0).unwrap_or(self.payload.len());
        &self.payload[..end]
    }
}

/// Walks over attributes. A broken one ends the walk with an error, once.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The attributes that these bytes are.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.0);
        let Some(&[a, b, c, d]) = bytes.first_chunk::<HEADER>() else {
            return Some(Err(Malformed("an attribute's header is cut short")));
        };
        let (length, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        let Some(payload) = bytes.get(HEADER..length) else {
            return Some(Err(Malformed("an attribute's length is not that of its bytes")));
        };
        self.0 = bytes.get(align(length)..).unwrap_or_default();
        Some(Ok(Attribute { kind: kind & KIND, payload }))
    }
}

/// An attribute that this version of the crate does not know: a later kernel's. Kept, so that nothing is lost on the way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Unknown {
    /// Its kind.
    pub kind: u16,
    /// What it carries, as it came.
    pub payload: Box<[u8]>,
}

impl From<Attribute<'_>> for Unknown {
    fn from(attribute: Attribute<'_>) -> Self {
        Self { kind: attribute.kind, payload: attribute.payload.into() }
    }
}

/// Appends attributes to a buffer; nothing is allocated for a single one.
#[derive(Debug)]
pub(crate) struct Encoder<'a>(&'a mut Vec<u8>);

impl<'a> Encoder<'a> {
    pub(crate) fn new(buffer: &'a mut Vec<u8>) -> Self {
        Self(buffer)
    }

    pub(crate) fn put(&mut self, kind: u16, payload: &[u8]) {
        let length = u16::try_from(HEADER + payload.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(payload);
        self.0.resize(align(self.0.len()), 0);
    }

    pub(crate) fn put_u8(&mut self, kind: u16, value: u8) {
        self.put(kind, &[value]);
    }

    pub(crate) fn put_u16(&mut self, kind: u16, value: u16) {
        self.put(kind, &value.to_ne_bytes());
    }

    pub(crate) fn put_u16_be(&mut self, kind: u16, value: u16) {
        self.put(kind, &value.to_be_bytes());
    }

    pub(crate) fn put_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// Text with the NUL that the kernel's policy for names wants.
    pub(crate) fn put_text(&mut self, kind: u16, text: &[u8]) {
        let length = u16::try_from(HEADER + text.len() + 1).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(text);
        self.0.push(0);
        self.0.resize(align(self.0.len()), 0);
    }

    /// An attribute whose payload is what `fill` writes.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Encoder<'_>)) {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 2]);
        self.0.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        fill(self);
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes);
        encoder.put_u8(1, 7);
        encoder.nest(2, |inner| {
            inner.put_u16_be(3, 80);
            inner.put_text(4, b"wrr");
        });
        encoder.put_u32(5, 9);
        assert_eq!(bytes.len() % 4, 0);

        let read: Vec<_> = Attributes::new(&bytes).map(Result::unwrap).collect();
        assert_eq!(read.iter().map(|attribute| attribute.kind).collect::<Vec<_>>(), [1, 2, 5]);
        assert_eq!((read[0].u8(), read[2].u32()), (Ok(7), Ok(9)));
        let inner: Vec<_> = read[1].nested().map(Result::unwrap).collect();
        assert_eq!((inner[0].u16_be(), inner[1].text()), (Ok(80), b"wrr".as_slice()));
    }

    #[test]
    fn a_length_that_lies_is_an_error_and_the_end() {
        for bytes in [&[3, 0, 1, 0][..], &[9, 0, 1, 0, 1][..], &[4, 0, 1][..]] {
            let mut attributes = Attributes::new(bytes);
            assert!(attributes.next().is_some_and(|first| first.is_err()), "{bytes:?}");
            assert!(attributes.next().is_none());
        }
        assert!(Attribute { kind: 1, payload: &[1, 2] }.u32().is_err());
    }
}
