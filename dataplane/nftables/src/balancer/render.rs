//! From the node and from a selected service to objects. Pure but for the numbers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;
use vipd_engine::{Assignments, Node, Objects, RenderError};
use vipd_model::{
    Algorithm, At, Drain, Endpoint, EndpointKey, EndpointSet, EndpointState, Family, Frontend, OnExpiry, Policy,
    Problem, ProblemCode, Protocol, Scope, Selected, SourceNat, frontend::NodePort, select::policy_for,
    service::NoEndpoints,
};
use vipd_netlink::nft::TableFlags;

use super::{
    arrange,
    kind::{Affinity, Kind, Pick, Way},
    label::{self, label},
    names::{ChainName, Content, Reach, SetName, bank},
    object::{ChainValue, FrontendKey, FrontendPlace, Key, Value},
    pool::{Member, Pool, Spot},
    ranges, table,
    word::{self, MAX_LISTS, MAX_MEMBERS, MAX_POOLS, Word},
};

/// Ids of pools.
pub(super) const POOLS: &str = "nftables pools";
/// Numbers of kinds, by their chains' names.
pub(super) const KINDS: &str = "nftables kinds";
/// Pools that are served in turn.
pub(super) const TURNS: &str = "nftables turns";

/// A chain for each, and the kernel's time for one more grows with them: 0.7 ms at 1,000, 14 ms at 10,000.
pub const MAX_TURNS: u32 = 1000;
/// A port range is one element for each of its ports and places; so many of one service are refused by name.
pub const MAX_ELEMENTS: usize = 1 << 17;

/// The layout, and what the node is.
pub(super) fn node(node: &Node, flags: TableFlags) -> Objects<Key, Value> {
    let mut objects = Objects::from([(Key::Table, Value::Table(flags))]);
    objects.extend(SetName::constant().map(|set| (Key::Set(set), Value::AsNamed)));
    for chain in ChainName::CONSTANT {
        let value = if table::is_of_node(chain) {
            Value::Chain(Arc::new(ChainValue { hook: table::hook(chain), rules: table::rules(chain, node) }))
        } else {
            Value::AsNamed
        };
        objects.insert(Key::Chain(chain), value);
    }
    objects.extend(node.addresses.iter().map(|address| (Key::NodeAddress(*address), Value::AsNamed)));
    for family in Family::ALL {
        let ranges = ranges::merged(node.network.local_sources.iter().filter(|net| Family::of_net(net) == family));
        if !ranges.is_empty() {
            objects.insert(Key::Inside(family), Value::Ranges(ranges.into()));
        }
    }
    objects
}

/// The objects of one service.
pub(super) fn service(
    node: &Node,
    selected: &Selected,
    numbers: &mut Assignments,
) -> Result<Objects<Key, Value>, RenderError> {
    let mut rendering = Rendering { node, selected, numbers, objects: Objects::new() };
    let used: Vec<(&Frontend, Family)> = rendering.frontends().collect();
    rendering.check_size(&used)?;
    for family in Family::ALL {
        let of_family: Vec<&Frontend> =
            used.iter().filter(|(_, f)| *f == family).map(|(frontend, _)| *frontend).collect();
        if !of_family.is_empty() {
            rendering.family(family, &of_family)?;
        }
    }
    Ok(rendering.objects)
}

/// A service on its way to objects.
struct Rendering<'a> {
    node: &'a Node,
    selected: &'a Selected,
    numbers: &'a mut Assignments,
    objects: Objects<Key, Value>,
}

/// EXTERNAL + LOCAL: those inside get another pool than those outside.
fn is_split(frontend: &Frontend) -> bool {
    (frontend.scope, frontend.policy) == (Scope::External, Policy::Local)
}

