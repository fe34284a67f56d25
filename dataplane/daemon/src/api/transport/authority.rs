//! Lets gRPC's C core (Python, C++, Ruby, PHP) in over the unix socket without being told an authority.
//!
//! For `unix:/run/vipd.sock` those clients send `:authority: %2Frun%2Fvipd.sock`. That is no valid authority (RFC 3986
//! allows `%` in a host name; the `http` crate does not), so the HTTP/2 library below us resets every stream before any
//! code of ours sees it. This filter stands in the byte stream instead: it follows HTTP/2 frames, finds the literal
//! `:authority` in header blocks, and turns each `%` of it into `-`. Lengths stay the same, so neither frames nor the
//! header compression state of either side change. Nothing is decoded that need not be, nothing is kept but a position.
//!
//! A wrong guess could only turn a `%` of a malformed stream into `-`; what is malformed stays so.

/// Frame types and flags of RFC 9113, section 6.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The client's connection preface (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;

/// `:authority` in the static table of RFC 7541, appendix A.
const AUTHORITY_INDEX: u64 = 1;
/// gRPC's C core spells the name out instead.
const AUTHORITY: &[u8] = b":authority";

/// Follows one direction of one connection.
#[derive(Debug)]
pub struct AuthorityFilter {
    place: Place,
    header: [u8; FRAME_HEADER_BYTES],
    /// A header block that goes on over several frames.
    block: Block,
}

/// Where in the stream of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// So many bytes of the preface are still to come.
    Preface(usize),
    /// So many bytes of a frame's header have come.
    FrameHeader(usize),
    /// The length of the padding.
    PadLength { left: usize, priority: bool },
    /// Stream dependency and weight.
    Priority { left: usize, padding: usize, skip: usize },
    /// Part of a header block; behind it, padding.
    Fragment { left: usize, padding: usize },
    /// Of no interest.
    Skip(usize),
}

/// Where in a header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    /// A representation begins.
    Start,
    /// Inside the integer of a representation; then what follows it.
    Index { value: u64, shift: u32, then: Then },
    /// The first byte of a string's length.
    Length { what: Text },
    /// The rest of it.
    LongLength { value: u64, shift: u32, what: Text, huffman: bool },
    /// Inside a string.
    String { left: u64, what: Text, huffman: bool },
    /// Something that cannot be: no more is looked at until the block ends.
    Lost,
}

/// What follows an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The next representation.
    Next,
    /// A value, or first a name if the index is 0.
    Literal,
}

/// Which string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    /// Of which so many bytes are those of `:authority`; absent: it is another name.
    Name {
        matched: Option<usize>,
    },
    Value {
        authority: bool,
    },
}

impl Default for AuthorityFilter {
    fn default() -> Self {
        Self { place: Place::Preface(PREFACE_BYTES), header: [0; FRAME_HEADER_BYTES], block: Block::Start }
    }
}

impl AuthorityFilter {
    /// Looks at the next bytes of the stream, and corrects them in place.
    pub fn pass(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            at += self.step(&mut bytes[at..]);
        }
    }

    /// Takes at least one byte; returns how many. Runs of uninteresting bytes are taken at once.
    fn step(&mut self, bytes: &mut [u8]) -> usize {
        match self.place {
            Place::Preface(left) => {
                let taken = left.min(bytes.len());
                self.place = if left > taken { Place::Preface(left - taken) } else { Place::FrameHeader(0) };
                taken
            }
            Place::FrameHeader(have) => {
                self.header[have] = bytes[0];
                self.place = if have + 1 < FRAME_HEADER_BYTES { Place::FrameHeader(have + 1) } else { self.frame() };
                1
            }
            Place::PadLength { left, priority } => {
                let padding = usize::from(bytes[0]);
                self.place = after_pad_length(left.saturating_sub(1), padding, priority);
                1
            }
            Place::Priority { left, padding, skip } => {
                self.place = match skip {
                    0 | 1 => fragment(left, padding),
                    more => Place::Priority { left, padding, skip: more - 1 },
                };
                1
            }
            Place::Fragment { left, padding } => {
                let taken = left.min(bytes.len());
                bytes[..taken].iter_mut().for_each(|byte| self.block = self.block.next(byte));
                self.place = if left > taken { Place::Fragment { left: left - taken, padding } } else { skip(padding) };
                taken
            }
            Place::Skip(left) => {
                let taken = left.min(bytes.len());
                self.place = skip(left - taken);
                taken
            }
        }
    }

    /// A frame's header is complete.
    fn frame(&mut self) -> Place {
        let [a, b, c, kind, flags, ..] = self.header;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        match kind {
            HEADERS => {
                self.block = Block::Start;
                if flags & PADDED != 0 {
                    return if length == 0 {
                        skip(0)
                    } else {
                        Place::PadLength { left: length, priority: flags & PRIORITY != 0 }
                    };
                }
                after_pad_length(length, 0, flags & PRIORITY != 0)
            }
            CONTINUATION => fragment(length, 0),
            _ => skip(length),
        }
    }
}

