//! The proxy as its control side sees it: start it, put services in, take them out, open and close its doors, read what
//! it counted. Every change is a swap of one service's value; flows read without a lock.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::runtime::Handle;
use vipd_model::{EndpointKey, Family, Place as At, Selected, ServiceKey};

use crate::budget::{Budget, Permit, Shedding};
use crate::choose::{Chosen, Denied, Tried, choose};
use crate::drain::{Drains, wall_clock};
use crate::listen::{Arrival, accept, listen};
use crate::objects::{Admission, Door};
use crate::pick::Flow;
use crate::reserve::Reserve;
use crate::served::{Aftermath, Served, Slot};
use crate::sources::Sources;
use crate::stats::{ProxyStatistics, ServiceStatistics, Shed};
use crate::table::{Place, Table};
use crate::udp;
use crate::udp::door::Destination;
use crate::workers::{Task, Workers, raise_descriptor_limit};

/// How the proxy is made.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Threads that move traffic; 0: one for each core.
    pub workers: usize,
    /// Descriptors for flows; 0: what the process may open, less what the control side needs.
    pub descriptors: usize,
    /// TCP connections at a time, of all services together, where memory rather than descriptors is scarce: one that
    /// moves nothing takes about 2 KiB here and as much in the kernel.
    pub connections: usize,
    /// UDP sessions at a time, of all services together.
    pub sessions: usize,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self { workers: 0, descriptors: 0, connections: 1_000_000, sessions: 100_000 }
    }
}

/// Descriptors left to the rest of the daemon (its socket and callers, store, netlink, logs): this, or a quarter of the
/// limit if that is less.
const CONTROL_DESCRIPTORS: u64 = 256;

/// The pipes' part of the descriptors.
const PIPE_PART: usize = 4;

/// So many doors are served by every worker; each takes a descriptor for each of them.
const DOORS_OF_ALL_WORKERS: usize = 256;

/// What every flow may need.
pub(crate) struct Shared {
    pub(crate) table: Table<Slot>,
    /// Absent: nobody has said yet.
    pub(crate) sources: ArcSwapOption<Sources>,
    /// Descriptors of doors and flows.
    pub(crate) budget: Arc<Budget>,
    /// Descriptors of the pipes that they borrow; apart, so that idle pipes never turn a client away.
    pub(crate) pipes: Arc<Budget>,
    /// TCP connections.
    pub(crate) connections: Arc<Budget>,
    /// UDP sessions.
    pub(crate) sessions: Arc<Budget>,
    pub(crate) reserve: Reserve,
    pub(crate) shed: Shed,
    pub(crate) shedding: Shedding,
    pub(crate) drains: Drains,
    started: Instant,
}

impl Shared {
    /// Milliseconds since the proxy began, never 0.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Chooses an endpoint for a flow at a place.
    pub(crate) fn choose(&self, slot: &Slot, place: &Place, flow: &Flow, tried: &Tried) -> Result<Chosen, Denied> {
        let sources = self.sources.load();
        let class = match &*sources {
            Some(sources) => sources.class(flow.client.ip()),
            None => Sources::default().class(flow.client.ip()),
        };
        choose(slot, place, flow, class, tried, self.now())
    }
}

/// The proxy. Methods block shortly and are for one control thread; dropping it ends every flow.
pub struct Proxy {
    workers: Workers,
    shared: Arc<Shared>,
    services: Mutex<BTreeMap<ServiceKey, Arc<Slot>>>,
    doors: Mutex<BTreeMap<Door, Open>>,
    _drains: Task,
}

struct Open {
    port: u16,
    admission: Admission,
    tasks: Vec<Task>,
    _permit: Permit,
}

impl Proxy {
    /// Starts the workers. Nothing listens yet.
    ///
    /// # Errors
    /// If threads or their event queues cannot be had.
    pub fn start(config: &ProxyConfig) -> io::Result<Self> {
        let limit = raise_descriptor_limit();
        let spare = limit - CONTROL_DESCRIPTORS.min(limit / 4);
        let descriptors =
            if config.descriptors == 0 { spare.try_into().unwrap_or(usize::MAX) } else { config.descriptors };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = Workers::start(if config.workers == 0 { cores } else { config.workers })?;
        let shared = Arc::new(Shared {
            table: Table::new(),
            sources: ArcSwapOption::empty(),
            budget: Budget::new(descriptors - descriptors / PIPE_PART),
            pipes: Budget::new(descriptors / PIPE_PART),
            connections: Budget::new(config.connections),
            sessions: Budget::new(config.sessions),
            reserve: Reserve::new(),
            shed: Shed::default(),
            shedding: Shedding::default(),
            drains: Drains::default(),
            started: Instant::now(),
        });
        let waiting = Arc::clone(&shared);
        let drains = Task::spawn(workers.one(), async move { waiting.drains.run().await });
        Ok(Self { workers, shared, services: Mutex::default(), doors: Mutex::default(), _drains: drains })
    }