impl<'a> Rendering<'a> {
    fn frontends(&self) -> impl Iterator<Item = (&'a Frontend, Family)> + use<'a> {
        let selected = self.selected;
        let frontends = &selected.service.definition.frontends;
        selected.frontends.iter().filter_map(|held| Some((frontends.get(held.index as usize)?, held.family)))
    }

    fn check_size(&self, used: &[(&Frontend, Family)]) -> Result<(), RenderError> {
        let ports = |frontend: &Frontend| usize::from(frontend.ports.last - frontend.ports.first) + 1;
        let elements: usize =
            used.iter().map(|(f, family)| ports(f).saturating_mul(self.places(f, *family).len())).sum();
        if elements > MAX_ELEMENTS {
            let message = format!(
                "its port ranges need {elements} entries in the kernel, more than {MAX_ELEMENTS}: use narrower port ranges"
            );
            return Err(RenderError { problem: Problem::new(ProblemCode::Limit, "frontends", message) });
        }
        Ok(())
    }

    /// Pools of a family, and the frontends that lead to them.
    fn family(&mut self, family: Family, frontends: &[&'a Frontend]) -> Result<(), RenderError> {
        let policy = |frontend: &&Frontend, inside| policy_for(frontend, inside);
        let all = frontends.iter().any(|f| policy(f, true) == Policy::All || policy(f, false) == Policy::All);
        let local = frontends.iter().any(|f| policy(f, true) == Policy::Local || policy(f, false) == Policy::Local);
        let split = frontends.iter().any(|f| is_split(f));
        let all = if all { Some(self.id(family, Policy::All)?) } else { None };
        let local = if local { Some(self.id(family, Policy::Local)?) } else { None };
        for (id, policy) in [(all, Policy::All), (local, Policy::Local)] {
            let Some(id) = id else { continue };
            let outside_of = all.filter(|_| split && policy == Policy::Local);
            let leads_here = |f: &&&Frontend| policy_for(f, true) == policy || policy_for(f, false) == policy;
            let spots = frontends.iter().filter(leads_here).flat_map(|frontend| self.spots(frontend, family)).collect();
            self.pool(id, family, policy, outside_of, spots)?;
        }
        let lists = self.lists(family, frontends)?;
        for frontend in frontends {
            let Some(id) = (if policy(frontend, true) == Policy::All { all } else { local }) else { continue };
            let list = lists.get(&frontend.source_ranges[..]).copied().unwrap_or(0);
            let word = Word::new(id, flags(frontend) | list);
            if list > 0 {
                self.allowed(id, list, family, &frontend.source_ranges);
            }
            for place in self.places(frontend, family) {
                for port in frontend.ports.first..=frontend.ports.last {
                    let protocol = self.selected.service.definition.protocol.number();
                    self.objects.insert(Key::Frontend(FrontendKey { place, protocol, port }), Value::Word(word));
                }
            }
        }
        Ok(())
    }

    fn id(&mut self, family: Family, policy: Policy) -> Result<u32, RenderError> {
        let label = label(&self.selected.service.key, family, policy);
        let id = self.numbers.assign(POOLS, &label, 1);
        if id < MAX_POOLS {
            return Ok(id);
        }
        self.numbers.release(POOLS, &label);
        let message = format!("the nftables engine serves at most {MAX_POOLS} sets of endpoints, and has them all");
        Err(RenderError { problem: Problem::new(ProblemCode::Limit, "", message) })
    }

    fn places(&self, frontend: &Frontend, family: Family) -> Vec<FrontendPlace> {
        match &frontend.at {
            At::Address(address) => vec![FrontendPlace::Vip(*address)],
            At::NodePort(at) => self.node_port_places(at, family),
        }
    }

    /// On loopback the userspace engine serves node ports.
    fn node_port_places(&self, at: &NodePort, family: Family) -> Vec<FrontendPlace> {
        if self.node.node_port_selectors(at).is_empty() {
            return vec![FrontendPlace::Node(family)];
        }
        let addresses = self.node.node_port_addresses(at, family).filter(|address| !address.is_loopback());
        addresses.map(FrontendPlace::At).collect()
    }

    /// Only of UDP: other flows are never forgotten.
    fn spots(&self, frontend: &Frontend, family: Family) -> Vec<Spot> {
        if self.selected.service.definition.protocol != Protocol::Udp {
            return Vec::new();
        }
        let spot = |place| {
            let (reach, address) = match place {
                FrontendPlace::Vip(address) => (Reach::Vip, Some(address)),
                FrontendPlace::At(address) => (Reach::At, Some(address)),
                FrontendPlace::Node(_) => (Reach::Node, None),
            };
            Spot { reach, address, ports: frontend.ports }
        };
        self.places(frontend, family).into_iter().map(spot).collect()
    }

    /// A number for each different list of sources, made from its contents alone, so that it stays while others come and
    /// go.
    fn lists(&self, family: Family, frontends: &[&'a Frontend]) -> Result<BTreeMap<&'a [IpNet], u32>, RenderError> {
        let ranged = frontends.iter().filter(|frontend| !frontend.source_ranges.is_empty());
        let mut lists: BTreeMap<&[IpNet], u32> = ranged.map(|frontend| (&frontend.source_ranges[..], 0)).collect();
        if lists.len() > MAX_LISTS as usize {
            let message = format!(
                "has {} different lists of source ranges in {family:?}, and the nftables engine knows {MAX_LISTS} for one \
                 service: let frontends share lists",
                lists.len()
            );
            return Err(RenderError { problem: Problem::new(ProblemCode::Limit, "frontends", message) });
        }
        let mut taken = 0u32;
        for (sources, number) in &mut lists {
            let bytes = sources.iter().flat_map(|net| net.to_string().into_bytes());
            let mut at = (arrange::fnv(bytes) % u64::from(MAX_LISTS)) as u32;
            while taken & 1 << at != 0 {
                at = (at + 1) % MAX_LISTS;
            }
            taken |= 1 << at;
            *number = at + 1;
        }
        Ok(lists)
    }

    /// A source of the other family can never come here; a list without any of this one lets nobody in.
    fn allowed(&mut self, pool: u32, list: u32, family: Family, sources: &[IpNet]) {
        let sources: Arc<[IpNet]> = sources
            .iter()
            .filter(|net| Family::of_net(net) == family)
            .map(IpNet::trunc)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        for source in sources.iter() {
            let length = source.prefix_len();
            self.objects.insert(Key::Set(SetName::Allowed { family, length }), Value::AsNamed);
            self.objects.insert(Key::Prefix { family, length }, Value::AsNamed);
        }
        if !sources.is_empty() {
            self.objects.insert(Key::Allowed { pool, list: list as u8 }, Value::Sources(sources));
        }
    }

    fn pool(
        &mut self,
        id: u32,
        family: Family,
        policy: Policy,
        outside_of: Option<u32>,
        spots: Box<[Spot]>,
    ) -> Result<(), RenderError> {
        let (selected, definition) = (self.selected, &self.selected.service.definition);
        let [all, set] = match policy {
            Policy::All => [&selected.all[family as usize]; 2],
            Policy::Local => [&selected.all[family as usize], &selected.local[family as usize]],
        };
        let label: Arc<str> = label::label(&selected.service.key, family, policy).into();
        let mut pool = Pool { label, outside_of, spots, ..Pool::default() };
        if definition.protocol == Protocol::Udp {
            pool.lingering = self.lingering(family, set);
        }
        let how = if all.members.is_empty() { definition.on_no_endpoints } else { definition.on_no_local_endpoints };
        let kind = if set.members.is_empty() {
            match how {
                NoEndpoints::Reject => table::REJECTED,
                NoEndpoints::Drop => table::DROPPED,
            }
        } else {
            let kind = self.fill(&mut pool, id, family, set)?;
            self.kind(kind)?
        };
        pool.word = Some(Word::new(id, kind));
        self.objects.insert(Key::Pool(id), Value::Pool(Arc::new(pool)));
        self.ends(id, family, set);
        Ok(())
    }

    /// Endpoints whose flows are reset when their drain is over; none that takes new flows.
    fn ends(&mut self, pool: u32, family: Family, set: &EndpointSet) {
        let service = &self.selected.service;
        let resets = |drain: Drain| drain.on_expiry == OnExpiry::Reset;
        let outside = (0u32..).zip(service.endpoints.iter()).filter(|(n, _)| set.members.binary_search(n).is_err());
        let leaving = outside
            .filter(|(_, endpoint)| resets(service.drain_of(endpoint)))
            .filter_map(|(_, endpoint)| Some((endpoint.key, service.drain_deadline(endpoint)?)));
        let gone = service.leaving.iter().filter(|leaving| resets(leaving.drain));
        let gone = gone.filter_map(|leaving| Some((leaving.key, leaving.drain.deadline(leaving.since)?)));
        let ends: Vec<_> = leaving.chain(gone).filter(|(endpoint, _)| endpoint.family() == family).collect();
        if ends.is_empty() || service.definition.protocol != Protocol::Tcp {
            return;
        }
        for family in Family::ALL {
            let sets = [SetName::Ending(family), SetName::Grace(family)];
            self.objects.extend(sets.map(|set| (Key::Set(set), Value::AsNamed)));
        }
        self.objects.extend(ChainName::OF_DRAIN.map(|chain| (Key::Chain(chain), Value::AsNamed)));
        self.objects
            .extend(ends.into_iter().map(|(endpoint, end)| (Key::Ending { pool, endpoint }, Value::Until(end))));
    }

    /// Endpoints that take no new flows, or not here, and whose UDP flows stay.
    fn lingering(&self, family: Family, set: &EndpointSet) -> Box<[EndpointKey]> {
        let endpoints = (0u32..).zip(self.selected.service.endpoints.iter());
        let of_family = endpoints.filter(|(_, endpoint)| endpoint.key.family() == family);
        let outside = of_family.filter(|(index, _)| set.members.binary_search(index).is_err());
        outside.filter(|(_, e)| e.state != EndpointState::NotReady).map(|(_, endpoint)| endpoint.key).collect()
    }

    fn fill(&mut self, pool: &mut Pool, id: u32, family: Family, set: &EndpointSet) -> Result<Kind, RenderError> {
        let service = &self.selected.service;
        let endpoints: Vec<&Endpoint> =
            set.members.iter().filter_map(|&index| service.endpoints.get(index as usize)).collect();
        if endpoints.len() > MAX_MEMBERS {
            let message = format!(
                "has {} endpoints that may be chosen, and the nftables engine tells {MAX_MEMBERS} apart",
                endpoints.len()
            );
            return Err(RenderError { problem: Problem::new(ProblemCode::Limit, "endpoints", message) });
        }
        let slots = arrange::slots(self.selected.algorithm, &endpoints);
        let pick = match self.selected.algorithm {
            Algorithm::Rr | Algorithm::Wrr => self.turns(id)?,
            Algorithm::Sh | Algorithm::Mh => Pick::Hash { port: service.scheduler.hash_source_port },
            _ => Pick::Random,
        };
        let way = self.way(family, &endpoints);
        let number = |(slot, index): (usize, &usize)| (slot as u16, *index);
        if let Way::Indexed { .. } = way {
            let indices = arrange::indices(&endpoints);
            pool.slots = slots.iter().enumerate().map(number).map(|(slot, index)| (slot, indices[index])).collect();
            let member = |(endpoint, index): (&&Endpoint, &u16)| Member {
                index: *index,
                endpoint: endpoint.key,
                limit: endpoint.max_connections,
            };
            let mut members: Vec<_> = endpoints.iter().zip(&indices).map(member).collect();
            members.sort_unstable();
            pool.members = members.into();
        } else {
            pool.direct =
                slots.iter().enumerate().map(number).map(|(slot, index)| (slot, endpoints[index].key)).collect();
        }
        Ok(Kind { family, bank: bank(id), pick, slots: slots.len() as u16, way })
    }

    fn turns(&mut self, id: u32) -> Result<Pick, RenderError> {
        let name = id.to_string();
        let number = self.numbers.assign(TURNS, &name, 0);
        if number < MAX_TURNS {
            return Ok(Pick::Turns { pool: id });
        }
        self.numbers.release(TURNS, &name);
        let message = format!(
            "RR by nftables takes a chain for every service, and {MAX_TURNS} have one: more would slow every change; \
             RANDOM spreads as evenly, or name another engine"
        );
        Err(RenderError { problem: Problem::new(ProblemCode::Limit, "scheduler.algorithm", message) })
    }

    fn way(&self, family: Family, endpoints: &[&Endpoint]) -> Way {
        let affinity = self.selected.service.definition.client_affinity.map(|affinity| Affinity {
            milliseconds: u32::try_from(affinity.timeout.as_millis()).unwrap_or(u32::MAX),
            prefix: match family {
                Family::V4 => affinity.prefix_v4,
                Family::V6 => affinity.prefix_v6,
            },
        });
        let limited = endpoints.iter().any(|endpoint| endpoint.max_connections > 0);
        let hosts = endpoints.iter().filter(|endpoint| endpoint.key.port == 0).count();
        match hosts {
            _ if affinity.is_some() || limited => Way::Indexed { affinity, limited },
            0 => Way::Direct,
            all if all == endpoints.len() => Way::Hosts,
            _ => Way::Indexed { affinity, limited },
        }
    }

    /// What a kind needs, and its number.
    fn kind(&mut self, kind: Kind) -> Result<u32, RenderError> {
        let Kind { family, bank, way, .. } = kind;
        let mut add = |key| {
            self.objects.insert(key, Value::AsNamed);
        };
        let mut add_map = |content| add(Key::Set(SetName::Bank { content, family, bank }));
        match way {
            Way::Direct => add_map(Content::Endpoints),
            Way::Hosts => add_map(Content::Hosts),
            Way::Indexed { affinity, .. } => {
                add_map(Content::Slots);
                Content::INDEXED.into_iter().for_each(&mut add_map);
                add(Key::Chain(ChainName::Member { family, bank }));
                if let Some(affinity) = affinity {
                    add(Key::Set(SetName::Clients(family)));
                    add(Key::Chain(ChainName::Remember { affinity, family, bank }));
                    add(Key::Chain(ChainName::Keep { affinity, family, bank }));
                }
            }
        }
        let name = kind.to_string();
        let number = self.numbers.assign(KINDS, &name, table::FIRST_KIND);
        if number >= word::MAX_KINDS {
            self.numbers.release(KINDS, &name);
            let message = "the nftables engine has no number left for one more way to pick an endpoint";
            return Err(RenderError { problem: Problem::new(ProblemCode::Limit, "endpoints", message.to_owned()) });
        }
        self.objects.insert(kind.object(), Value::Kind(number));
        Ok(number)
    }
}

/// What the frontend's word says beside the pool.
fn flags(frontend: &Frontend) -> u32 {
    let split = if is_split(frontend) { word::SPLIT } else { 0 };
    let nat = match (frontend.source_nat, frontend.scope, frontend.policy) {
        (SourceNat::Always, ..) | (SourceNat::Auto, Scope::External, Policy::All) => word::NAT_ALWAYS,
        (SourceNat::Never, ..) => word::NAT_NEVER,
        (SourceNat::Auto, Scope::External, Policy::Local) => word::NAT_NODE,
        (SourceNat::Auto, Scope::Internal, _) => 0,
    };
    split | nat
}

#[cfg(test)]
mod tests;
