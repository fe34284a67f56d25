//! The lab: six hosts on a table, each a network namespace of its own, both address families.
//!
//! ```text
//!   client 172.16.1.2 ────────┐                       ┌──────── b1 10.1.1.2
//!          fd10:1::2          │  node  *.1 on each    │            fd20:1::2
//!                             ├───────────────────────┼──────── b2 10.1.2.2
//!   neighbour 172.16.2.2 ─────┘  link; vipd runs here │            fd20:2::2
//!          fd10:2::2                                  └──────── b3 10.1.3.2
//! ```
//! Everybody's default route is the node; the node's is the neighbour. So VIPs are reached from everywhere, and what
//! the node does not serve leaves it towards the neighbour. Making a lab takes tens of milliseconds: each case gets a
//! fresh one. Read [`sandbox`] for how it works without root, [`Host`] for how a test stands on a host.

mod daemon;
mod host;
pub mod sandbox;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

pub use daemon::{Daemon, vipd_binary, without_our_variables};
pub use host::{Host, installed};
use sandbox::LABS_DIR;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// VIPs of the lab are taken from here (IPv4): clients and back ends route it through the node.
pub const VIPS_V4: &str = "10.96.0.0/16";
/// VIPs of the lab are taken from here (IPv6).
pub const VIPS_V6: &str = "fd96::/64";
/// Where back ends live (IPv4): what an orchestrator would call pods.
pub const BACKENDS_V4: &str = "10.1.0.0/16";
/// Where back ends live (IPv6).
pub const BACKENDS_V6: &str = "fd20::/16";

/// The virtual IP number `n` of a family.
#[must_use]
pub const fn vip(family: Family, n: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::new(10, 96, 0, n)),
        Family::V6 => IpAddr::V6(Ipv6Addr::new(0xfd96, 0, 0, 0, 0, 0, 0, n as u16)),
    }
}

/// The link between the node and one other host.
struct Link {
    name: &'static str,
    /// `(a, b)` makes `a.b.2`: the other host; the node has `.1`.
    v4: [u8; 3],
    v6: [u16; 2],
}

const LINKS: [Link; 5] = [
    Link { name: "client", v4: [172, 16, 1], v6: [0xfd10, 1] },
    Link { name: "neighbour", v4: [172, 16, 2], v6: [0xfd10, 2] },
    Link { name: "b1", v4: [10, 1, 1], v6: [0xfd20, 1] },
    Link { name: "b2", v4: [10, 1, 2], v6: [0xfd20, 2] },
    Link { name: "b3", v4: [10, 1, 3], v6: [0xfd20, 3] },
];

impl Link {
    const fn v4(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(self.v4[0], self.v4[1], self.v4[2], host)
    }

    const fn v6(&self, host: u8) -> Ipv6Addr {
        Ipv6Addr::new(self.v6[0], self.v6[1], 0, 0, 0, 0, 0, host as u16)
    }
}

/// Six hosts, wired. Dropping it removes them.
#[derive(Debug)]
pub struct Lab {
    /// A host outside, whose routes to the VIPs lead through the node.
    pub client: Host,
    /// Where vipd runs.
    pub node: Host,
    /// A second host outside, on another link of the node; the node's default gateway.
    pub neighbour: Host,
    /// `b1`, `b2`, `b3`.
    pub backends: Vec<Host>,
    dir: PathBuf,
}

impl Lab {
    /// Makes the hosts and their links.
    ///
    /// # Errors
    /// When the kernel or `ip` refuses something; the line is named.
    pub fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(LABS_DIR).join(number.to_string());
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;

        let node = Host::new(format!("{number}-node"), LINKS[0].v4(1), LINKS[0].v6(1))?;
        node.sysctl("net/ipv4/ip_forward", "1")?;
        node.sysctl("net/ipv6/conf/all/forwarding", "1")?;
        // The kernel answers one host with six ICMP errors and then one a second; here refusals are counted.
        node.sysctl("net/ipv4/icmp_ratelimit", "0")?;
        node.sysctl("net/ipv6/icmp/ratelimit", "0")?;
        let mut hosts = Vec::new();
        let mut wiring = String::from("link set lo up\n");
        for link in &LINKS {
            let host = Host::new(format!("{number}-{}", link.name), link.v4(2), link.v6(2))?;
            wiring += &node_end(link, host.name());
            hosts.push(host);
        }
        wiring += &format!("route add default via {}\nroute add ::/0 via {}\n", LINKS[1].v4(2), LINKS[1].v6(2));
        node.ip(&wiring).context("wiring the node")?;
        for (host, link) in hosts.iter().zip(&LINKS) {
            host.ip(&far_end(link)).with_context(|| format!("wiring {}", link.name))?;
        }
        let backends = hosts.split_off(2);
        let [client, neighbour] = <[Host; 2]>::try_from(hosts).map_err(|_| anyhow::anyhow!("two outside hosts"))?;
        Ok(Self { client, node, neighbour, backends, dir })
    }

    /// A directory for sockets, state and logs, removed with the lab.
    #[must_use]
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// An address behind back end `n` (0..3) that swallows every packet: neither answer nor refusal.
    ///
    /// # Errors
    /// When the routes cannot be set.
    pub fn black_hole(&self, family: Family, n: usize) -> Result<IpAddr> {
        let link = &LINKS[2 + n];
        let (address, via): (IpAddr, IpAddr) = match family {
            Family::V4 => (link.v4(66).into(), link.v4(2).into()),
            Family::V6 => (link.v6(66).into(), link.v6(2).into()),
        };
        let bits = if address.is_ipv4() { 32 } else { 128 };
        self.node.ip(&format!("route replace {address}/{bits} via {via}"))?;
        self.backends[n].ip(&format!("route replace blackhole {address}/{bits}"))?;
        Ok(address)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// What `ip` is told on the node for one link.
fn node_end(link: &Link, peer: &str) -> String {
    let name = link.name;
    format!(
        "link add {name} type veth peer name eth0 netns {peer}\n\
         addr add {}/24 dev {name}\n\
         addr add {}/64 dev {name} nodad\n\
         link set {name} up\n",
        link.v4(1),
        link.v6(1)
    )
}

/// What `ip` is told on the other host of a link.
fn far_end(link: &Link) -> String {
    format!(
        "link set lo up\n\
         addr add {}/24 dev eth0\n\
         addr add {}/64 dev eth0 nodad\n\
         link set eth0 up\n\
         route add default via {}\n\
         route add ::/0 via {}\n",
        link.v4(2),
        link.v6(2),
        link.v4(1),
        link.v6(1)
    )
}
