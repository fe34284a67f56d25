//! Reads the balancer's table back into objects and numbers. Only reads; what is not ours is not even parsed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ipnet::IpNet;
use vipd_engine::{Assignments, Node, Objects};
use vipd_model::{EndpointKey, Family, Millis};
use vipd_netlink::{
    Error,
    nft::{Chain, Expr, Found, Nft, Rule as KernelRule, Set, Verdict},
};

use super::{
    cell::{self, Cell, Fields},
    kind::{Kind, Pick},
    names::{ChainName, Content, SetName, TABLE, bank},
    nets::{self, Net},
    object::{ChainValue, Key, Value},
    pool::{Member, Pool},
    ranges,
    render::{KINDS, POOLS, TURNS},
    table,
    word::Word,
};
use crate::rule::Rule;

/// What the kernel has.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Reading {
    pub(super) objects: Objects<Key, Value>,
    pub(super) numbers: Assignments,
}

/// Everything of ours in one generation of the rule set.
pub(super) fn all(nft: &mut Nft) -> Result<Reading, Error> {
    nft.consistent(|nft| {
        let mut reader = Reader::default();
        reader.read(nft)?;
        Ok(reader.finish())
    })
}

/// Reads what these objects need, and what is beside it: of the large sets only single elements and whole banks. The keys
/// that are not asked for may be incomplete in the answer.
pub(super) fn some(nft: &mut Nft, keys: &[Key]) -> Result<Objects<Key, Value>, Error> {
    let banks = keys.iter().filter_map(|key| match key {
        Key::Pool(id) => Some(bank(*id)),
        _ => None,
    });
    let banks: BTreeSet<u16> = banks.collect();
    let reading = nft.consistent(|nft| {
        let mut reader = Reader { only: Some(banks.clone()), ..Reader::default() };
        reader.read(nft)?;
        reader.single(nft, keys)?;
        Ok(reader.finish())
    })?;
    let mut objects = reading.objects;
    objects.retain(|key, _| keys.binary_search(key).is_ok());
    Ok(objects)
}

/// A pool on its way.
#[derive(Default)]
struct Gathered {
    label: Arc<str>,
    word: Option<Word>,
    outside_of: Option<u32>,
    direct: Vec<(u16, EndpointKey)>,
    slots: Vec<(u16, u16)>,
    members: Vec<Member>,
    lingering: Vec<EndpointKey>,
}

#[derive(Default)]
struct Reader {
    /// Of the sets that grow with the services only these banks.
    only: Option<BTreeSet<u16>>,
    objects: Objects<Key, Value>,
    numbers: Assignments,
    pools: HashMap<u32, Gathered>,
    /// The pool of sources from outside and its kind, by the pool of those inside.
    outside: Vec<(u32, Word)>,
    /// Sources by pool and list.
    allowed: BTreeMap<(u32, u8), Vec<IpNet>>,
    /// Where endpoints answer, as far as the set says.
    nets: HashSet<Net>,
    /// Pairs of equal numbers.
    equal: usize,
    /// Numbers by the chain that they lead to.
    kinds: HashMap<String, u32>,
}

impl Reader {
    fn read(&mut self, nft: &mut Nft) -> Result<(), Error> {
        let Some(found) = nft.table(TABLE)? else { return Ok(()) };
        let value = match found.owner {
            Some(port) if port != nft.port() => Value::OwnedByAnother(port),
            _ => Value::Table(found.flags),
        };
        self.objects.insert(Key::Table, value);
        for set in nft.sets(TABLE)? {
            self.set(nft, &set)?;
        }
        let (chains, rules) = (nft.chains(TABLE)?, nft.rules(TABLE)?);
        self.chains(chains, rules);
        Ok(())
    }

