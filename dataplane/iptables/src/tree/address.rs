//! The part of a tree that is split by address.

use std::net::IpAddr;

use ipnet::IpNet;
use vipd_model::Family;

use super::{Composer, Entry, Item, LEAVES};
use crate::names;
use crate::rule::{Rule, Target};

/// A packet is taken through so many chains at most: nf_tables follows 16 jumps in all (`NFT_JUMP_STACK_SIZE`). Whoever
/// chooses IPv6 addresses to need more gets a longer list in the last one.
const DEPTH: usize = 6;

/// An entry with its address.
type Address<'a> = (IpAddr, Entry<'a>);

/// How many addresses there are, up to one more than a chain holds.
fn is_few(addresses: &[Address<'_>]) -> bool {
    addresses.chunk_by(|(a, _), (b, _)| a == b).take(LEAVES + 1).count() <= LEAVES
}

impl Composer<'_> {
    /// The rules of the root.
    pub(super) fn addresses(&mut self, addresses: &[Address<'_>], root: &mut Vec<Rule>) {
        if is_few(addresses) {
            return self.leaves(addresses, root);
        }
        // Flows to elsewhere are done with at one rule. The root is left by jumps: node ports are asked afterwards.
        match common(addresses) {
            0 => self.split(addresses, DEPTH, Target::Jump, root),
            length => root.push(self.branch(addresses, length, DEPTH, Target::Jump)),
        }
    }

    /// A chain of its own for these addresses, which share a prefix, and the rule that leads to it.
    fn branch(&mut self, addresses: &[Address<'_>], length: u8, depth: usize, to: fn(String) -> Target) -> Rule {
        let prefix = network(addresses, length);
        let name = names::prefix(prefix.network(), length);
        let chain = self.role.chain(format_args!("{}-{name}", self.tree.letter()));
        let rule = Rule { target: Some(to(chain.clone())), ..self.at(Some(prefix), None) };
        // Also what went: its address may be in none of these, but it is within the prefix.
        if !self.is_touched(Some((prefix.network(), prefix.broadcast()))) && self.keep(&chain) {
            return rule;
        }
        let mut rules = Vec::new();
        if is_few(addresses) || depth == 0 {
            self.leaves(addresses, &mut rules);
        } else {
            self.split(addresses, depth - 1, Target::Goto, &mut rules);
        }
        self.write(chain, &rules);
        rule
    }

    fn split(&mut self, addresses: &[Address<'_>], depth: usize, to: fn(String) -> Target, rules: &mut Vec<Rule>) {
        let length = common(addresses) + 4;
        for group in addresses.chunk_by(|(a, _), (b, _)| truncated(*a, length) == truncated(*b, length)) {
            rules.push(self.branch(group, length, depth, to));
        }
    }

    fn leaves(&mut self, addresses: &[Address<'_>], rules: &mut Vec<Rule>) {
        for group in addresses.chunk_by(|(a, _), (b, _)| a == b) {
            let items: Vec<Item> = group.iter().filter_map(|(_, entry)| self.item(*entry)).collect();
            let Some((address, _)) = group.first().filter(|_| items.len() > LEAVES) else {
                rules.extend(items.into_iter().map(|item| item.rule));
                continue;
            };
            let name = &names::short(&address.to_string())[..12];
            let chain = self.role.chain(format_args!("{}A-{name}", self.tree.letter()));
            let mut inner = Vec::new();
            self.ports(&items, &chain, &mut inner);
            self.write(chain.clone(), &inner);
            rules.push(Rule { target: Some(Target::Goto(chain)), ..self.at(Some((*address).into()), None) });
        }
    }
}

/// The length of the prefix that all of these sorted addresses share, in whole steps of four bits.
fn common(addresses: &[Address<'_>]) -> u8 {
    let (Some((first, _)), Some((last, _))) = (addresses.first(), addresses.last()) else { return 0 };
    let same = (bits(*first) ^ bits(*last)).leading_zeros();
    // At most 128.
    let same = u8::try_from(same).unwrap_or(u8::MAX).min(width(*first));
    same / 4 * 4
}

/// Left-aligned.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn width(address: IpAddr) -> u8 {
    match Family::of(address) {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

fn truncated(address: IpAddr, length: u8) -> u128 {
    bits(address).checked_shr(128 - u32::from(length)).unwrap_or(0)
}

fn network(addresses: &[Address<'_>], length: u8) -> IpNet {
    let address = addresses.first().map_or(IpAddr::from([0; 4]), |(address, _)| *address);
    IpNet::new(address, length).map_or(IpNet::from(address), |net| net.trunc())
}
