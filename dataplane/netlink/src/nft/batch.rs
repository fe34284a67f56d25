//! One transaction: operations on one table that come into force together, or not at all.
//!
//! A batch is one buffer sent by one `sendmsg`. The acknowledgement is asked for on the last real message (6.1 does
//! not acknowledge `BATCH_END`). Every message remembers which operation and which elements it carries, so that the
//! kernel's sequence number and offset lead back to the object that was refused.

use super::{
    Command, INET, SUBSYSTEM,
    expr::Expr,
    item::Item,
    object::{Chain, TableFlags, comment_user_data},
    operand::Verdict,
    set::{Element, Set},
};
use crate::{
    attr::Encoder,
    conntrack::IpFamily,
    error::Refusal,
    message::{self, Acknowledgement, flags},
};

/// `NFNL_MSG_BATCH_BEGIN`
const BEGIN: u16 = 0x10;
/// `NFNL_MSG_BATCH_END`
const END: u16 = 0x11;

/// One message of a batch.
#[derive(Debug)]
struct Part {
    start: usize,
    operation: usize,
    /// Index of the first element in its operation, and where each element starts in the message.
    elements: Option<(usize, Vec<u32>)>,
}

/// A transaction under construction.
#[derive(Debug)]
pub struct Batch {
    table: String,
    encoder: Encoder,
    parts: Vec<Part>,
    operations: Vec<String>,
    /// `NFPROTO_…`
    family: u8,
    elements: usize,
    sets: u32,
}

impl Batch {
    /// An empty transaction on a table of family `inet`.
    #[must_use]
    pub fn new(table: impl Into<String>) -> Self {
        let mut encoder = Encoder::new();
        let start = message::begin(&mut encoder, BEGIN, 0, 0);
        message::nfgenmsg(&mut encoder, 0, SUBSYSTEM);
        message::end(&mut encoder, start);
        Self {
            table: table.into(),
            family: INET,
            encoder,
            parts: Vec::new(),
            operations: Vec::new(),
            elements: 0,
            sets: 0,
        }
    }

    /// An empty transaction on a table of family `ip` or `ip6`.
    #[must_use]
    pub fn of_family(family: IpFamily, table: impl Into<String>) -> Self {
        Self { family: family.number(), ..Self::new(table) }
    }