fn skip(left: usize) -> Place {
    if left == 0 { Place::FrameHeader(0) } else { Place::Skip(left) }
}

/// `left` bytes of the frame are still to come, padding included.
fn after_pad_length(left: usize, padding: usize, priority: bool) -> Place {
    const PRIORITY_BYTES: usize = 5;
    let left = left.saturating_sub(padding);
    match priority {
        true if left >= PRIORITY_BYTES => {
            Place::Priority { left: left - PRIORITY_BYTES, padding, skip: PRIORITY_BYTES }
        }
        true => skip(left + padding),
        false => fragment(left, padding),
    }
}

fn fragment(left: usize, padding: usize) -> Place {
    if left == 0 { skip(padding) } else { Place::Fragment { left, padding } }
}

impl Block {
    /// The state after one more byte of the block (RFC 7541, sections 5 and 6).
    fn next(self, byte: &mut u8) -> Self {
        match self {
            Self::Start => match *byte {
                indexed if indexed & 0x80 != 0 => integer(indexed, 7, Then::Next),
                incremental if incremental & 0x40 != 0 => integer(incremental, 6, Then::Literal),
                size_update if size_update & 0x20 != 0 => integer(size_update, 5, Then::Next),
                literal => integer(literal, 4, Then::Literal),
            },
            Self::Index { value, shift, then } => match more(value, shift, *byte) {
                None => Self::Lost,
                Some((value, true)) => Self::Index { value, shift: shift + 7, then },
                Some((value, false)) => then.after(value),
            },
            Self::Length { what } => {
                let huffman = *byte & 0x80 != 0;
                match u64::from(*byte & 0x7f) {
                    0x7f => Self::LongLength { value: 0x7f, shift: 0, what, huffman },
                    length => string(length, what, huffman),
                }
            }
            Self::LongLength { value, shift, what, huffman } => match more(value, shift, *byte) {
                None => Self::Lost,
                Some((value, true)) => Self::LongLength { value, shift: shift + 7, what, huffman },
                Some((value, false)) => string(value, what, huffman),
            },
            Self::String { left, what, huffman } => {
                if what == (Text::Value { authority: true }) && !huffman && *byte == b'%' {
                    *byte = b'-';
                }
                string(left - 1, what.after(*byte), huffman)
            }
            Self::Lost => Self::Lost,
        }
    }
}

impl Then {
    fn after(self, value: u64) -> Block {
        match (self, value) {
            (Self::Next, _) => Block::Start,
            (Self::Literal, 0) => Block::Length { what: Text::Name { matched: Some(0) } },
            (Self::Literal, index) => Block::Length { what: Text::Value { authority: index == AUTHORITY_INDEX } },
        }
    }
}

impl Text {
    fn after(self, byte: u8) -> Self {
        match self {
            Self::Name { matched: Some(matched) } => {
                Self::Name { matched: (AUTHORITY.get(matched) == Some(&byte)).then_some(matched + 1) }
            }
            other => other,
        }
    }
}

/// An integer that begins in the low `bits` of a byte.
fn integer(byte: u8, bits: u32, then: Then) -> Block {
    let mask = (1u8 << bits) - 1;
    match byte & mask {
        full if full == mask => Block::Index { value: u64::from(mask), shift: 0, then },
        value => then.after(u64::from(value)),
    }
}

/// One more byte of an integer: its value so far, and whether it goes on. `None`: larger than anything real.
fn more(value: u64, shift: u32, byte: u8) -> Option<(u64, bool)> {
    if shift > 28 {
        return None;
    }
    Some((value + (u64::from(byte & 0x7f) << shift), byte & 0x80 != 0))
}

