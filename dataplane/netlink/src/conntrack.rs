//! Conntrack entries: forget the UDP flows that a change has made stale, and list flows.
//!
//! Where the kernel can, it walks its table itself (`CTA_FILTER` on delete: ran on 6.18, refused by 6.1); else, and
//! for IPv6 always, the table is dumped, and what matches is deleted by its exact tuple. Every message carries a
//! tuple: a delete without one is a flush of the whole table, and this module cannot say that. Entries of other zones
//! are left alone.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    attr::{Attrs, Encoder},
    error::Error,
    message::{self, NFGENMSG},
    socket::{DumpStep, Family, Socket},
};

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET`
const GET: u16 = 0x101;
/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE`
const DELETE: u16 = 0x102;

/// `CTA_*`
mod attribute {
    pub(super) const TUPLE_ORIGINAL: u16 = 1;
    pub(super) const TUPLE_REPLY: u16 = 2;
    pub(super) const STATUS: u16 = 3;
    pub(super) const PROTOINFO: u16 = 4;
    pub(super) const ID: u16 = 12;
    pub(super) const ZONE: u16 = 18;
    pub(super) const FILTER: u16 = 25;
}

/// Which parts of a tuple a `CTA_FILTER` compares (`CTA_FILTER_F_CTA_*`).
mod compare {
    pub(super) const SOURCE: u32 = 1 << 0;
    pub(super) const DESTINATION: u32 = 1 << 1;
    pub(super) const PROTOCOL: u32 = 1 << 3;
    pub(super) const SOURCE_PORT: u32 = 1 << 4;
    pub(super) const DESTINATION_PORT: u32 = 1 << 5;
}

/// Above so many filters one walk of ours through the table costs less than a walk of the kernel's for each.
const FEW_FILTERS: usize = 8;
/// A walk that others' changes interrupted is repeated so often; what it found meanwhile is deleted all the same.
const WALKS: usize = 5;

/// IPv4 or IPv6, as conntrack keeps its entries apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::V4 => libc::AF_INET as u8,
            Self::V6 => libc::AF_INET6 as u8,
        }
    }
}

/// Which flows to forget: all of what is given must match.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FlowFilter {
    /// Family of both tuples.
    pub family: IpFamily,
    /// Layer 4 protocol number; 17 for UDP.
    pub protocol: u8,
    /// Address that the client sent to; absent: any.
    pub destination: Option<IpAddr>,
    /// Port that the client sent to.
    pub port: u16,
    /// Address and port of the answers' source: the endpoint, or the proxy's socket; absent: any.
    pub reply_source: Option<(IpAddr, u16)>,
}

impl FlowFilter {
    /// Whether this flow is one of them.
    #[must_use]
    pub fn matches(&self, flow: &Flow) -> bool {
        flow.original.protocol == self.protocol
            && flow.original.destination_port == self.port
            && self.family.number() == family_of(flow.original.destination).number()
            && self.destination.is_none_or(|address| address == flow.original.destination)
            && self.reply_source.is_none_or(|source| source == (flow.reply.source, flow.reply.source_port))
    }

    /// The kernel (6.18: `ctnetlink_filter_match_tuple`) inverts its comparison of IPv6 addresses: it would forget every
    /// flow *but* those asked for. Filters without an address are right.
    fn kernel_compares_it_right(&self) -> bool {
        self.family == IpFamily::V4 || (self.destination.is_none() && self.reply_source.is_none())
    }

    fn encode(&self, encoder: &mut Encoder) {
        let mut original = compare::PROTOCOL | compare::DESTINATION_PORT;
        encoder.nest(attribute::TUPLE_ORIGINAL, |tuple| {
            if let Some(address) = self.destination {
                original |= compare::DESTINATION;
                tuple.nest(1, |ip| encode_destination(ip, address));
            }
            tuple.nest(2, |proto| {
                proto.u8(1, self.protocol);
                proto.be16(3, self.port);
            });
        });
        let mut reply = 0;
        if let Some((address, port)) = self.reply_source {
            reply = compare::PROTOCOL | compare::SOURCE | compare::SOURCE_PORT;
            encoder.nest(attribute::TUPLE_REPLY, |tuple| {
                tuple.nest(1, |ip| encode_source(ip, address));
                tuple.nest(2, |proto| {
                    proto.u8(1, self.protocol);
                    proto.be16(2, port);
                });
            });
        }
        encoder.nest(attribute::FILTER, |filter| {
            filter.ne32(1, original);
            filter.ne32(2, reply);
        });
    }
}

