//! From a selected service to its objects and to the guard's entries. Pure.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use vipd_engine::guard::Spot;
use vipd_engine::{Assignments, GuardEntry, Node, Objects, RenderError};
use vipd_model::{
    At, Family, Frontend, FrontendSelection, NoEndpoints, Place, PortRange, Problem, ProblemCode, Protocol, Selected,
    Serve,
};

use crate::filter::FILTER_NETWORKS_MAX;
use crate::objects::{Admission, Door, Key, Value};
use crate::sources::Sources;

/// Sockets for one range: where each port needs its own (UDP, and everything without a guard) a range is at most so
/// long.
pub const RANGE_PORTS_MAX: u16 = 256;

/// The pool of proxy ports in [`Assignments`]; the names are those of doors.
pub const PORTS: &str = "proxy port";

/// How traffic comes to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A guard redirects it to proxy ports, drops what must not come in, and refuses.
    Captured,
    /// Nobody does: the proxy listens on the frontends' own addresses.
    Direct,
}

/// The node's own objects.
pub(crate) fn render_node(way: Way, families: &[Family], node: &Node) -> Objects<Key, Value> {
    let sources = Sources { network: node.network.clone(), addresses: node.addresses.clone() };
    let mut objects = Objects::from([(Key::Sources, Value::Sources(Arc::new(sources)))]);
    if way == Way::Captured {
        let doors = families.iter().map(|family| Key::Door(Door::Captured(*family)));
        objects.extend(doors.map(|door| (door, Value::Door(Admission::Everybody))));
    }
    objects
}

/// One service's objects.
pub(crate) fn render(way: Way, node: &Node, selected: &Selected) -> Result<Objects<Key, Value>, RenderError> {
    let key = Key::Service(selected.service.key.clone());
    let mut objects = Objects::from([(key, Value::Service(Arc::new(selected.clone())))]);
    for (selection, frontend) in frontends(selected) {
        let protocol = selected.service.definition.protocol;
        match way {
            Way::Captured if protocol == Protocol::Udp && !is_refused(selection) => {
                let place = place(frontend, selection.family);
                for port in ports(frontend, selection)? {
                    objects.insert(Key::Door(Door::CapturedUdp(place, port)), Value::Door(Admission::Everybody));
                }
            }
            Way::Captured => {}
            Way::Direct => direct_doors(node, protocol, frontend, selection, &mut objects)?,
        }
    }
    Ok(objects)
}

/// Without a guard: a socket wherever clients may come in. Where all are rejected there is none, and the kernel rejects;
/// where some meet silence its filter drops what they send.
fn direct_doors(
    node: &Node,
    protocol: Protocol,
    frontend: &Frontend,
    selection: &FrontendSelection,
    objects: &mut Objects<Key, Value>,
) -> Result<(), RenderError> {
    let admission = match admitted(node, frontend, selection) {
        None if is_refused(selection) => return Ok(()),
        None => Admission::Everybody,
        Some(sources) if sources.len() > FILTER_NETWORKS_MAX => {
            let message = format!(
                "{} source networks; without CAP_NET_ADMIN the userspace engine can check {FILTER_NETWORKS_MAX} at one \
                 frontend: join some, or run vipd with the capability",
                sources.len()
            );
            return Err(limit(selection, "source_ranges", message));
        }
        Some(sources) => Admission::Only(sources.into()),
    };
    let addresses: Vec<IpAddr> = match &frontend.at {
        At::Address(address) => vec![*address],
        At::NodePort(at) => node.node_port_addresses(at, selection.family).collect(),
    };
    for port in ports(frontend, selection)? {
        for address in &addresses {
            let at = SocketAddr::new(*address, port);
            let door = if protocol == Protocol::Udp { Door::Udp(at) } else { Door::Tcp(at) };
            objects.insert(Key::Door(door), Value::Door(admission.clone()));
        }
    }
    Ok(())
}

