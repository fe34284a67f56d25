//! What the guard's kernel tests share: entries in few words, a runner on a fresh namespace, a client host beside it.

use std::{
    fs,
    io::ErrorKind,
    net::{IpAddr, TcpStream},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use nix::{
    sched::{CloneFlags, unshare},
    unistd::gettid,
};
use vipd_engine::{FlowFilter, GuardEntry, GuardInput, Node, Place, Runner, Steps, guard::Spot};
use vipd_model::{Family, PortRange, Protocol, ServiceKey, service::NoEndpoints};
use vipd_netlink::{
    conntrack::{self, Conntrack, IpFamily},
    testing::run,
};
use vipd_nftables::Guard;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn vip(address: &str, protocol: Protocol, port: u16) -> Spot {
    Spot { place: Place::Vip(ip(address)), protocol, ports: PortRange::one(port) }
}

pub(crate) fn node_port(family: Family, protocol: Protocol, port: u16) -> Spot {
    Spot { place: Place::Node { family, addresses: Vec::new() }, protocol, ports: PortRange::one(port) }
}

pub(crate) fn capture(spot: Spot, port: u16) -> GuardEntry {
    GuardEntry::Capture { spot, port }
}

pub(crate) fn reject(spot: Spot) -> GuardEntry {
    GuardEntry::Refuse { spot, how: NoEndpoints::Reject }
}

pub(crate) fn silence(spot: Spot) -> GuardEntry {
    GuardEntry::Refuse { spot, how: NoEndpoints::Drop }
}

pub(crate) fn allow(spot: Spot, sources: &[&str]) -> GuardEntry {
    GuardEntry::Allow { spot, sources: sources.iter().map(|source| source.parse().unwrap()).collect() }
}

pub(crate) fn service(name: &str) -> ServiceKey {
    ServiceKey::new("test", name).unwrap()
}

pub(crate) fn node(virtual_ranges: &[&str]) -> Node {
    let mut node = Node::default();
    node.network.virtual_ranges = virtual_ranges.iter().map(|range| range.parse().unwrap()).collect();
    node
}

/// A guard in the current namespace whose node objects are in force.
pub(crate) fn started(guard: Guard, node: Node) -> Runner<Guard> {
    let mut runner = Runner::start(guard).unwrap();
    runner.set_node(node).unwrap();
    runner
}

/// One service's entries, in force; returns the flows that became stale.
pub(crate) fn put(runner: &mut Runner<Guard>, name: &str, mut entries: Vec<GuardEntry>) -> Vec<FlowFilter> {
    entries.sort();
    let key = service(name);
    let input = (!entries.is_empty()).then(|| GuardInput { key: key.clone(), entries });
    let made = runner.make(vec![(key.clone(), input)]);
    made.outcomes.into_iter().for_each(|(_, outcome)| outcome.unwrap());
    let finished = runner.finish(&[key]);
    finished.outcomes.into_iter().for_each(|(_, outcome)| outcome.unwrap());
    let mut stale = made.stale;
    stale.extend(finished.stale);
    stale
}

/// A bit of everything.
pub(crate) fn everything(runner: &mut Runner<Guard>) {
    let web = vip("10.96.0.1", Protocol::Tcp, 80);
    put(runner, "web", vec![capture(web.clone(), 15001), allow(web, &["10.1.0.0/24", "192.0.2.7/32"])]);
    put(
        runner,
        "web6",
        vec![
            capture(vip("fd96::1", Protocol::Tcp, 80), 15001),
            allow(vip("fd96::1", Protocol::Tcp, 80), &["fd01::/64", "fd02::7/128", "::/0"]),
        ],
    );
    put(
        runner,
        "dns",
        vec![
            capture(vip("10.96.0.10", Protocol::Udp, 53), 20053),
            capture(node_port(Family::V4, Protocol::Udp, 30053), 20054),
        ],
    );
    let admin = node_port(Family::V6, Protocol::Tcp, 30080);
    put(runner, "admin", vec![capture(admin.clone(), 15001), allow(admin, &["fd01::/64"])]);
    put(
        runner,
        "empty",
        vec![reject(vip("10.96.0.2", Protocol::Tcp, 80)), silence(node_port(Family::V4, Protocol::Tcp, 30081))],
    );
    let mut range = vip("10.96.0.3", Protocol::Tcp, 5000);
    range.ports = PortRange { first: 5000, last: 5009 };
    put(runner, "range", vec![capture(range, 15001)]);
}

pub(crate) fn wanted_is_in_kernel(runner: &mut Runner<Guard>) {
    let wanted = runner.wanted();
    let observed = runner.steps_mut().observe().unwrap().objects;
    let differ: Vec<_> = wanted.iter().filter(|(key, value)| observed.get(key) != Some(value)).collect();
    assert!(
        differ.is_empty(),
        "{differ:#?}\nin the kernel: {:#?}",
        differ.iter().map(|(k, _)| observed.get(k)).collect::<Vec<_>>()
    );
    let more: Vec<_> = observed.keys().filter(|key| !wanted.contains_key(key)).collect();
    assert!(more.is_empty(), "{more:?}");
}

/// Forgets flows as the daemon does.
pub(crate) fn forget(stale: &[FlowFilter]) {
    let filter = |filter: &FlowFilter| conntrack::FlowFilter {
        family: if filter.family == Family::V4 { IpFamily::V4 } else { IpFamily::V6 },
        protocol: filter.protocol.number(),
        destination: filter.destination,
        port: filter.port,
        reply_source: filter.reply_source,
    };
    assert!(!stale.is_empty());
    let filters: Vec<_> = stale.iter().map(filter).collect();
    Conntrack::open().unwrap().delete(&filters).unwrap();
}

type Job = Box<dyn FnOnce() + Send>;

/// Another host: a thread in a network namespace of its own, one cable away.
pub(crate) struct Client {
    jobs: Sender<Job>,
}

impl Client {
    pub(crate) const V4: &str = "10.1.0.2";
    pub(crate) const V6: &str = "fd01::2";
    pub(crate) const NODE_V4: &str = "10.1.0.1";
    pub(crate) const NODE_V6: &str = "fd01::1";

    /// Lays a cable from the current namespace, the node's, to a new one, with the node as its gateway. The node has a
    /// route to 10.96/16 and fd96::/64 so that its own clients get as far as its hooks.
    pub(crate) fn beside_this_node() -> Self {
        let (jobs, work) = channel::<Job>();
        let (report, ready) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            report.send(gettid()).unwrap();
            work.into_iter().for_each(|job| job());
        });
        let client = Self { jobs };
        let tid = ready.recv().unwrap().to_string();
        run("ip", &["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &tid]);
        plug(Self::NODE_V4, Self::NODE_V6);
        client.run(|| {
            run("ip", &["link", "set", "lo", "up"]);
            plug(Self::V4, Self::V6);
            run("ip", &["route", "add", "default", "via", Self::NODE_V4]);
            run("ip", &["route", "add", "default", "via", Self::NODE_V6]);
            [Self::NODE_V4, Self::NODE_V6].into_iter().for_each(wait_until_the_cable_carries);
        });
        // Else the second ICMP refusal within a second is not sent.
        fs::write("/proc/sys/net/ipv4/icmp_ratelimit", "0").unwrap();
        fs::write("/proc/sys/net/ipv6/icmp/ratelimit", "0").unwrap();
        run("ip", &["route", "add", "10.96.0.0/16", "via", Self::V4]);
        run("ip", &["route", "add", "fd96::/64", "via", Self::V6]);
        client
    }

    /// Runs something on that host.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(job).recv().expect("the client's job panicked")
    }

    /// The same without waiting for it.
    pub(crate) fn start<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (report, result) = channel();
        self.jobs.send(Box::new(move || report.send(job()).unwrap())).unwrap();
        result
    }
}

/// The kernel brings a cable into use a little after both ends are up; until then it loses what is sent.
fn wait_until_the_cable_carries(node: &str) {
    const DISCARD: u16 = 9;
    let reached = || {
        let attempt = TcpStream::connect_timeout(&(ip(node), DISCARD).into(), Duration::from_millis(100));
        attempt.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    assert!((0..100).any(|_| reached()), "no way to {node}");
}

fn plug(v4: &str, v6: &str) {
    run("ip", &["addr", "add", &format!("{v4}/24"), "dev", "eth0"]);
    run("ip", &["addr", "add", &format!("{v6}/64"), "dev", "eth0", "nodad"]);
    run("ip", &["link", "set", "eth0", "up"]);
}