/// One direction of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Layer 4 protocol number.
    pub protocol: u8,
    /// Sender.
    pub source: IpAddr,
    /// Receiver.
    pub destination: IpAddr,
    /// Sender's port; 0 where the protocol has none.
    pub source_port: u16,
    /// Receiver's port; 0 where the protocol has none.
    pub destination_port: u16,
}

impl Tuple {
    fn parse(attrs: Attrs<'_>) -> Option<Self> {
        let (ip, proto) = (attrs.nested(1)?, attrs.nested(2)?);
        let v4 = |kind| Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(ip.get(kind)?).ok()?)));
        let v6 = |kind| Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(ip.get(kind)?).ok()?)));
        Some(Self {
            protocol: proto.u8(1)?,
            source: v4(1).or_else(|| v6(3))?,
            destination: v4(2).or_else(|| v6(4))?,
            source_port: proto.be16(2).unwrap_or(0),
            destination_port: proto.be16(3).unwrap_or(0),
        })
    }

    fn encode(&self, encoder: &mut Encoder, kind: u16) {
        encoder.nest(kind, |tuple| {
            tuple.nest(1, |ip| {
                encode_source(ip, self.source);
                encode_destination(ip, self.destination);
            });
            tuple.nest(2, |proto| {
                proto.u8(1, self.protocol);
                proto.be16(2, self.source_port);
                proto.be16(3, self.destination_port);
            });
        });
    }
}

fn encode_source(ip: &mut Encoder, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => ip.bytes(1, &v4.octets()),
        IpAddr::V6(v6) => ip.bytes(3, &v6.octets()),
    }
}

fn encode_destination(ip: &mut Encoder, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => ip.bytes(2, &v4.octets()),
        IpAddr::V6(v6) => ip.bytes(4, &v6.octets()),
    }
}

fn family_of(address: IpAddr) -> IpFamily {
    if address.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 }
}

/// A tracked flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// As its first packet went.
    pub original: Tuple,
    /// As answers come: the source is who really answers.
    pub reply: Tuple,
    /// The kernel's number for the entry.
    pub id: Option<u32>,
    /// `enum tcp_conntrack` of a TCP flow.
    pub tcp_state: Option<u8>,
    /// The kernel does not drop it early when its table is full.
    pub assured: bool,
}

/// `TCP_CONNTRACK_ESTABLISHED` (nf_conntrack_tcp.h). Ended connections stay in the table for minutes.
const TCP_ESTABLISHED: u8 = 3;
/// `IPS_ASSURED`: traffic has gone both ways for a while; an answered question alone is not.
const ASSURED: u32 = 1 << 2;

impl Flow {
    /// Whether it still carries something: a TCP connection that neither side has ended, or a conversation of another
    /// protocol that has gone on for a while.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.tcp_state.map_or(self.assured, |state| state == TCP_ESTABLISHED)
    }
}

/// Reads a conntrack message behind its `nfgenmsg`; flows of other zones than the default one are none of ours.
#[must_use]
pub fn parse_flow(attrs: Attrs<'_>) -> Option<Flow> {
    if attrs.be16(attribute::ZONE).is_some_and(|zone| zone != 0) {
        return None;
    }
    Some(Flow {
        original: Tuple::parse(attrs.nested(attribute::TUPLE_ORIGINAL)?)?,
        reply: Tuple::parse(attrs.nested(attribute::TUPLE_REPLY)?)?,
        id: attrs.be32(attribute::ID),
        assured: attrs.be32(attribute::STATUS).is_some_and(|status| status & ASSURED != 0),
        // CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE
        tcp_state: attrs.nested(attribute::PROTOINFO).and_then(|info| info.nested(1)?.u8(1)),
    })
}

/// A conversation with connection tracking in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Conntrack {
    walk: Socket,
    kill: Socket,
    kernel_filters: bool,
}

