//! The listeners of health ports, one set of addresses for each port that a service in force names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::net::{TcpListener, TcpSocket};
use tokio::task::AbortHandle;
use vipd_engine::Node;
use vipd_model::{At, Family, Problem, ProblemCode, Service, ServiceKey};

use super::answer::{Group, answer};
use crate::http;
use crate::reconcile::Core;

/// Requests wait here until they are accepted.
const BACKLOG: u32 = 128;

/// Every health port of the node.
pub struct HealthPorts {
    core: Arc<RwLock<Core>>,
    ports: BTreeMap<u16, Port>,
    by_service: HashMap<ServiceKey, u16>,
    failed: BTreeSet<ServiceKey>,
}

struct Port {
    group: Group,
    /// Those that name it; shared with the answers.
    services: Arc<RwLock<BTreeSet<ServiceKey>>>,
    listening: BTreeMap<IpAddr, AbortHandle>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.listening.values().for_each(AbortHandle::abort);
    }
}

impl HealthPorts {
    /// None yet. `core` is what the answers are made of.
    #[must_use]
    pub fn new(core: Arc<RwLock<Core>>) -> Self {
        Self { core, ports: BTreeMap::new(), by_service: HashMap::new(), failed: BTreeSet::new() }
    }

    /// A service came into force like this, or is gone: opens and closes what follows from it. Must be called in the
    /// control runtime; does not block.
    ///
    /// # Errors
    /// ADDRESS_IN_USE, for the service's status.
    pub fn update(&mut self, key: &ServiceKey, service: Option<&Service>, node: &Node) -> Result<(), Problem> {
        let wanted = service.map(|service| service.definition.health_port).filter(|port| *port != 0);
        if let Some(before) = self.by_service.get(key).copied()
            && wanted != Some(before)
        {
            self.leave(key, before);
        }
        let outcome = match (wanted, service) {
            (Some(port), Some(service)) => self.join(key, port, service, node),
            _ => Ok(()),
        };
        match outcome {
            Ok(()) => drop(self.failed.remove(key)),
            Err(_) => drop(self.failed.insert(key.clone())),
        }
        outcome
    }

    /// Services whose health port could not be opened.
    #[must_use]
    pub fn failed(&self) -> Vec<ServiceKey> {
        self.failed.iter().cloned().collect()
    }

    fn leave(&mut self, key: &ServiceKey, port: u16) {
        self.by_service.remove(key);
        let Some(open) = self.ports.get(&port) else { return };
        let mut services = open.services.write().unwrap_or_else(PoisonError::into_inner);
        services.remove(key);
        let empty = services.is_empty();
        drop(services);
        if empty {
            self.ports.remove(&port);
        }
    }

    fn join(&mut self, key: &ServiceKey, number: u16, service: &Service, node: &Node) -> Result<(), Problem> {
        let group = group(service);
        let port = self.ports.entry(number).or_insert_with(|| Port {
            group: group.clone(),
            services: Arc::default(),
            listening: BTreeMap::new(),
        });
        if port.group != group {
            let holder = format!("group {} of owner {}", port.group.name, port.group.owner);
            return Err(in_use(number, &format!("{holder} answers there; services of one group may share a port")));
        }
        port.services.write().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        self.by_service.insert(key.clone(), number);
        let wanted = addresses(service, node);
        port.listening.retain(|address, task| {
            let stays = wanted.contains(address);
            if !stays {
                task.abort();
            }
            stays
        });
        for address in wanted {
            if port.listening.contains_key(&address) {
                continue;
            }
            let listener =
                listen(SocketAddr::new(address, number)).map_err(|error| in_use(number, &error.to_string()))?;
            port.listening.insert(address, serve(listener, port, &self.core));
        }
        Ok(())
    }
}

fn in_use(port: u16, why: &str) -> Problem {
    let text = format!("health port {port} does not answer: {why}; it is tried again");
    Problem::new(ProblemCode::AddressInUse, "service.health_port", text)
}

fn group(service: &Service) -> Group {
    let named = !service.definition.group.is_empty();
    let name = if named { service.definition.group.clone() } else { service.key.name.as_str().to_owned() };
    Group { owner: service.key.owner.clone(), name }
}

/// Where the service's node ports are served; without any, where the daemon is configured to. Every address is `::`.
fn addresses(service: &Service, node: &Node) -> BTreeSet<IpAddr> {
    let node_ports = service.definition.frontends.iter().filter_map(|frontend| match &frontend.at {
        At::NodePort(node_port) => Some(node_port),
        At::Address(_) => None,
    });
    let everywhere = vipd_model::NodePort { v4: true, v6: true, addresses: Vec::new() };
    let mut places: Vec<_> = node_ports.collect();
    if places.is_empty() {
        places.push(&everywhere);
    }
    if places.iter().any(|place| node.node_port_selectors(place).is_empty()) {
        return BTreeSet::from([IpAddr::V6(Ipv6Addr::UNSPECIFIED)]);
    }
    let selected = places
        .iter()
        .flat_map(|place| Family::ALL.into_iter().flat_map(|family| node.node_port_addresses(place, family)));
    selected.collect()
}

/// `::` takes IPv4 as well, where the kernel has both; where it has no IPv6, IPv4 alone.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(v6) => match TcpSocket::new_v6() {
            Ok(socket) => socket,
            Err(_) if v6.ip().is_unspecified() => {
                return listen(SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), address.port()));
            }
            Err(error) => return Err(error),
        },
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn serve(listener: TcpListener, port: &Port, core: &Arc<RwLock<Core>>) -> AbortHandle {
    let (core, group, services) = (Arc::clone(core), port.group.clone(), Arc::clone(&port.services));
    let respond = move |_: String| {
        let core = core.read().unwrap_or_else(PoisonError::into_inner);
        let services = services.read().unwrap_or_else(PoisonError::into_inner);
        std::future::ready(answer(&core, &group, &services))
    };
    tokio::spawn(http::serve(listener, respond)).abort_handle()
}
