//! Generic netlink messages: the header written and patched, a datagram walked over, the kernel's answers read.
//!
//! Public for those who bring their own socket; everybody else uses [`Ipvs`](crate::Ipvs). Decoders take any bytes and
//! never panic.

use crate::attr::{Attributes, align};
use crate::error::Malformed;

/// Bytes of a netlink header (`struct nlmsghdr`).
pub(crate) const HEADER: usize = 16;
/// Bytes of a generic netlink header (`struct genlmsghdr`).
pub(crate) const GENERIC_HEADER: usize = 4;
/// Message types below this belong to netlink itself (`NLMSG_MIN_TYPE`).
const FIRST_FAMILY: u16 = 0x10;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Header flags (linux/netlink.h).
pub(crate) mod flags {
    pub(crate) const REQUEST: u16 = 0x01;
    pub(crate) const ACK: u16 = 0x04;
    pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;
    pub(crate) const DUMP: u16 = 0x300;
    /// On an error: only the header of the refused request is repeated (`NLM_F_CAPPED`).
    pub(crate) const CAPPED: u16 = 0x100;
    /// On an error: attributes with the kernel's words follow (`NLM_F_ACK_TLVS`).
    pub(crate) const ANSWER_ATTRIBUTES: u16 = 0x200;
}

/// One message of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Type: the number of the family, or one of netlink's own.
    pub kind: u16,
    /// Flags of the header.
    pub flags: u16,
    /// Sequence number: that of the request which it answers.
    pub sequence: u32,
    /// What follows the netlink header.
    pub body: &'a [u8],
}

/// What a message is.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    /// The kernel's answer to a request: refused, or done.
    Answer(Answer<'a>),
    /// The end of a dump, with the error that ended it, if any.
    Done(Answer<'a>),
    /// A command of a generic netlink family with its attributes.
    Command {
        /// Which command (`IPVS_CMD_*`).
        command: u8,
        /// What it carries.
        attributes: Attributes<'a>,
    },
    /// Netlink's own business: no-operation, overrun.
    Other,
}

/// Done, or refused and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// 0 when done, else a positive error number.
    pub errno: i32,
    /// The kernel's own words, which IPVS rarely has: only where an attribute broke netlink's rules.
    pub text: Option<&'a [u8]>,
}

impl<'a> Message<'a> {
    /// Reads what the message is.
    ///
    /// # Errors
    /// [`Malformed`] if the body is too short for it.
    pub fn content(&self) -> Result<Content<'a>, Malformed> {
        match self.kind {
            ERROR => Ok(Content::Answer(Answer::parse(self.flags, self.body)?)),
            // The end of a dump carries no header of a request, so attributes follow the number at once.
            DONE if self.body.is_empty() => Ok(Content::Done(Answer { errno: 0, text: None })),
            DONE => Ok(Content::Done(Answer { errno: Answer::errno(self.body)?, text: None })),
            kind if kind < FIRST_FAMILY => Ok(Content::Other),
            _ => self.command().map(|(command, attributes)| Content::Command { command, attributes }),
        }
    }

    /// Reads the body as a command of a generic netlink family, whatever the type says: in a [`Batch`](crate::Batch) that
    /// was not sent it says nothing yet.
    ///
    /// # Errors
    /// [`Malformed`] if the body is too short for it.
    pub fn command(&self) -> Result<(u8, Attributes<'a>), Malformed> {
        let (header, rest) = self
            .body
            .split_first_chunk::<GENERIC_HEADER>()
            .ok_or(Malformed("a generic netlink header is cut short"))?;
        Ok((header[0], Attributes::new(rest)))
    }
}

impl<'a> Answer<'a> {
    fn errno(body: &[u8]) -> Result<i32, Malformed> {
        let bytes = body.first_chunk().ok_or(Malformed("an answer has no error number"))?;
        Ok(i32::from_ne_bytes(*bytes).saturating_neg())
    }

