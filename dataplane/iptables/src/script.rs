//! The text that `iptables-restore --noflush` is fed: as many tables as must change, one commit each.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::names::{self, Table};

/// Chains; see [`Script::is_big`]. Reading all costs seconds where there are ten thousand, so few are better looked up.
const BIG: usize = 1500;

/// Changes of one family.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    tables: BTreeMap<Table, Changes>,
}

#[derive(Clone, Debug, Default)]
struct Changes {
    /// Chains of ours, and what they are to be; absent: gone.
    chains: BTreeMap<String, Option<Arc<str>>>,
    /// Rules of ours in others' chains that go.
    deleted: Vec<(String, String)>,
    /// The same that come, each before all others.
    inserted: Vec<(String, String)>,
}

impl Script {
    /// A chain is to have these rules, one a line, or to go.
    pub(crate) fn chain(&mut self, table: Table, chain: &str, rules: Option<Arc<str>>) {
        self.tables.entry(table).or_default().chains.insert(chain.to_owned(), rules);
    }

    /// Whether it writes a chain.
    pub(crate) fn writes(&self, table: Table, chain: &str) -> bool {
        self.tables.get(&table).is_some_and(|changes| changes.chains.contains_key(chain))
    }

    pub(crate) fn insert(&mut self, table: Table, chain: &str, rule: String) {
        self.tables.entry(table).or_default().inserted.push((chain.to_owned(), rule));
    }

    pub(crate) fn delete(&mut self, table: Table, chain: &str, rule: String) {
        self.tables.entry(table).or_default().deleted.push((chain.to_owned(), rule));
    }

    /// Nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Whether it takes several commits, so that it may fail with half of it done.
    pub(crate) fn is_parted(&self) -> bool {
        self.tables.len() > 1
    }

    /// Whether so many chains are written that `iptables-nft-restore` should read all chains first: otherwise it looks up
    /// each rule's chain in a list of those that the script has named so far, one after the other.
    pub(crate) fn is_big(&self) -> bool {
        self.tables.values().map(|changes| changes.chains.len()).sum::<usize>() > BIG
    }

    /// Parts the jumps from a big script: what reads all chains first believes that the kernel's own are there, and makes
    /// none. The jumps' own chains are made empty; the second part fills them.
    pub(crate) fn part_jumps(&mut self) -> Self {
        let mut first = Self::default();
        for (table, changes) in &mut self.tables {
            let inserted = std::mem::take(&mut changes.inserted);
            if inserted.is_empty() {
                continue;
            }
            let targets = inserted.iter().filter_map(|(_, rule)| rule.rsplit(' ').next());
            let chains = targets.map(|chain| (chain.to_owned(), Some("".into()))).collect();
            let deleted = std::mem::take(&mut changes.deleted);
            first.tables.insert(*table, Changes { chains, deleted, inserted });
        }
        first
    }

    /// What refuses comes before what leads there, and goes after it: the filter table is written first, unless the
    /// jumps are taken back.
    ///
    /// With `read_first`, for many chains, the restoring program of nf_tables reads all chains before it begins.
    pub(crate) fn render(&self, read_first: bool) -> String {
        let takes_back = self.tables.values().any(|changes| !changes.deleted.is_empty() && changes.inserted.is_empty());
        let mut order = Table::ALL;
        if takes_back {
            order.reverse();
        }
        let mut text = String::new();
        for table in order {
            if let Some(changes) = self.tables.get(&table) {
                changes.render(table, read_first, &mut text);
            }
        }
        text
    }
}

impl Changes {
    fn render(&self, table: Table, read_first: bool, text: &mut String) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "*{table}");
        if read_first {
            text.push_str("-S\n");
        }
        let mut chains: Vec<&String> = self.chains.keys().collect();
        if read_first {
            // `iptables-nft-save` sorts them by a method that takes longest where they are sorted already.
            chains.sort_by_cached_key(|chain| names::short(chain));
        }
        for chain in chains {
            // Makes it, or empties it.
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for (chain, rule) in &self.deleted {
            let _ = writeln!(text, "-D {chain} {rule}");
        }
        for (chain, rules) in &self.chains {
            for rule in rules.iter().flat_map(|rules| rules.lines()) {
                text.push_str("-A ");
                text.push_str(chain);
                text.push(' ');
                text.push_str(rule);
                text.push('\n');
            }
        }
        for (chain, rule) in &self.inserted {
            let _ = writeln!(text, "-I {chain} {rule}");
        }
        for (chain, _) in self.chains.iter().filter(|(_, rules)| rules.is_none()) {
            let _ = writeln!(text, "-X {chain}");
        }
        text.push_str("COMMIT\n");
    }
}