fn string(left: u64, what: Text, huffman: bool) -> Block {
    match (left, what) {
        (0, Text::Name { matched }) => {
            Block::Length { what: Text::Value { authority: matched == Some(AUTHORITY.len()) } }
        }
        (0, Text::Value { .. }) => Block::Start,
        (left, what) => Block::String { left, what, huffman },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END_HEADERS: u8 = 0x4;
    const PREFACE: &[u8; PREFACE_BYTES] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    fn literal(first: u8, value: &[u8]) -> Vec<u8> {
        let mut field = vec![first, u8::try_from(value.len()).unwrap()];
        field.extend_from_slice(value);
        field
    }

    /// What comes out, however the stream is cut.
    fn pass(stream: &[u8]) -> Vec<u8> {
        let mut whole = stream.to_vec();
        AuthorityFilter::default().pass(&mut whole);
        for size in [1, 3, 7] {
            let mut filter = AuthorityFilter::default();
            let mut pieces = stream.to_vec();
            pieces.chunks_mut(size).for_each(|piece| filter.pass(piece));
            assert_eq!(pieces, whole, "cut into {size}");
        }
        whole
    }

    #[test]
    fn a_path_becomes_an_authority_and_nothing_else_changes() {
        let mut block = vec![0x83, 0x86];
        block.extend(literal(0x44, b"/vipd.v1.Node/Get%Info"));
        block.extend(literal(0x41, b"%2Frun%2Fvipd.sock"));
        block.extend([0x40, 4]);
        block.extend(b"x%id");
        block.extend([1, b'%']);
        let mut stream = PREFACE.to_vec();
        stream.extend(frame(4, 0, b"\0\x03\0\0\0%"));
        stream.extend(frame(HEADERS, END_HEADERS, &block));
        stream.extend(frame(0, 0, b"%2F data \x41\x02%%"));
        let text = String::from_utf8_lossy(&stream).replace("%2Frun%2Fvipd.sock", "-2Frun-2Fvipd.sock");
        assert_eq!(String::from_utf8_lossy(&pass(&stream)), text);
    }

    #[test]
    fn the_name_spelled_out_as_grpcio_1_85_sends_it() {
        let mut block = Vec::new();
        for (name, value) in
            [(&b":path"[..], &b"/a%b"[..]), (b":authority", b"run%2Fvipd.sock"), (b":authoritx", b"%2F")]
        {
            block.extend(literal(0x40, name));
            block.push(u8::try_from(value.len()).unwrap());
            block.extend(value);
        }
        let mut stream = PREFACE.to_vec();
        stream.extend(frame(HEADERS, END_HEADERS, &block));
        let text = String::from_utf8_lossy(&stream).replace("run%2F", "run-2F");
        assert_eq!(String::from_utf8_lossy(&pass(&stream)), text);
    }

    #[test]
    fn padding_priority_and_continuation() {
        let authority = literal(0x01, b"%2Fa");
        let mut padded = vec![3, 0, 0, 0, 0, 16];
        padded.extend(&authority[..3]);
        padded.extend(b"%%%");
        let mut stream = PREFACE.to_vec();
        stream.extend(frame(HEADERS, PADDED | PRIORITY, &padded));
        stream.extend(frame(CONTINUATION, END_HEADERS, &authority[3..]));
        let passed = pass(&stream);
        assert!(passed.windows(4).any(|w| w == b"\x01\x04-%") && passed.ends_with(b"2Fa"), "{passed:?}");
        assert_eq!(passed.iter().filter(|b| **b == b'%').count(), 3, "padding is not touched");
    }

    #[test]
    fn a_long_authority() {
        let value = [b'%'; 300];
        let mut block = vec![0x41, 0x7f, 0xad, 0x01];
        block.extend(value);
        let mut stream = PREFACE.to_vec();
        stream.extend(frame(HEADERS, END_HEADERS, &block));
        assert!(pass(&stream).ends_with(&[b'-'; 300]));
    }

    #[test]
    fn garbage_passes_through_without_end_or_panic() {
        let mut garbage = PREFACE.to_vec();
        garbage.extend(frame(HEADERS, PADDED, &[]));
        garbage.extend(frame(HEADERS, PADDED | PRIORITY, &[255, 1]));
        garbage.extend(frame(HEADERS, 0, &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x41, 1, b'x']));
        garbage.extend((0u32..4_096).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8));
        let passed = pass(&garbage);
        assert_eq!(passed.len(), garbage.len());
        assert!(passed.iter().zip(&garbage).all(|(out, sent)| out == sent || (*sent == b'%' && *out == b'-')));
    }
}