    /// Says who counts as inside; absent: only loopback does.
    pub fn set_sources(&self, sources: Option<Arc<Sources>>) {
        self.shared.sources.store(sources);
    }

    /// Who counts as inside, as it was said.
    #[must_use]
    pub fn sources(&self) -> Option<Arc<Sources>> {
        self.shared.sources.load_full()
    }

    /// Puts a service in, or its new version. The next new flow obeys it, and UDP flows that it made stale are gone.
    pub fn set(&self, value: Arc<Selected>) {
        let key = value.service.key.clone();
        let mut services = self.services();
        let before = services.get(&key).map(|slot| (Arc::clone(slot), slot.current.load_full()));
        if let Some((slot, served)) = &before {
            if served.value == value {
                return;
            }
            if served.state.protocol != value.service.definition.protocol {
                // Another service to everybody who uses it.
                services.remove(&key);
                self.end(slot, served);
                drop(services);
                return self.set(value);
            }
        }
        let (served, aftermath) = Served::next(before.as_ref().map(|(_, served)| &**served), value);
        let served = Arc::new(served);
        let slot = match &before {
            Some((slot, _)) => {
                slot.current.store(Arc::clone(&served));
                Arc::clone(slot)
            }
            None => Arc::new(Slot { current: ArcSwap::new(Arc::clone(&served)) }),
        };
        for place in served.places() {
            self.shared.table.insert(*place, Arc::clone(&slot));
        }
        for place in before.iter().flat_map(|(_, before)| before.places()) {
            if served.front(place).is_none() {
                self.shared.table.remove(place, &slot);
            }
        }
        services.insert(key, slot);
        self.follow(&served, aftermath);
    }

    /// Takes a service out: no new flows, TCP flows under the drain of their endpoints, UDP flows cut.
    pub fn remove(&self, key: &ServiceKey) {
        if let Some(slot) = self.services().remove(key) {
            let served = slot.current.load_full();
            self.end(&slot, &served);
        }
    }

    fn end(&self, slot: &Arc<Slot>, served: &Served) {
        for place in served.places() {
            self.shared.table.remove(place, slot);
        }
        self.follow(served, served.end(wall_clock()));
    }

    fn follow(&self, served: &Served, aftermath: Aftermath) {
        aftermath.retire(served.state.protocol);
        self.shared.drains.add(aftermath.deadlines);
    }

    /// The services that it serves, as they were put in.
    #[must_use]
    pub fn served(&self) -> Vec<Arc<Selected>> {
        self.services().values().map(|slot| Arc::clone(&slot.current.load().value)).collect()
    }

    /// One of them.
    #[must_use]
    pub fn service(&self, key: &ServiceKey) -> Option<Arc<Selected>> {
        self.services().get(key).map(|slot| Arc::clone(&slot.current.load().value))
    }

    /// The endpoint that a service's affinity remembers for a client (see [`vipd_model::affinity_client`]).
    #[must_use]
    pub fn remembered(&self, service: &ServiceKey, client: IpAddr) -> Option<EndpointKey> {
        let slot = self.services().get(service).map(Arc::clone)?;
        slot.current.load().remembered(client, self.shared.now())
    }

    /// Opens a door, and says which port it has. One that is open is opened anew if it is to admit others: what waits to
    /// be accepted there is lost.
    ///
    /// # Errors
    /// From the system: the address is taken, not ours, or not allowed.
    pub fn open(&self, door: Door, admission: &Admission) -> io::Result<u16> {
        let before = self.doors().get(&door).map(|open| (open.port, open.admission == *admission));
        match before {
            Some((port, true)) => return Ok(port),
            Some(_) => self.close(&door),
            None => {}
        }
        let open = match door {
            Door::Captured(family) => self.open_tcp(any(family), Arrival::Captured(family), admission)?,
            Door::Tcp(address) => self.open_tcp(address, Arrival::Direct(address), admission)?,
            Door::CapturedUdp(place, port) => {
                let family = match place {
                    At::Address(address) => Family::of(address),
                    At::Node(family) => family,
                };
                self.open_udp(any(family), Destination::Captured(place, port), admission)?
            }
            Door::Udp(address) => self.open_udp(address, Destination::Direct(address), admission)?,
        };
        let port = open.port;
        self.doors().insert(door, open);
        Ok(port)
    }

