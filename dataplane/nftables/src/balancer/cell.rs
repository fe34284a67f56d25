//! Elements as bytes: what our values are in the kernel's registers, and back.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use vipd_model::{EndpointKey, Family, Millis};
use vipd_netlink::nft::{Item, Payload, Verdict};

use super::{
    kind::Kind,
    names::{Content, Reach, SetName, bank},
    nets::Net,
    object::{FrontendKey, FrontendPlace},
    pool::{Member, Pool},
    ranges, table,
    word::Word,
};

/// Longest of all: word or port, IPv6 address, protocol or port.
const BYTES: usize = 24;

/// A key or data, fields padded to registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Bytes {
    bytes: [u8; BYTES],
    length: u8,
}

impl Bytes {
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Bytes as the kernel gave them; cut where none of ours could be so long.
    pub(super) fn raw(bytes: &[u8]) -> Self {
        Self::default().and(&bytes[..bytes.len().min(BYTES)])
    }

    fn and(mut self, field: &[u8]) -> Self {
        let start = usize::from(self.length);
        self.bytes[start..start + field.len()].copy_from_slice(field);
        self.length += field.len().next_multiple_of(4) as u8;
        self
    }

    pub(super) fn word(self, word: Word) -> Self {
        self.and(&word.0.to_ne_bytes())
    }

    pub(super) fn slot(self, slot: u16) -> Self {
        self.and(&u32::from(slot).to_ne_bytes())
    }

    pub(super) fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.and(&address.octets()),
            IpAddr::V6(address) => self.and(&address.octets()),
        }
    }

    pub(super) fn port(self, port: u16) -> Self {
        self.and(&port.to_be_bytes())
    }

    fn protocol(self, protocol: u8) -> Self {
        self.and(&[protocol])
    }
}

/// What an element leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Leads {
    #[default]
    Nowhere,
    To(Bytes),
    Goto(Box<Verdict>),
}

/// An element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) key: Bytes,
    pub(super) data: Leads,
    pub(super) comment: Option<Arc<str>>,
    pub(super) limit: u32,
    pub(super) timeout: Option<Duration>,
    pub(super) interval_end: bool,
}

impl Cell {
    pub(super) fn key(key: Bytes) -> Self {
        Self { key, ..Self::default() }
    }

    pub(super) fn pair(key: Bytes, data: Bytes) -> Self {
        Self { key, data: Leads::To(data), ..Self::default() }
    }

    /// To add it.
    pub(super) fn item(&self) -> Item<'_> {
        Item {
            key: self.key.as_slice(),
            interval_end: self.interval_end,
            data: match &self.data {
                Leads::Nowhere => Payload::None,
                Leads::To(data) => Payload::Bytes(data.as_slice()),
                Leads::Goto(verdict) => Payload::Verdict(verdict),
            },
            comment: self.comment.as_deref(),
            timeout: self.timeout,
            connections: (self.limit > 0).then_some(self.limit),
        }
    }

    /// To delete it.
    pub(super) fn key_item(&self) -> Item<'_> {
        Item { key: self.key.as_slice(), interval_end: self.interval_end, ..Item::default() }
    }

    /// What it takes in a message, about.
    pub(super) fn size(&self) -> usize {
        /// Headers of element, key, data and their values, and a connection limit.
        const HEADERS: usize = 64;
        let data = if let Leads::To(data) = &self.data { usize::from(data.length) } else { 32 };
        HEADERS + usize::from(self.key.length) + data + self.comment.as_ref().map_or(0, |comment| comment.len() + 8)
    }
}

/// A frontend's element.
pub(super) fn frontend(key: &FrontendKey, word: Word) -> Cell {
    let bytes = key.address().map_or(Bytes::default(), |address| Bytes::default().address(address));
    Cell::pair(bytes.protocol(key.protocol).port(key.port), Bytes::default().word(word))
}

/// The element that leads to a kind's chain.
pub(super) fn kind(number: u32, kind: Kind) -> Cell {
    let verdict = Box::new(Verdict::Goto(kind.to_string()));
    Cell { key: Bytes::default().word(Word(number)), data: Leads::Goto(verdict), ..Cell::default() }
}

/// Where endpoints answer.
pub(super) fn net(net: &Net) -> (SetName, Cell) {
    let key = Bytes::default().address(net.address).port(net.port);
    (SetName::EndpointNets(Family::of(net.address)), Cell::key(key))
}

/// An endpoint under its pool.
fn of_pool(pool: u32, endpoint: &EndpointKey) -> Cell {
    Cell::key(Bytes::default().word(Word::new(pool, 0)).address(endpoint.address).port(endpoint.port))
}

/// An endpoint whose flows are to end; `nft` shows when.
pub(super) fn ending(pool: u32, endpoint: &EndpointKey, end: Millis) -> (SetName, Cell) {
    let comment = Some(end.0.to_string().into());
    (SetName::Ending(endpoint.family()), Cell { comment, ..of_pool(pool, endpoint) })
}