    fn set(&mut self, nft: &mut Nft, set: &Set) -> Result<(), Error> {
        let Some(name) = SetName::parse(&set.name) else {
            let text = format!("{set:?}").into();
            self.objects.insert(Key::StraySet(set.name.as_str().into()), Value::Otherwise(text));
            return Ok(());
        };
        if *set != table::set(name) {
            let text = format!("{set:?}").into();
            self.objects.insert(Key::Set(name), Value::Otherwise(text));
            return Ok(());
        }
        self.objects.insert(Key::Set(name), Value::AsNamed);
        let by_element = |only: &BTreeSet<u16>| match name {
            SetName::Pools | SetName::Frontends { .. } => true,
            SetName::Bank { bank, .. } => !only.contains(&bank),
            _ => false,
        };
        if matches!(name, SetName::Clients(_) | SetName::Grace(_)) || self.only.as_ref().is_some_and(by_element) {
            return Ok(());
        }
        if let SetName::Inside(family) = name {
            return self.inside(nft, family);
        }
        // Walks may be repeated, so what is kept of one is only taken in when it was the last.
        let found = nft.visit(TABLE, &set.name, |kept: &mut Vec<Kept>, found| kept.push(Kept::of(name, found)))?;
        for kept in found {
            if let Err(stray) = self.take(kept) {
                self.objects.insert(Key::StrayElement(name, stray), Value::AsNamed);
            }
        }
        Ok(())
    }