    /// Whether there is nothing to commit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Operations added so far; the index of the next one.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.operations.len()
    }

    /// Messages to the kernel so far.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.parts.len()
    }

    /// Elements added or deleted so far; above [`Nft::elements_per_batch`](super::Nft::elements_per_batch) start a new
    /// batch.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Makes the table, or takes an orphaned one over if `flags` has `owner`.
    pub fn add_table(&mut self, flags: TableFlags) {
        let name = format!("add table {}", self.table);
        self.push(Command::NewTable, flags::CREATE, name, |attrs| {
            if flags.bits() != 0 {
                attrs.be32(2, flags.bits());
            }
        });
    }

    /// Deletes the table with all that is in it.
    pub fn delete_table(&mut self) {
        let name = format!("delete table {}", self.table);
        self.push(Command::DelTable, 0, name, |_| {});
    }

    /// Makes a chain; no error if it is there with the same hook.
    pub fn add_chain(&mut self, chain: &Chain) {
        let name = format!("add chain {}", chain.name);
        self.push(Command::NewChain, flags::CREATE, name, |attrs| chain.encode(attrs));
    }

    /// Deletes a chain that no rule jumps to; its own rules must have gone before.
    pub fn delete_chain(&mut self, chain: &str) {
        self.push(Command::DelChain, 0, format!("delete chain {chain}"), |attrs| attrs.string(3, chain));
    }

    /// Appends a rule to its chain.
    pub fn add_rule(&mut self, chain: &str, expressions: &[Expr], comment: Option<&str>) {
        self.rule(chain, flags::CREATE | flags::APPEND, expressions, comment);
    }

    /// Puts a rule before all others of its chain.
    pub fn insert_rule(&mut self, chain: &str, expressions: &[Expr], comment: Option<&str>) {
        self.rule(chain, flags::CREATE, expressions, comment);
    }

    fn rule(&mut self, chain: &str, flags: u16, expressions: &[Expr], comment: Option<&str>) {
        self.push(Command::NewRule, flags, format!("add a rule to chain {chain}"), |attrs| {
            attrs.string(2, chain);
            attrs.nest(4, |list| expressions.iter().for_each(|expression| expression.encode(list)));
            if let Some(comment) = comment {
                attrs.bytes(7, &comment_user_data(comment));
            }
        });
    }

    /// Deletes one rule.
    pub fn delete_rule(&mut self, chain: &str, handle: u64) {
        self.push(Command::DelRule, 0, format!("delete rule {handle} of chain {chain}"), |attrs| {
            attrs.string(2, chain);
            attrs.be64(3, handle);
        });
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, chain: &str) {
        self.push(Command::DelRule, 0, format!("flush chain {chain}"), |attrs| attrs.string(2, chain));
    }

    /// Makes a set or map.
    pub fn add_set(&mut self, set: &Set) {
        self.sets += 1;
        let id = self.sets;
        self.push(Command::NewSet, flags::CREATE, format!("add set {}", set.name), |attrs| set.encode(attrs, id));
    }

    /// Deletes a set that no rule uses.
    pub fn delete_set(&mut self, set: &str) {
        self.push(Command::DelSet, 0, format!("delete set {set}"), |attrs| attrs.string(2, set));
    }

    /// Deletes all elements of a set.
    pub fn flush_set(&mut self, set: &str) {
        self.push(Command::DelElement, 0, format!("flush set {set}"), |attrs| attrs.string(2, set));
    }

    /// Adds elements; the kernel refuses a key that is there with other data (`EEXIST`).
    pub fn add_elements(&mut self, set: &str, elements: &[Element]) {
        let name = format!("add {} elements to {set}", elements.len());
        self.push_elements(Command::NewElement, flags::CREATE, set, name, elements.iter().map(|e| (e, None)));
    }

    /// Adds elements of a verdict map.
    pub fn add_verdicts(&mut self, set: &str, elements: &[(Element, Verdict)]) {
        let name = format!("add {} elements to {set}", elements.len());
        let pairs = elements.iter().map(|(element, verdict)| (element, Some(verdict)));
        self.push_elements(Command::NewElement, flags::CREATE, set, name, pairs);
    }

    /// Deletes elements; one that is absent fails the whole batch (`ENOENT`).
    pub fn delete_elements(&mut self, set: &str, elements: &[Element]) {
        let name = format!("delete {} elements from {set}", elements.len());
        self.push_elements(Command::DelElement, 0, set, name, elements.iter().map(|e| (e, None)));
    }

    /// Adds elements as they come; no error for one that is there with the same data (`EEXIST` with other data).
    pub fn add_items<'a>(&mut self, set: &str, items: impl Iterator<Item = Item<'a>>) {
        self.push_items(Command::NewElement, flags::CREATE, set, items);
    }

    /// Deletes elements as they come; one that is absent fails the whole batch (`ENOENT`).
    pub fn delete_items<'a>(&mut self, set: &str, items: impl Iterator<Item = Item<'a>>) {
        self.push_items(Command::DelElement, 0, set, items);
    }

    fn push_items<'a>(&mut self, command: Command, flags: u16, set: &str, items: impl Iterator<Item = Item<'a>>) {
        let verb = if command == Command::NewElement { "add elements to" } else { "delete elements from" };
        self.push_list(command, flags, set, format!("{verb} {set}"), items, |item, list| item.encode(list));
    }

    fn push(&mut self, command: Command, flags: u16, name: String, fill: impl FnOnce(&mut Encoder)) {
        self.operations.push(name);
        let start = self.open(command, flags);
        fill(&mut self.encoder);
        self.close(start, None);
    }

    fn open(&mut self, command: Command, flags: u16) -> usize {
        let start = message::begin(&mut self.encoder, command.kind(), flags, 0);
        message::nfgenmsg(&mut self.encoder, self.family, 0);
        self.encoder.string(1, &self.table);
        start
    }

    fn close(&mut self, start: usize, elements: Option<(usize, Vec<u32>)>) {
        message::end(&mut self.encoder, start);
        self.parts.push(Part { start, operation: self.operations.len() - 1, elements });
    }

    fn push_elements<'a>(
        &mut self,
        command: Command,
        flags: u16,
        set: &str,
        name: String,
        elements: impl Iterator<Item = (&'a Element, Option<&'a Verdict>)>,
    ) {
        self.push_list(command, flags, set, name, elements, |(element, verdict), list| element.encode(list, *verdict));
    }

    /// One operation, as many messages as its list attribute's 16-bit length asks for; none for an empty list.
    fn push_list<T>(
        &mut self,
        command: Command,
        flags: u16,
        set: &str,
        name: String,
        elements: impl Iterator<Item = T>,
        encode: impl Fn(&T, &mut Encoder),
    ) {
        /// Keeps the list below [`Encoder::FITS`] whatever the last element's size (keys and data have at most 64 bytes, a
        /// comment 256).
        const LIST_LIMIT: usize = Encoder::FITS - 1024;
        self.operations.push(name);
        let mut elements = elements.peekable();
        let mut first = 0;
        while elements.peek().is_some() {
            let start = self.open(command, flags);
            self.encoder.string(2, set);
            let mut starts = Vec::new();
            self.encoder.nest(3, |list| {
                let list_start = list.len();
                while list.len() - list_start < LIST_LIMIT
                    && let Some(element) = elements.next()
                {
                    starts.push((list.len() - start) as u32);
                    encode(&element, list);
                }
            });
            let count = starts.len();
            self.close(start, Some((first, starts)));
            first += count;
        }
        self.elements += first;
    }

    /// Completes the buffer with sequence numbers from `first` on, lets `send` have it, and takes the end off again.
    pub(super) fn with_bytes<T>(&mut self, first: u32, send: impl FnOnce(&[u8]) -> T) -> T {
        let length = self.encoder.len();
        message::set_sequence(&mut self.encoder, 0, first);
        for (part, sequence) in self.parts.iter().zip(first.wrapping_add(1)..) {
            message::set_sequence(&mut self.encoder, part.start, sequence);
        }
        if let Some(last) = self.parts.last() {
            message::add_flags(&mut self.encoder, last.start, flags::ACK);
        }
        let end = message::begin(&mut self.encoder, END, 0, first.wrapping_add(self.parts.len() as u32 + 1));
        message::nfgenmsg(&mut self.encoder, 0, SUBSYSTEM);
        message::end(&mut self.encoder, end);
        let sent = send(self.encoder.as_slice());
        self.encoder.truncate(length);
        sent
    }

    /// What we were doing, for errors.
    pub(super) fn describe(&self) -> String {
        format!("commit {} operations to table {}", self.operations.len(), self.table)
    }

    /// Leads an answer back to the object refused. `message` counts from the batch's first real message.
    pub(super) fn refusal(&self, message: Option<usize>, answer: Acknowledgement, more: usize) -> Refusal {
        let part = message.and_then(|index| self.parts.get(index));
        let element_index = part.zip(answer.offset).and_then(|(part, offset)| part.element_at(offset));
        let object = part.and_then(|part| self.operations.get(part.operation)).map(|name| match element_index {
            Some(index) => format!("{name}, element {index}"),
            None => name.clone(),
        });
        Refusal {
            operation: self.describe(),
            object,
            operation_index: part.map(|part| part.operation),
            element_index,
            errno: answer.errno,
            text: answer.text,
            more,
        }
    }
}

impl Part {
    /// The element that holds the byte at `offset` of the message.
    fn element_at(&self, offset: usize) -> Option<usize> {
        let (first, starts) = self.elements.as_ref()?;
        let after = starts.partition_point(|&start| start as usize <= offset);
        Some(first + after.checked_sub(1)?)
    }
}
