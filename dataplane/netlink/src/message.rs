//! Netlink messages: the header that frames them, and the kernel's acknowledgements (linux/netlink.h).
//!
//! Pure: bytes in, values out. [`crate::socket`] does the talking.

use crate::attr::{Attrs, Encoder, read_u16, read_u32};

/// Size of `struct nlmsghdr`.
pub const HEADER: usize = 16;
/// Size of `struct nfgenmsg`, the head of every netfilter message's body.
pub const NFGENMSG: usize = 4;

/// Flags of a request (`NLM_F_*`).
pub mod flags {
    /// `NLM_F_REQUEST`
    pub const REQUEST: u16 = 0x1;
    /// `NLM_F_ACK`
    pub const ACK: u16 = 0x4;
    /// `NLM_F_DUMP_INTR`: the dump missed or repeated entries.
    pub const DUMP_INTERRUPTED: u16 = 0x10;
    /// `NLM_F_DUMP`
    pub const DUMP: u16 = 0x300;
    /// `NLM_F_EXCL`: refuse if it exists.
    pub const EXCLUSIVE: u16 = 0x200;
    /// `NLM_F_CREATE`
    pub const CREATE: u16 = 0x400;
    /// `NLM_F_APPEND`
    pub const APPEND: u16 = 0x800;
    /// `NLM_F_CAPPED` of an acknowledgement: only the header of the request is echoed.
    pub const CAPPED: u16 = 0x100;
    /// `NLM_F_ACK_TLVS` of an acknowledgement: attributes follow.
    pub const ACK_ATTRIBUTES: u16 = 0x200;
}

/// `NLMSG_ERROR`: an acknowledgement, good or bad.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
pub(crate) const DONE: u16 = 3;

/// Starts a message and returns where; [`end`] closes it.
pub(crate) fn begin(encoder: &mut Encoder, kind: u16, flags: u16, sequence: u32) -> usize {
    let start = encoder.len();
    encoder.raw(&0u32.to_ne_bytes());
    encoder.raw(&kind.to_ne_bytes());
    encoder.raw(&(flags | self::flags::REQUEST).to_ne_bytes());
    encoder.raw(&sequence.to_ne_bytes());
    encoder.raw(&0u32.to_ne_bytes());
    start
}

/// Closes the message that began at `start`.
pub(crate) fn end(encoder: &mut Encoder, start: usize) {
    let length = (encoder.len() - start) as u32;
    encoder.patch(start, &length.to_ne_bytes());
}

/// Adds flags to a message that was written before.
pub(crate) fn add_flags(encoder: &mut Encoder, start: usize, flags: u16) {
    let at = start + 6;
    if let Some(old) = read_u16(encoder.as_slice(), at) {
        encoder.patch(at, &(old | flags).to_ne_bytes());
    }
}

/// Gives a message that was written before its sequence number.
pub(crate) fn set_sequence(encoder: &mut Encoder, start: usize, sequence: u32) {
    encoder.patch(start + 8, &sequence.to_ne_bytes());
}

/// `struct nfgenmsg`: address family, version 0, resource id in network order.
pub(crate) fn nfgenmsg(encoder: &mut Encoder, family: u8, resource: u16) {
    encoder.raw(&[family, 0]);
    encoder.raw(&resource.to_be_bytes());
}

/// One message as received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Type: subsystem and command.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// Sequence number of the request that it answers.
    pub sequence: u32,
    /// What follows the header.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Resource id of a netfilter message: for nf_tables the low 16 bits of the generation that was read.
    #[must_use]
    pub fn resource(&self) -> Option<u16> {
        Some(u16::from_be_bytes(self.body.get(2..4)?.try_into().ok()?))
    }

    /// Attributes after a fixed head of `head` bytes.
    #[must_use]
    pub fn attrs(&self, head: usize) -> Attrs<'a> {
        Attrs::new(self.body.get(head..).unwrap_or_default())
    }

    /// The acknowledgement in it, if it is one.
    #[must_use]
    pub fn acknowledgement(&self) -> Option<Acknowledgement> {
        (self.kind == ERROR).then(|| parse_acknowledgement(self.flags, self.body)).flatten()
    }
}

/// Walks the messages of one datagram; stops at the first that does not fit.
#[derive(Debug, Clone, Copy)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

/// The messages of one datagram.
#[must_use]
pub fn parse_messages(datagram: &[u8]) -> Messages<'_> {
    Messages { rest: datagram }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = read_u32(self.rest, 0)? as usize;
        let message = Message {
            kind: read_u16(self.rest, 4)?,
            flags: read_u16(self.rest, 6)?,
            sequence: read_u32(self.rest, 8)?,
            body: self.rest.get(HEADER..length)?,
        };
        self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    }
}

/// The kernel's answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Positive errno; 0 is success.
    pub errno: i32,
    /// `NLMSGERR_ATTR_MSG`
    pub text: Option<String>,
    /// `NLMSGERR_ATTR_OFFS`: byte offset in our message of the attribute that was refused.
    pub offset: Option<usize>,
}

/// Reads `struct nlmsgerr` and the extended acknowledgement behind it.
#[must_use]
pub fn parse_acknowledgement(message_flags: u16, body: &[u8]) -> Option<Acknowledgement> {
    const TEXT: u16 = 1;
    const OFFSET: u16 = 2;
    let errno = (read_u32(body, 0)? as i32).checked_neg()?;
    let mut answer = Acknowledgement { errno, text: None, offset: None };
    if message_flags & flags::ACK_ATTRIBUTES != 0 {
        let echoed = if message_flags & flags::CAPPED != 0 { HEADER } else { read_u32(body, 4)? as usize };
        let attrs = Attrs::new(body.get(4usize.checked_add(echoed.checked_next_multiple_of(4)?)?..)?);
        answer.text = attrs.string(TEXT);
        answer.offset = attrs.ne32(OFFSET).map(|offset| offset as usize);
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extended_acknowledgement_gives_text_and_offset() {
        // As 6.18 answers a NEWSETELEM of an element that is there with other data.
        let mut body = Encoder::new();
        body.raw(&(-libc::EEXIST).to_ne_bytes());
        body.raw(&[0; HEADER]);
        body.string(1, "element exists");
        body.ne32(2, 60);
        let answer = parse_acknowledgement(flags::ACK_ATTRIBUTES | flags::CAPPED, body.as_slice()).unwrap();
        assert_eq!(answer.errno, libc::EEXIST);
        assert_eq!(answer.text.as_deref(), Some("element exists"));
        assert_eq!(answer.offset, Some(60));
    }

    #[test]
    fn truncated_acknowledgements_are_not_acknowledgements() {
        assert_eq!(parse_acknowledgement(0, &[1, 2]), None);
        assert_eq!(parse_acknowledgement(flags::ACK_ATTRIBUTES, &[0xff; 8]), None);
        assert_eq!(parse_acknowledgement(0, &i32::MIN.to_ne_bytes()), None);
    }

    #[test]
    fn a_message_that_claims_more_than_the_datagram_ends_the_walk() {
        let mut encoder = Encoder::new();
        let start = begin(&mut encoder, 16, 0, 1);
        end(&mut encoder, start);
        let second = begin(&mut encoder, 17, 0, 2);
        encoder.patch(second, &4096u32.to_ne_bytes());
        let kinds: Vec<_> = parse_messages(encoder.as_slice()).map(|message| message.kind).collect();
        assert_eq!(kinds, [16]);
    }
}