    fn parse(flags: u16, body: &'a [u8]) -> Result<Self, Malformed> {
        /// `NLMSGERR_ATTR_MSG`.
        const TEXT: u16 = 1;
        let errno = Self::errno(body)?;
        let request = body.get(4..).unwrap_or_default();
        let length = match request.first_chunk() {
            Some(bytes) if flags & flags::CAPPED == 0 => u32::from_ne_bytes(*bytes) as usize,
            _ => HEADER,
        };
        let rest = if flags & flags::ANSWER_ATTRIBUTES == 0 { None } else { request.get(align(length)..) };
        let text = Attributes::new(rest.unwrap_or_default()).flatten().find(|attribute| attribute.kind == TEXT);
        Ok(Self { errno, text: text.map(|attribute| attribute.text()) })
    }
}

/// Walks over the messages of a datagram. A broken one ends the walk with an error, once.
///
/// ```
/// use ipvs_rs::message::{Content, messages};
///
/// // The kernel's "done" to request number 15, as a little-endian machine sees it.
/// # #[cfg(target_endian = "little")] {
/// let datagram = [20, 0, 0, 0, 3, 0, 2, 0, 15, 0, 0, 0, 215, 2, 0, 0, 0, 0, 0, 0];
/// let message = messages(&datagram).next().unwrap()?;
/// assert_eq!(message.sequence, 15);
/// assert!(matches!(message.content()?, Content::Done(answer) if answer.errno == 0));
/// # }
/// # Ok::<(), ipvs_rs::Malformed>(())
/// ```
#[must_use]
pub fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages(datagram)
}

/// See [`messages`].
#[derive(Debug, Clone, Copy)]
pub struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.0);
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            return Some(Err(Malformed("a message's header is cut short")));
        };
        let u16_at = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let u32_at = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = u32_at(0) as usize;
        let Some(body) = bytes.get(HEADER..length) else {
            return Some(Err(Malformed("a message's length is not that of its bytes")));
        };
        self.0 = bytes.get(align(length)..).unwrap_or_default();
        Some(Ok(Message { kind: u16_at(4), flags: u16_at(6), sequence: u32_at(8), body }))
    }
}

/// Begins a message of the family, whose length [`end`] fills in. What is not known yet is 0: see [`address`].
pub(crate) fn begin(buffer: &mut Vec<u8>, command: u8, version: u8) -> usize {
    let start = buffer.len();
    buffer.resize(start + HEADER, 0);
    buffer.extend_from_slice(&[command, version, 0, 0]);
    start
}

/// Ends the message that begins at `start`.
pub(crate) fn end(buffer: &mut [u8], start: usize) {
    let length = u32::try_from(buffer.len() - start).unwrap_or(u32::MAX);
    buffer[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// Fills in what only the sender knows of the message that begins at `start`.
pub(crate) fn address(buffer: &mut [u8], start: usize, kind: u16, flags: u16, sequence: u32) {
    buffer[start + 4..start + 6].copy_from_slice(&kind.to_ne_bytes());
    buffer[start + 6..start + 8].copy_from_slice(&flags.to_ne_bytes());
    buffer[start + 8..start + 12].copy_from_slice(&sequence.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Encoder;

    fn error(flags: u16, errno: i32, request: &[u8], text: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes.extend_from_slice(&(-errno).to_ne_bytes());
        bytes.extend_from_slice(request);
        Encoder::new(&mut bytes).put(1, text);
        end(&mut bytes, 0);
        address(&mut bytes, 0, ERROR, flags, 9);
        bytes
    }

    #[test]
    fn the_kernels_words_are_found_behind_a_whole_request_and_behind_a_capped_one() {
        let mut request = Vec::new();
        begin(&mut request, 1, 1);
        request.extend_from_slice(&[7; 12]);
        end(&mut request, 0);
        let cases = [(flags::ANSWER_ATTRIBUTES, &request[..]), (0x300, &request[..HEADER])];
        for (flags, repeated) in cases {
            let datagram = error(flags, 22, repeated, b"Attribute failed policy validation\0");
            let message = messages(&datagram).next().unwrap().unwrap();
            let Ok(Content::Answer(answer)) = message.content() else { panic!("{message:?}") };
            assert_eq!(answer, Answer { errno: 22, text: Some(b"Attribute failed policy validation") });
        }
    }

    #[test]
    fn a_length_that_lies_is_an_error_and_the_end() {
        let mut datagram = error(0, 1, &[], b"");
        datagram[0] = 200;
        assert!(messages(&datagram).next().unwrap().is_err());
        datagram[0] = 3;
        assert_eq!(messages(&datagram).count(), 1);
    }
}