/// What the guard must do for a service. A frontend whose proxy port is not known yet has no entry to capture it.
pub(crate) fn guard(node: &Node, selected: &Selected, numbers: &Assignments) -> Vec<GuardEntry> {
    let mut entries = Vec::new();
    for (selection, frontend) in frontends(selected) {
        let protocol = selected.service.definition.protocol;
        let spot = |ports| Spot { place: guard_place(node, frontend, selection.family), protocol, ports };
        if let Some(sources) = admitted(node, frontend, selection) {
            entries.push(GuardEntry::Allow { spot: spot(frontend.ports), sources });
        }
        let number = |door: Door| numbers.get(PORTS, &door.to_string()).and_then(|port| u16::try_from(port).ok());
        match (selection.inside, selection.outside) {
            (Serve::Refuse(how), Serve::Refuse(_)) => {
                entries.push(GuardEntry::Refuse { spot: spot(frontend.ports), how });
            }
            _ if protocol == Protocol::Udp => {
                let place = place(frontend, selection.family);
                let ports = (frontend.ports.first..=frontend.ports.last).take(RANGE_PORTS_MAX.into());
                entries.extend(ports.filter_map(|port| {
                    let spot = spot(PortRange::one(port));
                    number(Door::CapturedUdp(place, port)).map(|port| GuardEntry::Capture { spot, port })
                }));
            }
            _ => {
                let port = number(Door::Captured(selection.family));
                entries.extend(port.map(|port| GuardEntry::Capture { spot: spot(frontend.ports), port }));
            }
        }
    }
    entries.sort();
    entries
}

/// Which sources come in at all; absent: everybody. Beside the frontend's source ranges: where outsiders meet silence and
/// the rest is served, only what is inside.
fn admitted(node: &Node, frontend: &Frontend, selection: &FrontendSelection) -> Option<Vec<IpNet>> {
    let ranges = || frontend.source_ranges.iter().copied().filter(|net| Family::of_net(net) == selection.family);
    let inside_only = matches!(selection.outside, Serve::Refuse(NoEndpoints::Drop));
    let mut sources: Vec<IpNet> = match (inside_only, matches!(selection.inside, Serve::Refuse(NoEndpoints::Drop))) {
        (true, true) => Vec::new(),
        (true, false) if frontend.source_ranges.is_empty() => inside(node, selection.family),
        (true, false) => {
            let inside = inside(node, selection.family);
            ranges().flat_map(|range| inside.iter().filter_map(move |net| overlap(range, *net))).collect()
        }
        (false, _) if frontend.source_ranges.is_empty() => return None,
        (false, _) => ranges().collect(),
    };
    sources.sort();
    sources.dedup();
    Some(sources)
}

/// The networks and addresses that are inside.
fn inside(node: &Node, family: Family) -> Vec<IpNet> {
    let addresses = node.addresses.iter().copied().map(IpNet::from);
    let loopback: [u8; 4] = [127, 0, 0, 0];
    let loopback = IpNet::new(IpAddr::from(loopback), 8).ok();
    let nets = addresses.chain(node.network.local_sources.iter().copied()).chain(loopback);
    nets.filter(|net| Family::of_net(net) == family).collect()
}

fn overlap(a: IpNet, b: IpNet) -> Option<IpNet> {
    if a.contains(&b) {
        Some(b)
    } else if b.contains(&a) {
        Some(a)
    } else {
        None
    }
}

fn frontends(selected: &Selected) -> impl Iterator<Item = (&FrontendSelection, &Frontend)> {
    let frontends = &selected.service.definition.frontends;
    selected.frontends.iter().filter_map(|selection| Some((selection, frontends.get(selection.index as usize)?)))
}

fn is_refused(selection: &FrontendSelection) -> bool {
    matches!((selection.inside, selection.outside), (Serve::Refuse(_), Serve::Refuse(_)))
}

fn place(frontend: &Frontend, family: Family) -> Place {
    match &frontend.at {
        At::Address(address) => Place::Address(*address),
        At::NodePort(_) => Place::Node(family),
    }
}

fn guard_place(node: &Node, frontend: &Frontend, family: Family) -> vipd_engine::Place {
    match &frontend.at {
        At::Address(address) => vipd_engine::Place::Vip(*address),
        At::NodePort(at) => {
            // Every local address, new ones too, where nothing selects among them.
            let all = node.node_port_selectors(at).is_empty();
            let addresses = if all { Vec::new() } else { node.node_port_addresses(at, family).collect() };
            vipd_engine::Place::Node { family, addresses }
        }
    }
}

/// The ports of a frontend that each need a socket.
fn ports(frontend: &Frontend, selection: &FrontendSelection) -> Result<impl Iterator<Item = u16>, RenderError> {
    let PortRange { first, last } = frontend.ports;
    if last - first >= RANGE_PORTS_MAX {
        let message = format!(
            "ports {first}-{last}: the userspace engine needs a socket for each of them here and opens at most \
             {RANGE_PORTS_MAX} for one frontend: shorten the range, or choose another engine"
        );
        return Err(limit(selection, "port_end", message));
    }
    Ok(first..=last)
}

fn limit(selection: &FrontendSelection, field: &str, message: String) -> RenderError {
    let field = format!("frontends[{}].{field}", selection.index);
    RenderError { problem: Problem::new(ProblemCode::Limit, field, message) }
}
