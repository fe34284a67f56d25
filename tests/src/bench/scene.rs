//! The services of the bench, and a lab that answers for every one of them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};

use crate::lab::{Family, Host, Lab};

/// How many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Services.
    pub services: u32,
    /// Endpoints of each.
    pub endpoints: u32,
    /// Whether kube-proxy is measured there too.
    pub beside_peers: bool,
}

impl Size {
    /// Every size of docs/performance.md.
    pub const ALL: [Self; 7] = [
        Self::beside(1_000, 5),
        Self::beside(5_000, 5),
        Self::beside(10_000, 5),
        Self::alone(10_000, 10),
        Self::alone(50_000, 10),
        Self::alone(45_000, 1),
        Self::alone(5_000, 50),
    ];

    const fn beside(services: u32, endpoints: u32) -> Self {
        Self { services, endpoints, beside_peers: true }
    }

    const fn alone(services: u32, endpoints: u32) -> Self {
        Self { services, endpoints, beside_peers: false }
    }

    /// `1000x5,10000x5`; empty: the sizes of a quarter of an hour.
    ///
    /// # Errors
    /// When a word is no size.
    pub fn parse_list(words: &str) -> Result<Vec<Self>> {
        if words.is_empty() {
            return Ok(vec![Self::beside(1_000, 5), Self::beside(10_000, 5)]);
        }
        words.split(',').map(Self::parse).collect()
    }

    fn parse(word: &str) -> Result<Self> {
        let (services, endpoints) = word.split_once('x').with_context(|| format!("{word:?}: a size is 10000x5"))?;
        let (services, endpoints) = (services.parse()?, endpoints.parse()?);
        let known = Self::ALL.into_iter().find(|size| size.services == services && size.endpoints == endpoints);
        Ok(known.unwrap_or(Self::beside(services, endpoints)))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} services × {} endpoints", self.services, self.endpoints)
    }
}

/// Every endpoint's port.
pub const PORT: u16 = 8080;

/// The virtual IP of service `i`; `tests/peers-k8s/load` knows the same.
#[must_use]
pub fn virtual_ip(i: u32) -> IpAddr {
    numbered([10, 100], i + 1)
}

/// Endpoint `k` of service `i`.
#[must_use]
pub fn endpoint(size: Size, i: u32, k: u32) -> IpAddr {
    numbered([10, 64], i * size.endpoints + k + 1)
}

/// The `n`th endpoint that a change adds.
#[must_use]
pub fn fresh_endpoint(n: u32) -> IpAddr {
    numbered([10, 79], n + 1)
}

/// The `n`th virtual IP that a change adds.
#[must_use]
pub fn fresh_virtual_ip(n: u32) -> IpAddr {
    numbered([10, 110], n + 1)
}

fn numbered([a, b]: [u8; 2], n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(u32::from_be_bytes([a, b, 0, 0]) + n))
}

/// A lab in which one host answers for all endpoints.
#[derive(Debug)]
pub struct Scene {
    /// The hosts.
    pub lab: Lab,
}

impl Scene {
    /// Makes it.
    ///
    /// # Errors
    /// Those of the lab.
    pub fn new() -> Result<Self> {
        let lab = Lab::new()?;
        let all = &lab.backends[0];
        all.ip("route add local 10.64.0.0/12 dev lo\n")?;
        // Hundreds of thousands of connections from one client: none may wait for a port or a place in the queue.
        all.sysctl("net/core/somaxconn", "65535")?;
        all.sysctl("net/ipv4/tcp_max_syn_backlog", "65535")?;
        lab.client.sysctl("net/ipv4/ip_local_port_range", "10240 65535")?;
        lab.node.ip(&format!("route add 10.64.0.0/12 via {}\n", all.address(Family::V4)))?;
        Ok(Self { lab })
    }

    /// Where vipd, or kube-proxy, runs.
    #[must_use]
    pub fn node(&self) -> &Host {
        &self.lab.node
    }

    /// An endpoint of each of these services, and once more the first.
    #[must_use]
    pub fn endpoints(size: Size) -> [SocketAddr; 4] {
        [0, size.services / 2, size.services - 1, 0].map(|i| SocketAddr::new(endpoint(size, i, 0), PORT))
    }

    /// What a client asks for, first, middle and last service; the last is an endpoint itself: no service's connection.
    #[must_use]
    pub fn targets(size: Size) -> [SocketAddr; 4] {
        let service = |i| SocketAddr::new(virtual_ip(i), 80);
        let direct = SocketAddr::new(endpoint(size, 0, 0), PORT);
        [service(0), service(size.services / 2), service(size.services - 1), direct]
    }
}
