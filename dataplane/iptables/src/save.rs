//! Reads `iptables-save`: strictly what is ours, nothing of the rest.

use std::collections::BTreeMap;

use crate::names::{Role, Table};
use crate::rule::{self, Rule};

/// A line of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The rule; absent: it has a part that we never write.
    pub(crate) rule: Option<Rule>,
    /// As it was printed, without its chain.
    pub(crate) text: String,
    /// Packets and bytes.
    pub(crate) counts: (u64, u64),
}

/// What of a dump is one role's.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    /// Its chains.
    pub(crate) chains: BTreeMap<(Table, String), Vec<Line>>,
    /// Rules in chains of others that lead to its own.
    pub(crate) jumps: BTreeMap<(Table, String), Vec<Line>>,
    /// Rules that are not its own.
    pub(crate) foreign_rules: usize,
}

impl Saved {
    /// Takes a dump apart. What cannot be understood is somebody else's.
    pub(crate) fn parse(role: Role, dump: &str) -> Self {
        let mut saved = Self::default();
        let mut table = None;
        for line in dump.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::ALL.into_iter().find(|table| table.as_str() == name.trim());
            } else if let Some(chain) = line.strip_prefix(':') {
                let name = chain.split(' ').next().unwrap_or_default();
                if let Some(table) = table.filter(|_| role.owns(name)) {
                    saved.chains.entry((table, name.to_owned())).or_default();
                }
            } else {
                saved.line(role, table, line);
            }
        }
        saved
    }

    /// How many rules the role has, in its own chains and in others'.
    pub(crate) fn own_rules(&self) -> usize {
        self.chains.values().chain(self.jumps.values()).map(Vec::len).sum()
    }

    /// Adds what was read of another table.
    pub(crate) fn merge(&mut self, other: Self) {
        self.chains.extend(other.chains);
        self.jumps.extend(other.jumps);
        self.foreign_rules += other.foreign_rules;
    }

    fn line(&mut self, role: Role, table: Option<Table>, line: &str) {
        let (counts, rest) = counts(line);
        let Some((chain, text)) = rest.strip_prefix("-A ").and_then(|rest| rest.split_once(' ')) else { return };
        let ours = role.owns(chain);
        // Cheap, and before anything of others is taken apart.
        let leads_to_us = || {
            let mut words = text.rsplit(' ');
            let target = words.next().unwrap_or_default();
            role.owns(target) && matches!(words.next(), Some("-j" | "-g"))
        };
        let Some(table) = table.filter(|_| ours || leads_to_us()) else {
            self.foreign_rules += 1;
            return;
        };
        let line = Line { rule: Rule::parse(&rule::words(text)), text: text.to_owned(), counts };
        let into = if ours { &mut self.chains } else { &mut self.jumps };
        into.entry((table, chain.to_owned())).or_default().push(line);
    }
}

/// `[packets:bytes] ` in front of a rule.
fn counts(line: &str) -> ((u64, u64), &str) {
    let counted = line.strip_prefix('[').and_then(|rest| {
        let (counts, rest) = rest.split_once("] ")?;
        let (packets, bytes) = counts.split_once(':')?;
        Some(((packets.parse().ok()?, bytes.parse().ok()?), rest))
    });
    counted.unwrap_or(((0, 0), line))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "# Generated\n*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j VIPD-SERVICES\nCOMMIT\n*nat\n\
        :PREROUTING ACCEPT [1:2]\n:DOCKER - [0:0]\n:VIPD-SERVICES - [0:0]\n:VIPD-G-SERVICES - [0:0]\n\
        [3:180] -A PREROUTING -m comment --comment vipd -j VIPD-SERVICES\n[0:0] -A PREROUTING -j VIPD-G-SERVICES\n\
        [0:0] -A PREROUTING -m nonsense --x \"a \\\" b\" -j DOCKER\n[0:0] -A DOCKER -j RETURN\n\
        [7:420] -A VIPD-SERVICES -d 10.96.0.0/16 -j VIPD-T-10.96.0.0-16\n\
        -A VIPD-SERVICES -m weird -j ACCEPT\nCOMMIT\n";

    #[test]
    fn only_our_own_is_read() {
        let saved = Saved::parse(Role::Balancer, DUMP);
        assert_eq!(saved.chains.keys().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["VIPD-SERVICES"]);
        let lines = &saved.chains[&(Table::Nat, "VIPD-SERVICES".to_owned())];
        assert_eq!(lines[0].counts, (7, 420));
        assert_eq!(lines[0].rule.as_ref().unwrap().leads_to(), Some("VIPD-T-10.96.0.0-16"));
        assert_eq!(lines[1].rule, None, "in our chain, and not ours");
        let jumps = &saved.jumps[&(Table::Nat, "PREROUTING".to_owned())];
        assert_eq!(jumps.len(), 1);
        assert_eq!(jumps[0].rule.as_ref().unwrap().comment.as_deref(), Some("vipd"));
        assert!(saved.foreign_rules >= 3);
    }
}