/// One whose flows may go on for so long.
pub(super) fn grace(pool: u32, endpoint: &EndpointKey, timeout: Duration) -> (SetName, Cell) {
    (SetName::Grace(endpoint.family()), Cell { timeout: Some(timeout), ..of_pool(pool, endpoint) })
}

/// Numbers that are equal.
pub(super) fn equal() -> impl Iterator<Item = Cell> {
    (0..table::EQUAL).map(|number| Cell::key(Bytes::default().slot(number).slot(number)))
}

/// A source that may come.
pub(super) fn allowed(pool: u32, list: u8, source: &IpNet) -> (SetName, Cell) {
    let set = SetName::Allowed { family: Family::of_net(source), length: source.prefix_len() };
    let key = Bytes::default().word(Word::new(pool, u32::from(list))).address(source.network());
    (set, Cell::key(key))
}

/// The ends of ranges.
pub(super) fn range((first, last): (IpAddr, IpAddr)) -> impl Iterator<Item = Cell> {
    let end =
        ranges::after(last).map(|after| Cell { interval_end: true, ..Cell::key(Bytes::default().address(after)) });
    [Cell::key(Bytes::default().address(first))].into_iter().chain(end)
}

/// Every element of a pool that is its own.
pub(super) fn pool(id: u32, pool: &Pool, see: &mut impl FnMut(SetName, Cell)) {
    let own = Word::new(id, 0);
    if let Some(word) = pool.word {
        let comment = Some(Arc::clone(&pool.label));
        let word = Bytes::default().word(word);
        see(SetName::Pools, Cell { comment, ..Cell::pair(Bytes::default().word(own), word) });
        if let Some(all) = pool.outside_of {
            see(SetName::Outside, Cell::pair(Bytes::default().word(Word::new(all, 0)), word));
        }
    }
    for (slot, endpoint) in &pool.direct {
        let (content, data) = target(endpoint, Content::Endpoints, Content::Hosts);
        see(in_bank(id, endpoint, content), Cell::pair(Bytes::default().word(own).slot(*slot), data));
    }
    for Member { index, endpoint, limit } in &pool.members {
        let (content, data) = match limit {
            0 => target(endpoint, Content::Members, Content::MemberHosts),
            _ => target(endpoint, Content::Limited, Content::LimitedHosts),
        };
        let key = Bytes::default().word(Word::new(id, u32::from(*index)));
        see(in_bank(id, endpoint, content), Cell { limit: *limit, ..Cell::pair(key, data) });
    }
    // The slots are of the family of what they lead to.
    let family = pool.members.first().map_or(Family::V4, |member| member.endpoint.family());
    let slots = SetName::Bank { content: Content::Slots, family, bank: bank(id) };
    for (slot, index) in &pool.slots {
        let data = Bytes::default().word(Word::new(id, u32::from(*index)));
        see(slots, Cell::pair(Bytes::default().word(own).slot(*slot), data));
    }
    for endpoint in &pool.lingering {
        see(SetName::Lingering(endpoint.family()), of_pool(id, endpoint));
    }
}

fn in_bank(id: u32, endpoint: &EndpointKey, content: Content) -> SetName {
    SetName::Bank { content, family: endpoint.family(), bank: bank(id) }
}

fn target(endpoint: &EndpointKey, with_port: Content, host: Content) -> (Content, Bytes) {
    let address = Bytes::default().address(endpoint.address);
    if endpoint.port == 0 { (host, address) } else { (with_port, address.port(endpoint.port)) }
}

/// Takes fields off the front of a key or data.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let field = self.0.get(..N)?.try_into().ok()?;
        self.0 = self.0.get(N.next_multiple_of(4)..).unwrap_or_default();
        Some(field)
    }

    pub(super) fn word(&mut self) -> Option<Word> {
        self.take().map(u32::from_ne_bytes).map(Word)
    }

    pub(super) fn slot(&mut self) -> Option<u16> {
        self.take().map(u32::from_ne_bytes)?.try_into().ok()
    }

    pub(super) fn address(&mut self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.take::<4>().map(|bytes| Ipv4Addr::from(bytes).into()),
            Family::V6 => self.take::<16>().map(|bytes| Ipv6Addr::from(bytes).into()),
        }
    }

    pub(super) fn port(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub(super) fn frontend(&mut self, reach: Reach, family: Family) -> Option<FrontendKey> {
        let place = match reach {
            Reach::Vip => FrontendPlace::Vip(self.address(family)?),
            Reach::At => FrontendPlace::At(self.address(family)?),
            Reach::Node => FrontendPlace::Node(family),
        };
        let [protocol] = self.take::<1>()?;
        Some(FrontendKey { place, protocol, port: self.port()? })
    }
}
