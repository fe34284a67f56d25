//! From the node and from a service's guard entries to objects. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use vipd_engine::{GuardEntry, GuardInput, Node, Objects, Place, RenderError, guard::Spot};
use vipd_model::{Family, Problem, ProblemCode, service::NoEndpoints};
use vipd_netlink::nft::TableFlags;

use super::{
    element::ElementKey,
    names::{ChainName, Prefix, Reach, Role, SetName, TableName},
    object::{Key, Value},
    table,
};

/// A port range is one element for each of its ports (and for each of its source prefixes, where it has some): hashes
/// stay fast, and a range that moves never overlaps itself. So many of one service are refused by name.
pub const MAX_ELEMENTS: usize = 1 << 17;

/// The layout, and what the node refuses.
pub(crate) fn node(node: &Node, flags: TableFlags) -> Objects<Key, Value> {
    let mut objects = Objects::new();
    for table in TableName::ALL {
        objects.insert(Key::table(table), Value::Table(flags));
    }
    for set in SetName::constant() {
        objects.insert(Key::set(set), Value::Set(table::set(set)));
    }
    for chain in ChainName::all() {
        let rules = table::rules(chain, node.invalid_packets);
        objects.insert(Key::chain(chain), Value::Chain { hook: table::hook(chain), rules });
    }
    for range in &node.network.virtual_ranges {
        let prefix = Prefix::Virtual { family: Family::of_net(range), length: range.prefix_len() };
        let key = ElementKey { address: Some(range.network()), ..ElementKey::default() };
        insert_prefix(&mut objects, prefix, key);
    }
    objects
}

/// The objects of one service.
pub(crate) fn service(input: &GuardInput) -> Result<Objects<Key, Value>, RenderError> {
    let elements: usize = input.entries.iter().map(element_count).sum();
    if elements > MAX_ELEMENTS {
        return Err(too_many(elements));
    }
    let mut objects = Objects::new();
    for entry in &input.entries {
        match entry {
            GuardEntry::Capture { spot, port } => {
                insert_spot(&mut objects, spot, Role::Capture, &Value::Port(*port));
                let proxy = ElementKey { port: Some((spot.protocol.number(), *port)), ..ElementKey::default() };
                objects.insert(Key::element(SetName::ProxyPorts, proxy), Value::Present);
            }
            GuardEntry::Refuse { spot, how: NoEndpoints::Reject } => {
                insert_spot(&mut objects, spot, Role::Reject, &Value::Present);
            }
            GuardEntry::Refuse { spot, how: NoEndpoints::Drop } => {
                insert_spot(&mut objects, spot, Role::Drop, &Value::Present);
            }
            GuardEntry::Allow { spot, sources } => {
                insert_spot(&mut objects, spot, Role::Ranged, &Value::Present);
                // A source of the other family can never come here.
                let sources = sources.iter().filter(|source| Family::of_net(source) == spot.place.family());
                sources.for_each(|source| insert_source(&mut objects, spot, source));
            }
        }
    }
    Ok(objects)
}

fn insert_spot(objects: &mut Objects<Key, Value>, spot: &Spot, role: Role, value: &Value) {
    let (reach, family) = (reach(spot), spot.place.family());
    for key in keys(spot) {
        objects.insert(Key::element(SetName::Spots { role, reach, family }, key), value.clone());
    }
}

fn insert_source(objects: &mut Objects<Key, Value>, spot: &Spot, source: &IpNet) {
    let (reach, family) = (reach(spot), spot.place.family());
    let prefix = Prefix::Allow { reach, family, length: source.prefix_len() };
    for key in keys(spot) {
        insert_prefix(objects, prefix, ElementKey { source: Some(source.network()), ..key });
    }
}

fn insert_prefix(objects: &mut Objects<Key, Value>, prefix: Prefix, key: ElementKey) {
    let set = SetName::Prefix(prefix);
    objects.entry(Key::set(set)).or_insert_with(|| Value::Set(table::set(set)));
    objects.entry(Key::prefix(prefix)).or_insert_with(|| Value::Rule(table::prefix_rule(prefix)));
    objects.insert(Key::element(set, key), Value::Present);
}

/// A place with addresses is found by them, whether it is a VIP or some of the node's own.
fn reach(spot: &Spot) -> Reach {
    match &spot.place {
        Place::Node { addresses, .. } if addresses.is_empty() => Reach::Node,
        Place::Node { .. } | Place::Vip(_) => Reach::Address,
    }
}

/// Every key of a frontend: one for each port, and for each address where it is found by address.
fn keys(spot: &Spot) -> impl Iterator<Item = ElementKey> {
    let protocol = spot.protocol.number();
    let addresses: Vec<Option<IpAddr>> = match &spot.place {
        Place::Vip(address) => vec![Some(*address)],
        Place::Node { addresses, .. } if addresses.is_empty() => vec![None],
        Place::Node { addresses, .. } => addresses.iter().copied().map(Some).collect(),
    };
    let ports = spot.ports.first..=spot.ports.last;
    addresses.into_iter().flat_map(move |address| {
        ports.clone().map(move |port| ElementKey { address, port: Some((protocol, port)), source: None })
    })
}

fn element_count(entry: &GuardEntry) -> usize {
    let spot = entry.spot();
    let addresses = match &spot.place {
        Place::Node { addresses, .. } => addresses.len().max(1),
        Place::Vip(_) => 1,
    };
    let sources = match entry {
        GuardEntry::Allow { sources, .. } => sources.len() + 1,
        GuardEntry::Capture { .. } | GuardEntry::Refuse { .. } => 1,
    };
    (usize::from(spot.ports.last - spot.ports.first) + 1).saturating_mul(addresses).saturating_mul(sources)
}

fn too_many(elements: usize) -> RenderError {
    let message = format!(
        "its port ranges and source ranges need {elements} entries in the guard, more than {MAX_ELEMENTS}: use narrower \
         port ranges or fewer source ranges"
    );
    RenderError { problem: Problem::new(ProblemCode::Limit, "frontends", message) }
}

#[cfg(test)]
mod tests;