impl Conntrack {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Socket`] if there is no netfilter netlink here.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            walk: Socket::open(Family::Netfilter)?,
            kill: Socket::open(Family::Netfilter)?,
            kernel_filters: true,
        })
    }

    /// Makes this conversation delete by dump and exact tuple only, as an older kernel makes it anyway.
    #[must_use]
    pub fn without_kernel_filters(mut self) -> Self {
        self.kernel_filters = false;
        self
    }

    /// Forgets every flow that matches at least one filter. One that is gone already is no error.
    ///
    /// # Errors
    /// As the kernel refuses; flows that were found before are gone then.
    pub fn delete(&mut self, filters: &[FlowFilter]) -> Result<(), Error> {
        let kernel_can = self.kernel_filters && filters.len() <= FEW_FILTERS;
        let (for_kernel, mut for_walk): (Vec<_>, Vec<_>) =
            filters.iter().partition(|filter| kernel_can && filter.kernel_compares_it_right());
        for filter in for_kernel {
            match self.delete_in_kernel(filter) {
                Ok(()) => {}
                Err(error) if error.is_unsupported() => {
                    self.kernel_filters = false;
                    for_walk.push(filter);
                }
                Err(error) => return Err(error),
            }
        }
        self.delete_by_walk(&for_walk)
    }

    fn delete_in_kernel(&mut self, filter: &FlowFilter) -> Result<(), Error> {
        let operation = format!("forget flows to port {} of protocol {}", filter.port, filter.protocol);
        let answer = self.kill.request(DELETE, 0, &operation, |m| {
            message::nfgenmsg(m, filter.family.number(), 0);
            filter.encode(m);
        });
        match answer {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }

    fn delete_by_walk(&mut self, filters: &[&FlowFilter]) -> Result<(), Error> {
        let mut by_port: HashMap<u16, Vec<&FlowFilter>> = HashMap::new();
        for &filter in filters {
            by_port.entry(filter.port).or_default().push(filter);
        }
        for family in [IpFamily::V4, IpFamily::V6] {
            if filters.iter().any(|filter| filter.family == family) {
                self.walk_and_delete(family, |flow| {
                    by_port
                        .get(&flow.original.destination_port)
                        .is_some_and(|some| some.iter().any(|f| f.matches(flow)))
                })?;
            }
        }
        Ok(())
    }

    fn walk_and_delete(&mut self, family: IpFamily, stale: impl Fn(&Flow) -> bool) -> Result<(), Error> {
        let Self { walk, kill, .. } = self;
        let operation = "walk the conntrack table";
        for _ in 0..WALKS {
            let mut failure = None;
            let step = walk.dump_once(
                GET,
                operation,
                |m| message::nfgenmsg(m, family.number(), 0),
                |m| {
                    let Some(flow) = parse_flow(m.attrs(NFGENMSG)).filter(&stale) else { return };
                    if let Err(error) = delete_exactly(kill, family, &flow) {
                        failure.get_or_insert(error);
                    }
                },
            );
            match (failure, step) {
                (Some(error), _) => return Err(error),
                (None, Ok(DumpStep::Continue)) => return Ok(()),
                (None, Ok(DumpStep::Interrupted) | Err(Error::AnswerLost { .. })) => {}
                (None, Err(error)) => return Err(error),
            }
        }
        Err(Error::Interrupted { operation: operation.into(), attempts: WALKS })
    }

    /// Forgets every flow of a family that `stale` says, in one walk.
    ///
    /// # Errors
    /// As the kernel refuses; flows that were found before are gone then.
    pub fn forget(&mut self, family: IpFamily, stale: impl Fn(&Flow) -> bool) -> Result<(), Error> {
        self.walk_and_delete(family, stale)
    }

    /// Looks at every flow of a family, in one walk. One that comes or goes meanwhile may be missed.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn visit(&mut self, family: IpFamily, mut see: impl FnMut(&Flow)) -> Result<(), Error> {
        let request = |m: &mut Encoder| message::nfgenmsg(m, family.number(), 0);
        let step = self.walk.dump_once(GET, "walk the conntrack table", request, |m| {
            if let Some(flow) = parse_flow(m.attrs(NFGENMSG)) {
                see(&flow);
            }
        });
        match step {
            Ok(_) | Err(Error::AnswerLost { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// All flows of a family.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn flows(&mut self, family: IpFamily) -> Result<Vec<Flow>, Error> {
        let request = |m: &mut Encoder| message::nfgenmsg(m, family.number(), 0);
        self.walk.dump(GET, "list the conntrack table", request, |flows: &mut Vec<Flow>, m| {
            flows.extend(parse_flow(m.attrs(NFGENMSG)));
        })
    }
}

fn delete_exactly(kill: &mut Socket, family: IpFamily, flow: &Flow) -> Result<(), Error> {
    let answer = kill.request(DELETE, 0, "forget a flow", |m| {
        message::nfgenmsg(m, family.number(), 0);
        flow.original.encode(m, attribute::TUPLE_ORIGINAL);
        if let Some(id) = flow.id {
            m.be32(attribute::ID, id);
        }
    });
    match answer {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
