//! The part of a tree that is split by port.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use vipd_model::{Family, PortRange, Protocol};

use super::{Composer, Entry, Item, LEAVES, Tree};
use crate::names::{self, Role};
use crate::rule::{Rule, Target};

impl Composer<'_> {
    /// The root's rule for what is found by port alone.
    pub(super) fn node_ports(&mut self, entries: &[Entry<'_>], root: &mut Vec<Rule>) {
        if entries.is_empty() {
            return;
        }
        let chain = self.role.chain(format_args!("{}N", self.tree.letter()));
        let mut rule = Rule::always(Target::Jump(chain.clone()));
        if !matches!(self.tree, Tree::Post | Tree::Proxy) {
            rule.local_destination = true;
            // What is translated to another host cannot come from loopback, or go back to it.
            rule.destination = (self.role == Role::Balancer).then(|| (true, loopback(self.family)));
        }
        root.push(rule);
        if self.is_touched(None) || !self.keep(&chain) {
            let items: Vec<Item> = entries.iter().filter_map(|entry| self.item(*entry)).collect();
            let mut inner = Vec::new();
            self.ports(&items, &format!("{chain}-"), &mut inner);
            self.write(chain, &inner);
        }
    }

    /// The rules of a chain for these entries; where they are many, of chains whose names start with `base`.
    pub(super) fn ports(&mut self, items: &[Item], base: &str, rules: &mut Vec<Rule>) {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let of_protocol: Vec<Item> = items.iter().filter(|item| item.protocol == protocol).cloned().collect();
            self.part(&of_protocol, protocol, PortRange { first: 0, last: u16::MAX }, base, rules);
        }
    }

    /// The entries of one protocol that have ports in `within`.
    fn part(&mut self, items: &[Item], protocol: Protocol, within: PortRange, base: &str, rules: &mut Vec<Rule>) {
        if items.len() <= LEAVES || within.is_one() {
            rules.extend(items.iter().map(|item| item.rule.clone()));
            return;
        }
        let first = items.iter().map(|item| item.ports.first.max(within.first)).min().unwrap_or(0);
        let last = items.iter().map(|item| item.ports.last.min(within.last)).max().unwrap_or(u16::MAX);
        // At most 16 bits are shared, and one step more is at most all of them.
        let shared = u8::try_from((first ^ last).leading_zeros()).unwrap_or(16) / 4 * 4;
        let length = (shared + 4).min(16);
        let size = u16::MAX.checked_shr(length.into()).unwrap_or(0);
        let mut start = first & !size;
        loop {
            let range = PortRange { first: start, last: start | size };
            let here: Vec<Item> = items.iter().filter(|item| item.ports.overlaps(range)).cloned().collect();
            if !here.is_empty() {
                let chain = format!("{base}{}", names::ports(protocol, start, length));
                let mut inner = Vec::new();
                self.part(&here, protocol, range, base, &mut inner);
                self.write(chain.clone(), &inner);
                rules.push(Rule { target: Some(Target::Goto(chain)), ..self.at(None, Some((protocol, range))) });
            }
            match range.last.checked_add(1) {
                Some(next) if next <= last => start = next,
                _ => return,
            }
        }
    }
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
        Family::V6 => IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
    }
}