    fn inside(&mut self, nft: &mut Nft, family: Family) -> Result<(), Error> {
        let set = SetName::Inside(family).to_string();
        let mut ends = nft.visit(TABLE, &set, |ends: &mut Vec<(IpAddr, bool)>, found| {
            ends.extend(Fields(found.key).address(family).map(|address| (address, !found.interval_end)));
        })?;
        // Of two at one address the end comes first.
        ends.sort_unstable();
        let last = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::BROADCAST),
            Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
        };
        let mut ranges = Vec::new();
        let mut open = None;
        for (address, begins) in ends {
            match (open, begins) {
                (None, true) => open = Some(address),
                (Some(first), false) => {
                    ranges.push((first, ranges::before(address).unwrap_or(address)));
                    open = None;
                }
                _ => {}
            }
        }
        ranges.extend(open.map(|first| (first, last)));
        if !ranges.is_empty() {
            self.objects.insert(Key::Inside(family), Value::Ranges(ranges.into()));
        }
        Ok(())
    }

    /// Elements of sets that were not walked.
    fn single(&mut self, nft: &mut Nft, keys: &[Key]) -> Result<(), Error> {
        for key in keys {
            let (set, cell) = match key {
                Key::Frontend(frontend) => (frontend.set(), cell::frontend(frontend, Word(0))),
                Key::Pool(id) => (SetName::Pools, Cell::key(cell::Bytes::default().word(Word::new(*id, 0)))),
                _ => continue,
            };
            let mut found = None;
            nft.find(TABLE, &set.to_string(), [cell.key.as_slice()].into_iter(), |element| {
                found = Some(Kept::of(set, element));
            })?;
            // What is not as ours are is found by who reads everything.
            found.into_iter().for_each(|kept| drop(self.take(kept)));
        }
        Ok(())
    }

    /// Takes an element in; those that nothing explains come back.
    fn take(&mut self, kept: Kept) -> Result<(), Box<[u8]>> {
        match kept {
            Kept::Unknown(key) => return Err(key),
            Kept::Frontend(key, value) => {
                self.objects.insert(key, value);
            }
            Kept::NodeAddress(address) => {
                self.objects.insert(Key::NodeAddress(address), Value::AsNamed);
            }
            Kept::Net(net) => {
                self.nets.insert(net);
            }
            Kept::Equal => self.equal += 1,
            Kept::Kind(number, chain) => {
                if let Some(other) = self.kinds.insert(chain, number) {
                    return Err(other.to_ne_bytes().into());
                }
            }
            Kept::Pool(id, word, label) => {
                let pool = self.pools.entry(id).or_default();
                (pool.word, pool.label) = (Some(word), label);
            }
            Kept::Outside(id, word) => self.outside.push((id, word)),
            Kept::Allowed(word, source) => {
                self.allowed.entry((word.pool(), word.low() as u8)).or_default().push(source);
            }
            Kept::Direct(id, slot, endpoint) => self.pools.entry(id).or_default().direct.push((slot, endpoint)),
            Kept::Slot(id, slot, index) => self.pools.entry(id).or_default().slots.push((slot, index)),
            Kept::Member(id, member) => self.pools.entry(id).or_default().members.push(member),
            Kept::Ending(pool, endpoint, end) => {
                self.objects.insert(Key::Ending { pool, endpoint }, Value::Until(end));
            }
            Kept::Lingering(id, endpoint) => self.pools.entry(id).or_default().lingering.push(endpoint),
        }
        Ok(())
    }

    fn chains(&mut self, chains: Vec<Chain>, rules: Vec<KernelRule>) {
        let mut by_chain: HashMap<String, Vec<Vec<Expr>>> = HashMap::new();
        for rule in rules {
            by_chain.entry(rule.chain).or_default().push(rule.expressions);
        }
        for chain in chains {
            let rules = by_chain.remove(&chain.name).unwrap_or_default();
            match ChainName::parse(&chain.name) {
                Some(name) => self.chain(name, &chain, rules),
                None => {
                    let text = format!("{rules:?}").into();
                    self.objects.insert(Key::StrayChain(chain.name.into()), Value::Otherwise(text));
                }
            }
        }
    }

    fn chain(&mut self, name: ChainName, chain: &Chain, mut rules: Vec<Vec<Expr>>) {
        if name == ChainName::Admit {
            self.prefixes(&mut rules);
        }
        let hook_is_right = chain.hook == table::hook(name);
        let expected = table::rules(name, &Node::default());
        let as_named = hook_is_right
            && expected.len() == rules.len()
            && expected.iter().zip(&rules).all(|(expected, rule)| expected.expressions() == rule);
        let value = match name {
            _ if table::is_of_node(name) || !as_named => {
                let rules = rules.into_iter().map(Rule::foreign).collect();
                Value::Chain(Arc::new(ChainValue { hook: chain.hook, rules }))
            }
            ChainName::Kind(kind) => match self.number(kind) {
                Some(number) => Value::Kind(number),
                None => Value::Otherwise("no element of kinds leads there".into()),
            },
            _ => Value::AsNamed,
        };
        self.objects.insert(Key::Chain(name), value);
    }

    /// The number that leads to a kind.
    fn number(&mut self, kind: Kind) -> Option<u32> {
        let name = kind.to_string();
        let number = self.kinds.remove(&name)?;
        self.numbers.set(KINDS, name, number);
        if let Pick::Turns { pool } = kind.pick {
            self.numbers.assign(TURNS, &pool.to_string(), 0);
        }
        Some(number)
    }

    /// Takes the rules of prefixes off the front.
    fn prefixes(&mut self, rules: &mut Vec<Vec<Expr>>) {
        while let Some((family, length)) = rules.first().and_then(|rule| prefix_of(rule)) {
            let seen = self.objects.insert(Key::Prefix { family, length }, Value::AsNamed);
            if seen.is_some() {
                return;
            }
            rules.remove(0);
        }
    }

    fn finish(mut self) -> Reading {
        for (_, number) in std::mem::take(&mut self.kinds) {
            self.objects.insert(Key::StrayElement(SetName::Kinds, number.to_ne_bytes().into()), Value::AsNamed);
        }
        for (inside, word) in std::mem::take(&mut self.outside) {
            match self.pools.get_mut(&word.pool()) {
                Some(pool) if pool.word == Some(word) => pool.outside_of = Some(inside),
                _ => {
                    let key = Word::new(inside, 0).0.to_ne_bytes().into();
                    self.objects.insert(Key::StrayElement(SetName::Outside, key), Value::AsNamed);
                }
            }
        }
        let mut explained = HashSet::with_capacity(self.nets.len());
        for (id, gathered) in std::mem::take(&mut self.pools) {
            let mut pool = gathered.pool();
            let nets = nets::nets(&pool);
            pool.unlisted = nets.iter().filter(|net| !self.nets.contains(net)).count() as u32;
            explained.extend(nets);
            if pool.word.is_some() {
                self.numbers.set(POOLS, &*pool.label, id);
            }
            self.objects.insert(Key::Pool(id), Value::Pool(Arc::new(pool)));
        }
        for net in self.nets.difference(&explained) {
            let (set, cell) = cell::net(net);
            self.objects.insert(Key::StrayElement(set, cell.key.as_slice().into()), Value::AsNamed);
        }
        if self.equal != usize::from(table::EQUAL)
            && let Some(equal) = self.objects.get_mut(&Key::Set(SetName::Equal))
        {
            *equal = Value::Otherwise("not the pairs of equal numbers".into());
        }
        for ((pool, list), mut sources) in std::mem::take(&mut self.allowed) {
            sources.sort_unstable();
            self.objects.insert(Key::Allowed { pool, list }, Value::Sources(sources.into()));
        }
        Reading { objects: self.objects, numbers: self.numbers }
    }
}