    fn open_tcp(&self, address: SocketAddr, arrival: Arrival, admission: &Admission) -> io::Result<Open> {
        let (workers, permit) = self.workers_for_door()?;
        let listener = listen(address, admission)?;
        let port = listener.local_addr()?.port();
        let mut tasks = Vec::new();
        for worker in workers {
            // One queue that all workers take from: whoever has time does.
            let listener = listener.try_clone()?;
            let shared = Arc::clone(&self.shared);
            tasks.push(Task::spawn(worker, async move {
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => accept(listener, arrival, shared).await,
                    Err(error) => tracing::error!(%error, %address, "cannot wait for connections"),
                }
            }));
        }
        Ok(Open { port, admission: admission.clone(), tasks, _permit: permit })
    }

    fn open_udp(&self, address: SocketAddr, destination: Destination, admission: &Admission) -> io::Result<Open> {
        let (workers, permit) = self.workers_for_door()?;
        let sockets = udp::door::bind(address, admission, workers.len())?;
        let port = sockets.first().map_or(Ok(0), |socket| socket.local_addr().map(|at| at.port()))?;
        let mut tasks = Vec::new();
        for (worker, socket) in workers.iter().zip(sockets) {
            let shared = Arc::clone(&self.shared);
            tasks.push(Task::spawn(worker, async move {
                match tokio::net::UdpSocket::from_std(socket) {
                    Ok(socket) => udp::door::serve(socket, destination, shared).await,
                    Err(error) => tracing::error!(%error, %address, "cannot wait for datagrams"),
                }
            }));
        }
        Ok(Open { port, admission: admission.clone(), tasks, _permit: permit })
    }

    /// Who serves a new door: every worker while doors are few, then one, so that ten thousand frontends take ten
    /// thousand descriptors and not that for each core.
    fn workers_for_door(&self) -> io::Result<(&[Handle], Permit)> {
        let few = self.doors().len() < DOORS_OF_ALL_WORKERS;
        let workers = if few { self.workers.all() } else { std::slice::from_ref(self.workers.one()) };
        let permit = self.shared.budget.take(workers.len());
        Ok((workers, permit.ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))?))
    }

    /// Closes a door and returns when it is closed. Flows that came through it go on.
    pub fn close(&self, door: &Door) {
        let open = self.doors().remove(door);
        for task in open.into_iter().flat_map(|open| open.tasks) {
            task.end();
        }
    }

    /// The open doors, whom they admit, and their ports.
    #[must_use]
    pub fn open_doors(&self) -> Vec<(Door, Admission, u16)> {
        self.doors().iter().map(|(door, open)| (*door, open.admission.clone(), open.port)).collect()
    }

    /// Whom an open door admits.
    #[must_use]
    pub fn admission(&self, door: &Door) -> Option<Admission> {
        self.doors().get(door).map(|open| open.admission.clone())
    }

    /// What services counted: these, or all if none is named.
    #[must_use]
    pub fn statistics(&self, keys: &[ServiceKey]) -> Vec<ServiceStatistics> {
        let services = self.services();
        let now = self.shared.now();
        let of = |slot: &Arc<Slot>| slot.current.load().statistics(now);
        if keys.is_empty() {
            services.values().map(of).collect()
        } else {
            keys.iter().filter_map(|key| services.get(key).map(of)).collect()
        }
    }

    /// What the proxy as a whole counted.
    #[must_use]
    pub fn totals(&self) -> ProxyStatistics {
        let shared = &self.shared;
        let now = shared.now();
        ProxyStatistics {
            shed_descriptors: shared.shed.descriptors.get(),
            shed_sessions: shared.shed.sessions.get(),
            unknown: shared.shed.unknown.get(),
            connections: shared.connections.used() as u64,
            sessions: shared.sessions.used() as u64,
            descriptors: shared.budget.used() as u64,
            descriptor_limit: shared.budget.limit() as u64,
            shedding_for_ms: shared.shedding.since(now).map(|since| now - since),
        }
    }

    /// Closes every door and waits until all flows have ended, or `patience` is over. True if they all ended.
    pub fn drain(&self, patience: Duration) -> bool {
        let doors: Vec<Door> = self.doors().keys().copied().collect();
        for door in &doors {
            self.close(door);
        }
        let end = Instant::now() + patience;
        while self.shared.connections.used() + self.shared.sessions.used() != 0 {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    fn services(&self) -> MutexGuard<'_, BTreeMap<ServiceKey, Arc<Slot>>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doors(&self) -> MutexGuard<'_, BTreeMap<Door, Open>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every address of a family, and a port that the kernel chooses.
fn any(family: Family) -> SocketAddr {
    match family {
        Family::V4 => (Ipv4Addr::UNSPECIFIED, 0).into(),
        Family::V6 => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}
