//! The journal: SQLite's write-ahead log, read by ourselves to tell a torn end, which every crash leaves, from damage.
//! SQLite stops in silence at the first frame that does not verify; acknowledged changes after it would be gone unsaid.
//!
//! Pure. The format is <https://www.sqlite.org/fileformat2.html#the_write_ahead_log>. `salvage.rs` uses what is found.

/// Page size of our files, set when they are made.
pub(super) const PAGE: usize = 4096;
const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const FRAME: usize = FRAME_HEADER + PAGE;
/// The magic number of a log whose checksums are made of little-endian words; with the lowest bit, big-endian ones.
const MAGIC: u32 = 0x377f_0682;

/// The committed frames of a log, and what is wrong with it.
#[derive(Debug, Default)]
pub(super) struct Journal<'a> {
    frames: Vec<Frame<'a>>,
    damage: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Frame<'a> {
    /// From 1.
    page: u32,
    /// Pages of the database after the transaction that this frame ends; 0: it ends none.
    pages_after: u32,
    whole: bool,
    data: &'a [u8],
}

/// Whether a log may be damaged, by its headers alone: SQLite, which reads up to the first frame that does not verify,
/// sees `seen` frames. Far cheaper than [`Journal::read`], which then tells.
pub(super) fn is_suspicious(bytes: &[u8], seen: usize) -> bool {
    let Some((header, body)) = bytes.split_at_checked(HEADER) else { return false };
    if body.len() < FRAME {
        return false;
    }
    let committed = |frame: &[u8]| frame[8..16] == header[16..24] && word(frame, 4) != 0;
    let last = body.chunks_exact(FRAME).rposition(committed);
    !header_is_whole(header) || last.map_or(0, |last| last + 1) != seen
}

impl<'a> Journal<'a> {
    /// Reads a log. Frames of an unfinished last transaction are left out, as SQLite does.
    pub(super) fn read(bytes: &'a [u8]) -> Self {
        let Some((header, body)) = bytes.split_at_checked(HEADER) else { return Self::default() };
        let mut frames = body.chunks_exact(FRAME);
        let Some(first) = frames.next() else { return Self::default() };

        let big_endian = word(header, 0) == MAGIC | 1;
        let header_whole = word(header, 0) & !1 == MAGIC
            && sum(big_endian, [0; 2], &header[..24]) == [word(header, 24), word(header, 28)];
        // A log is begun anew by writing its header with other salts over the old one; frames with old salts are old.
        let salts = if header_whole { &header[16..24] } else { &first[8..16] };
        let mut damage = (!header_whole).then(|| "the header of its journal does not verify".to_owned());

        let mut read = Vec::new();
        let mut committed = 0;
        let mut before = [word(header, 24), word(header, 28)];
        let mut gap = None;
        for (index, frame) in body.chunks_exact(FRAME).enumerate() {
            if &frame[8..16] != salts {
                gap = gap.or(Some(index));
                continue;
            }
            if let Some(at) = gap.take() {
                damage.get_or_insert_with(|| format!("frame {at} of its journal is missing"));
            }
            let (head, data) = frame.split_at(FRAME_HEADER);
            let stated = [word(head, 16), word(head, 20)];
            let whole = sum(big_endian, sum(big_endian, before, &head[..8]), data) == stated;
            before = stated;
            read.push(Frame { page: word(head, 0), pages_after: word(head, 4), whole, data });
            if whole && word(head, 4) != 0 {
                committed = read.len();
            }
        }
        // What follows the last whole end of a transaction is one that was being written when the process ended.
        read.truncate(committed);
        if let Some(at) = read.iter().position(|frame| !frame.whole) {
            damage.get_or_insert_with(|| format!("frame {at} of its journal does not verify"));
        }
        Self { frames: read, damage }
    }

    /// What is wrong with it, if anything is.
    pub(super) fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// Writes the committed pages over those of the database file, the damaged ones too: the records on them have
    /// checksums of their own, so that what a damaged page holds is told record by record.
    pub(super) fn apply(&self, database: &mut Vec<u8>) {
        let Some(pages) = self.frames.iter().rev().find(|f| f.whole && f.pages_after != 0).map(|f| f.pages_after)
        else {
            return;
        };
        let size = usize::try_from(pages).unwrap_or(usize::MAX).saturating_mul(PAGE);
        // A frame that verifies says so; the bound is for the memory of a process that reads what somebody forged.
        if size <= database.len().saturating_add(self.frames.len().saturating_mul(PAGE)) {
            database.resize(size, 0);
        }
        for frame in &self.frames {
            let at = (frame.page as usize).saturating_sub(1).saturating_mul(PAGE);
            if let Some(page) = database.get_mut(at..at.saturating_add(PAGE)) {
                page.copy_from_slice(frame.data);
            }
        }
    }
}

fn header_is_whole(header: &[u8]) -> bool {
    let magic = word(header, 0);
    magic & !1 == MAGIC && sum(magic == MAGIC | 1, [0; 2], &header[..24]) == [word(header, 24), word(header, 28)]
}

/// A big-endian word; 0 beyond the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// SQLite's running checksum over pairs of words.
fn sum(big_endian: bool, seed: [u32; 2], bytes: &[u8]) -> [u32; 2] {
    let read = |b: &[u8]| {
        let word = word(b, 0);
        if big_endian { word } else { word.swap_bytes() }
    };
    bytes.chunks_exact(8).fold(seed, |[a, b], pair| {
        let a = a.wrapping_add(read(&pair[..4])).wrapping_add(b);
        [a, b.wrapping_add(read(&pair[4..])).wrapping_add(a)]
    })
}