impl Gathered {
    fn pool(mut self) -> Pool {
        self.direct.sort_unstable();
        self.slots.sort_unstable();
        self.members.sort_unstable();
        self.lingering.sort_unstable();
        Pool {
            label: self.label,
            word: self.word,
            outside_of: self.outside_of,
            direct: self.direct.into(),
            slots: self.slots.into(),
            members: self.members.into(),
            lingering: self.lingering.into(),
            ..Pool::default()
        }
    }
}

/// The prefix that a rule of `admit` stands for, if it is exactly the rule that we would write for it.
pub(super) fn prefix_of(expressions: &[Expr]) -> Option<(Family, u8)> {
    let set = expressions.iter().find_map(|expression| match expression {
        Expr::Lookup { set, .. } => SetName::parse(set),
        _ => None,
    })?;
    let SetName::Allowed { family, length } = set else { return None };
    (table::prefix_rule(family, length).expressions() == expressions).then_some((family, length))
}

/// An element, understood.
enum Kept {
    Unknown(Box<[u8]>),
    Frontend(Key, Value),
    NodeAddress(IpAddr),
    Net(Net),
    Equal,
    Kind(u32, String),
    Pool(u32, Word, Arc<str>),
    Outside(u32, Word),
    Allowed(Word, IpNet),
    Direct(u32, u16, EndpointKey),
    Slot(u32, u16, u16),
    Member(u32, Member),
    Lingering(u32, EndpointKey),
    Ending(u32, EndpointKey, Millis),
}

impl Kept {
    fn of(set: SetName, found: &Found<'_>) -> Self {
        Self::parse(set, found).unwrap_or_else(|| Self::Unknown(found.key.into()))
    }

    fn parse(set: SetName, found: &Found<'_>) -> Option<Self> {
        let (mut key, mut data) = (Fields(found.key), Fields(found.data));
        Some(match set {
            SetName::Frontends { reach, family } => {
                Self::Frontend(Key::Frontend(key.frontend(reach, family)?), Value::Word(data.word()?))
            }
            SetName::Node(family) => Self::NodeAddress(key.address(family)?),
            SetName::EndpointNets(family) => Self::Net(Net { address: key.address(family)?, port: key.port()? }),
            SetName::Equal => {
                let (one, other) = (key.slot()?, key.slot()?);
                return (one == other && one < table::EQUAL).then_some(Self::Equal);
            }
            SetName::Kinds => match &found.verdict {
                Some(Verdict::Goto(chain)) => Self::Kind(key.word()?.0, chain.clone()),
                _ => return None,
            },
            SetName::Pools => {
                let (id, word) = (key.word()?, data.word()?);
                if id.pool() != word.pool() || id.low() != 0 {
                    return None;
                }
                Self::Pool(id.pool(), word, found.comment.unwrap_or_default().into())
            }
            SetName::Outside => Self::Outside(key.word()?.pool(), data.word()?),
            SetName::Allowed { family, length } => {
                Self::Allowed(key.word()?, IpNet::new(key.address(family)?, length).ok()?)
            }
            SetName::Ending(family) => {
                let (pool, address, port) = (key.word()?.pool(), key.address(family)?, key.port()?);
                let end = Millis(found.comment?.parse().ok()?);
                Self::Ending(pool, EndpointKey { address, port }, end)
            }
            SetName::Lingering(family) => {
                let id = key.word()?.pool();
                Self::Lingering(id, EndpointKey { address: key.address(family)?, port: key.port()? })
            }
            SetName::Bank { content, family, bank: number } => {
                let word = key.word()?;
                if bank(word.pool()) != number {
                    return None;
                }
                Self::in_bank(content, family, word, key, data, found.connections.unwrap_or(0))?
            }
            SetName::Clients(_) | SetName::Grace(_) | SetName::Inside(_) => return None,
        })
    }

    fn in_bank(
        content: Content,
        family: Family,
        word: Word,
        mut key: Fields<'_>,
        mut data: Fields<'_>,
        limit: u32,
    ) -> Option<Self> {
        if content == Content::Slots {
            let index = data.word().filter(|index| index.pool() == word.pool())?;
            return Some(Self::Slot(word.pool(), key.slot()?, index.low() as u16));
        }
        let address = data.address(family)?;
        let endpoint = EndpointKey { address, port: if content.is_host() { 0 } else { data.port()? } };
        Some(match content {
            Content::Endpoints | Content::Hosts => Self::Direct(word.pool(), key.slot()?, endpoint),
            _ => Self::Member(word.pool(), Member { index: word.low() as u16, endpoint, limit }),
        })
    }
}
