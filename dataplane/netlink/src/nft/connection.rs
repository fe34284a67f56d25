//! The conversation with nf_tables: commit batches, read tables back.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{
    Batch, Command, INET,
    item::{Found, Item, parse_found},
    object::{Chain, Rule, Table, parse_chain, parse_rule, parse_table},
    set::{Element, Set, parse_element, parse_set},
};
use crate::{
    attr::{Attrs, Encoder},
    conntrack::IpFamily,
    error::Error,
    message::{self, NFGENMSG, parse_messages},
    socket::{DumpStep, Family, Socket},
};

/// Elements that one message of a dump holds in any case: a set so small is not grown while it is read.
const ONE_WALK: usize = 64;
/// How often a reading of several dumps is repeated because another program changed the rule set meanwhile.
const READ_ATTEMPTS: usize = 20;

/// A socket that speaks nf_tables. Tables with flag `owner` belong to it, so keep it as long as the tables.
#[derive(Debug)]
pub struct Nft {
    socket: Socket,
}

impl Nft {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Socket`] if there is no netfilter netlink here. Lack of permission shows at the first commit.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(Family::Netfilter)? })
    }

    /// Netlink port of this socket, as [`Table::owner`] has it.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// How many elements one batch may hold here, at a size that the kernel takes quickly: 10,000, or fewer where the
    /// process may not enlarge its send buffer.
    #[must_use]
    pub fn elements_per_batch(&self) -> usize {
        /// The kernel's time per element grows with the transaction (500,000 took 7–9 s, split 0.3–1 s).
        const QUICK: usize = 10_000;
        /// An element with the longest key of ours (IPv6, protocol, port, IPv6) and data is below.
        const BYTES: usize = 100;
        (self.socket.send_room() / BYTES).clamp(1, QUICK)
    }

    /// How many bytes of elements one batch may hold here; the rest of the send buffer is for everything else in it.
    #[must_use]
    pub fn batch_bytes(&self) -> usize {
        self.socket.send_room() / 4 * 3
    }

    /// Commits a batch: all of it is in force, or nothing is.
    ///
    /// # Errors
    /// [`Error::Refused`] names the first operation that the kernel did not take; [`Error::AnswerLost`] means that
    /// the state must be read back.
    pub fn commit(&mut self, batch: &mut Batch) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        let operation = batch.describe();
        let messages = batch.messages() as u32;
        let first = self.socket.sequences(messages + 2);
        batch.with_bytes(first, |bytes| self.socket.send(bytes, &operation))?;
        let mut refused = Vec::new();
        'answers: loop {
            for message in parse_messages(self.socket.receive(&operation)?) {
                let index = message.sequence.wrapping_sub(first);
                let Some(answer) = message.acknowledgement().filter(|_| index <= messages) else { continue };
                let failed = answer.errno != 0;
                if failed {
                    refused.push((index, answer));
                }
                // The kernel answers in order, except that what concerns the batch as a whole (permission, module,
                // a loop found at commit) is said of its first message.
                if index == messages || (failed && index == 0) {
                    break 'answers;
                }
            }
        }
        let more = refused.len().saturating_sub(1);
        match refused.into_iter().next() {
            None => Ok(()),
            Some((index, answer)) => {
                let message = (index as usize).checked_sub(1);
                Err(Error::Refused(Box::new(batch.refusal(message, answer, more))))
            }
        }
    }

    /// Number of the rule set's current generation; any program's commit to any table moves it.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn generation(&mut self) -> Result<u32, Error> {
        let operation = "read the rule set's generation";
        let body = self.socket.ask(Command::GetGeneration.kind(), operation, |m| message::nfgenmsg(m, 0, 0))?;
        Attrs::new(body.get(NFGENMSG..).unwrap_or_default())
            .be32(1)
            .ok_or_else(|| Error::Malformed { operation: operation.into(), what: "no generation id" })
    }

    /// Runs `read` until the rule set did not change while it ran, or two readings in a row were equal, so that what it
    /// read belongs together.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if what is read changes without pause; what `read` returns otherwise.
    pub fn consistent<T: PartialEq>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut last = None;
        for _ in 0..READ_ATTEMPTS {
            let before = self.generation()?;
            let value = match read(self) {
                Err(Error::Interrupted { .. } | Error::AnswerLost { .. }) => continue,
                other => other?,
            };
            if self.generation()? == before || last.as_ref() == Some(&value) {
                return Ok(value);
            }
            last = Some(value);
        }
        Err(Error::Interrupted { operation: "read tables back".into(), attempts: READ_ATTEMPTS })
    }

    /// A table of family `inet`, if it is there.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn table(&mut self, name: &str) -> Result<Option<Table>, Error> {
        let operation = format!("read table {name}");
        let answer = self.socket.ask(Command::GetTable.kind(), &operation, |m| table_request(m, name));
        match answer {
            Ok(body) => Ok(parse_table(Attrs::new(body.get(NFGENMSG..).unwrap_or_default()))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes a table of family `ip` or `ip6` if nothing is in it: no chain, set, map or object. Whether it did.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn delete_empty_table(&mut self, family: IpFamily, name: &str) -> Result<bool, Error> {
        let operation = format!("read table {name}");
        let answer = self.socket.ask(Command::GetTable.kind(), &operation, |m| {
            message::nfgenmsg(m, family.number(), 0);
            m.string(1, name);
        });
        let body = match answer {
            Ok(body) => body,
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        };
        // NFTA_TABLE_USE: how many things are in it.
        if Attrs::new(body.get(NFGENMSG..).unwrap_or_default()).be32(3) != Some(0) {
            return Ok(false);
        }
        let mut batch = Batch::of_family(family, name);
        batch.delete_table();
        self.commit(&mut batch)?;
        Ok(true)
    }

    /// The chains of a table. The kernel dumps everybody's; only their names are read.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn chains(&mut self, table: &str) -> Result<Vec<Chain>, Error> {
        let operation = format!("read the chains of table {table}");
        self.socket.dump(
            Command::GetChain.kind(),
            &operation,
            |m| table_request(m, table),
            |chains: &mut Vec<_>, m| {
                if let Some((_, chain)) = parse_chain(m.attrs(NFGENMSG)).filter(|(of, _)| of == table) {
                    chains.push(chain);
                }
            },
        )
    }

    /// Whether any table of any family has a chain whose name begins so. Only names are read.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn has_chains(&mut self, prefix: &str) -> Result<bool, Error> {
        let unspecified = libc::AF_UNSPEC as u8;
        self.socket.dump(
            Command::GetChain.kind(),
            "read the names of all chains",
            |m| message::nfgenmsg(m, unspecified, 0),
            |found: &mut bool, m| {
                *found |= parse_chain(m.attrs(NFGENMSG)).is_some_and(|(_, chain)| chain.name.starts_with(prefix));
            },
        )
    }

    /// The rules of a table, in their order within each chain.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn rules(&mut self, table: &str) -> Result<Vec<Rule>, Error> {
        let operation = format!("read the rules of table {table}");
        self.socket.dump(
            Command::GetRule.kind(),
            &operation,
            |m| table_request(m, table),
            |rules: &mut Vec<_>, m| {
                if let Some((_, rule)) = parse_rule(m.attrs(NFGENMSG)).filter(|(of, _)| of == table) {
                    rules.push(rule);
                }
            },
        )
    }

    /// The sets and maps of a table.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn sets(&mut self, table: &str) -> Result<Vec<Set>, Error> {
        let operation = format!("read the sets of table {table}");
        self.socket.dump(
            Command::GetSet.kind(),
            &operation,
            |m| table_request(m, table),
            |sets: &mut Vec<_>, m| {
                sets.extend(parse_set(m.attrs(NFGENMSG)));
            },
        )
    }

    /// The elements of a set or map, sorted.
    ///
    /// After a large addition the kernel goes on to grow the hash table behind a set, and a walk meanwhile misses elements
    /// or sees them twice, without a word (net/netfilter/nft_set_hash.c, lib/rhashtable.c). A large set is therefore read
    /// until two readings in a row are equal.
    ///
    /// # Errors
    /// As the kernel refuses; [`Error::is_not_found`] if there is no such set; [`Error::Interrupted`] if no two readings
    /// were equal.
    pub fn elements(&mut self, table: &str, set: &str) -> Result<Vec<Element>, Error> {
        let mut last = self.walk(table, set)?;
        if last.len() <= ONE_WALK {
            return Ok(last);
        }
        for _ in 0..READ_ATTEMPTS {
            let again = self.walk(table, set)?;
            if again == last {
                return Ok(again);
            }
            last = again;
        }
        let operation = format!("read the elements of {table}/{set}");
        Err(Error::Interrupted { operation, attempts: READ_ATTEMPTS })
    }

    /// One walk over a set, sorted, each element once.
    fn walk(&mut self, table: &str, set: &str) -> Result<Vec<Element>, Error> {
        let operation = format!("read the elements of {table}/{set}");
        let request = |m: &mut Encoder| {
            table_request(m, table);
            m.string(2, set);
        };
        let mut elements =
            self.socket.dump(Command::GetElement.kind(), &operation, request, |elements: &mut Vec<_>, m| {
                elements.extend(listed(m.attrs(NFGENMSG)));
            })?;
        elements.sort();
        elements.dedup();
        Ok(elements)
    }

    /// Walks a set without keeping its elements: `see` gets each one, into a fresh `T`.
    ///
    /// As [`Self::elements`], a large set is walked until two walks in a row met the same keys and data, whatever their
    /// counters and time-outs say.
    ///
    /// # Errors
    /// As [`Self::elements`].
    pub fn visit<T: Default>(
        &mut self,
        table: &str,
        set: &str,
        mut see: impl FnMut(&mut T, &Found<'_>),
    ) -> Result<T, Error> {
        let operation = format!("read the elements of {table}/{set}");
        let mut last = None;
        for _ in 0..READ_ATTEMPTS {
            let mut collected = T::default();
            let (digest, step) = match self.walk_over(table, set, &operation, |found| see(&mut collected, found)) {
                Err(Error::AnswerLost { .. }) => continue,
                other => other?,
            };
            let in_one_walk = digest.count <= ONE_WALK && step == DumpStep::Continue;
            if in_one_walk || last == Some(digest) {
                return Ok(collected);
            }
            last = Some(digest);
        }
        Err(Error::Interrupted { operation, attempts: READ_ATTEMPTS })
    }

    /// One walk over a set.
    fn walk_over(
        &mut self,
        table: &str,
        set: &str,
        operation: &str,
        mut see: impl FnMut(&Found<'_>),
    ) -> Result<(Digest, DumpStep), Error> {
        let mut digest = Digest::default();
        let request = |m: &mut Encoder| {
            table_request(m, table);
            m.string(2, set);
        };
        let step = self.socket.dump_once(Command::GetElement.kind(), operation, request, |message| {
            for attr in message.attrs(NFGENMSG).nested(3).unwrap_or(Attrs::new(&[])) {
                if let Some(found) = parse_found(attr.payload) {
                    digest.add(&found);
                    see(&found);
                }
            }
        })?;
        Ok((digest, step))
    }

    /// The elements with these keys that are there, in any order.
    ///
    /// # Errors
    /// As the kernel refuses; an absent element, set or table is no error.
    pub fn find<'a>(
        &mut self,
        table: &str,
        set: &str,
        keys: impl Iterator<Item = &'a [u8]>,
        mut see: impl FnMut(&Found<'_>),
    ) -> Result<(), Error> {
        let operation = format!("read elements of {table}/{set}");
        for key in keys {
            let answer = self.socket.ask(Command::GetElement.kind(), &operation, |m| {
                table_request(m, table);
                m.string(2, set);
                m.nest(3, |list| Item { key, ..Item::default() }.encode(list));
            });
            match answer {
                Ok(body) => {
                    let list = Attrs::new(body.get(NFGENMSG..).unwrap_or_default()).nested(3);
                    list.into_iter().flatten().filter_map(|attr| parse_found(attr.payload)).for_each(|f| see(&f));
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The element with the same key as `wanted`, with its data; none if it, the set or the table is absent.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn element(&mut self, table: &str, set: &str, wanted: &Element) -> Result<Option<Element>, Error> {
        let operation = format!("read an element of {table}/{set}");
        let answer = self.socket.ask(Command::GetElement.kind(), &operation, |m| {
            table_request(m, table);
            m.string(2, set);
            m.nest(3, |list| Element::key(wanted.key.as_slice()).encode(list, None));
        });
        match answer {
            Ok(body) => Ok(listed(Attrs::new(body.get(NFGENMSG..).unwrap_or_default())).next()),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What a walk met, whatever the order: equal for two walks that met the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Digest {
    count: usize,
    sum: u64,
}

impl Digest {
    fn add(&mut self, found: &Found<'_>) {
        let mut hasher = DefaultHasher::new();
        (found.key, found.data, found.comment, found.interval_end).hash(&mut hasher);
        self.count += 1;
        self.sum = self.sum.wrapping_add(hasher.finish());
    }
}

/// `NFTA_SET_ELEM_LIST_ELEMENTS` of an answer.
fn listed(attrs: Attrs<'_>) -> impl Iterator<Item = Element> {
    attrs.nested(3).unwrap_or(Attrs::new(&[])).filter_map(|attr| parse_element(attr.payload))
}

/// `nfgenmsg` and the table's name, the head of every request.
fn table_request(encoder: &mut Encoder, table: &str) {
    message::nfgenmsg(encoder, INET, 0);
    encoder.string(1, table);
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{setsockopt, sockopt};

    use super::*;
    use crate::testing;

    #[test]
    fn an_answer_lost_to_a_full_buffer_is_not_taken_for_success_or_failure() {
        testing::in_namespace(|| {
            let mut nft = Nft::open().unwrap();
            setsockopt(&nft.socket, sockopt::RcvBuf, &1024).unwrap();
            let mut batch = Batch::new("absent");
            (0..2000).for_each(|n| batch.flush_chain(&format!("chain-{n}")));
            let error = nft.commit(&mut batch).unwrap_err();
            assert!(matches!(error, Error::AnswerLost { .. }), "{error}");
            assert!(nft.generation().is_ok(), "what is left of the answers is skipped");
            assert_eq!(nft.table("absent").unwrap(), None);
        });
    }
}
