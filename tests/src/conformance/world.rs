//! What a case works with: a fresh lab, back ends that answer, the daemon of the engine under test, and short words.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use prost::Message as _;
use tonic::{Code, Status};
use vipd_proto::v1::{Endpoint, Feature, Network, Owner, Problem, Protocol, problem};

use super::Subject;
use crate::api::{Api, Reply, Spec, endpoint};
use crate::lab::{BACKENDS_V4, BACKENDS_V6, Daemon, Family, Host, Lab, VIPS_V4, VIPS_V6, vip};
use crate::traffic::{Client, Flow, Proto, Server};

/// The back ends' port. Not a frontend's, so that a packet that was not translated is noticed.
pub const PORT: u16 = 8080;
/// The owner that calls without an owner belong to.
pub const OWNER: &str = "default";

/// Where a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vantage {
    /// A host outside.
    Client,
    /// Another host outside, the node's gateway.
    Neighbour,
    /// A process of the node itself.
    Node,
    /// An endpoint: a local source where the owner's Network says so.
    Backend(usize),
}

/// Every kind of place from which a client may come.
pub const EVERYWHERE: [Vantage; 4] = [Vantage::Client, Vantage::Neighbour, Vantage::Node, Vantage::Backend(0)];

/// A fresh lab for one run of one case.
pub struct World {
    /// The engine under test.
    pub subject: Subject,
    /// The protocol of this run.
    pub proto: Proto,
    /// The family of this run.
    pub family: Family,
    /// A caller of the daemon.
    pub api: Api,
    /// The daemon under test, on the node.
    pub daemon: Daemon,
    /// `b1`, `b2`, `b3` on [`PORT`].
    pub servers: Vec<Server>,
    /// The hosts. Last, so that it is dropped last.
    pub lab: Lab,
}

impl World {
    pub(super) fn new(subject: Subject, proto: Proto, family: Family) -> Result<Self> {
        let lab = Lab::new()?;
        let daemon = subject.variant.start(&lab)?;
        let api = daemon.api()?;
        let servers = Vec::new();
        let mut world = Self { subject, proto, family, api, daemon, servers, lab };
        world.servers = (0..3).map(|n| world.server(n, PORT)).collect::<Result<_>>()?;
        world.warm_up()?;
        Ok(world)
    }

    /// Sends something over every link without vipd's help, so that no case is judged by a first packet that waits for
    /// neighbour discovery.
    fn warm_up(&self) -> Result<()> {
        for server in &self.servers {
            for vantage in EVERYWHERE {
                let outcome = self.from(vantage).ask((server.address().ip(), PORT))?;
                ensure!(
                    outcome.by() == Some(server.name()),
                    "the lab is broken: {vantage:?} without vipd: {outcome:?}"
                );
            }
        }
        Ok(())
    }

    /// The virtual IP number `n` of this run's family.
    #[must_use]
    pub fn vip(&self, n: u8) -> IpAddr {
        vip(self.family, n)
    }

    /// This run's protocol in the API's words.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        if self.proto == Proto::Tcp { Protocol::Tcp } else { Protocol::Udp }
    }

    /// A service of this run's protocol, not declared yet.
    #[must_use]
    pub fn spec(&self, name: &str) -> Spec {
        Spec::new(name, self.protocol())
    }

    /// Back end `n` as an endpoint.
    #[must_use]
    pub fn backend(&self, n: usize) -> Endpoint {
        endpoint(self.address(Vantage::Backend(n)), PORT)
    }

    /// All three.
    #[must_use]
    pub fn backends(&self) -> Vec<Endpoint> {
        (0..3).map(|n| self.backend(n)).collect()
    }

    /// Another server on back end `n`.
    pub fn server(&self, n: usize, port: u16) -> Result<Server> {
        let host = &self.lab.backends[n];
        Server::start(host, &format!("b{}", n + 1), (host.address(self.family), port), self.proto)
    }

    /// Declares a service with its endpoints; returns when it is in force.
    pub fn put(&self, spec: &Spec) -> Result<()> {
        self.api.put(spec).map(|_| ()).map_err(|status| anyhow!("declaring {}: {}", spec.service.name, say(&status)))
    }

    /// Declares the owner's network as the lab is: back ends are local sources, VIPs live in their ranges.
    pub fn declare_network(&self) -> Result<()> {
        let network = Network {
            local_sources: [BACKENDS_V4, BACKENDS_V6].map(str::to_owned).to_vec(),
            virtual_ranges: [VIPS_V4, VIPS_V6].map(str::to_owned).to_vec(),
            ..Default::default()
        };
        let owner = Owner { name: OWNER.to_owned(), network: Some(network), ..Default::default() };
        self.api.set_owner(owner).map_err(|status| anyhow!("SetOwner: {}", say(&status)))
    }

    /// The host at a vantage point.
    #[must_use]
    pub fn host(&self, at: Vantage) -> &Host {
        match at {
            Vantage::Client => &self.lab.client,
            Vantage::Neighbour => &self.lab.neighbour,
            Vantage::Node => &self.lab.node,
            Vantage::Backend(n) => &self.lab.backends[n],
        }
    }

    /// The address of a vantage point's host.
    #[must_use]
    pub fn address(&self, at: Vantage) -> IpAddr {
        self.host(at).address(self.family)
    }

    /// A client there, speaking this run's protocol.
    #[must_use]
    pub fn from(&self, at: Vantage) -> Client<'_> {
        Client::new(self.host(at), self.proto)
    }

    /// A client outside.
    #[must_use]
    pub fn client(&self) -> Client<'_> {
        self.from(Vantage::Client)
    }

    /// A flow from the client that has answered once: established, and by whom.
    pub fn established(&self, to: (IpAddr, u16)) -> Result<(Flow, String)> {
        let flow = self.client().open(to)?.map_err(|end| anyhow!("opening a flow to {to:?}: {}", end.word()))?;
        let first = flow.ask();
        let by = first.by().with_context(|| format!("asking on a fresh flow to {to:?}: {}", first.word()))?.to_owned();
        Ok((flow, by))
    }

    /// Holds `count` flows open, each of which has answered once.
    pub fn hold(&self, count: usize, to: (IpAddr, u16)) -> Result<Vec<(Flow, String)>> {
        (0..count).map(|_| self.established(to)).collect()
    }

    /// True if the engine says so.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.subject.info.features.contains(&feature.into())
    }

    /// `kill -9`, and a new daemon over the same state; returns when it answers.
    pub fn restart(&mut self) -> Result<()> {
        self.daemon.kill()?;
        self.start_again()
    }

    /// A new daemon over the same state.
    pub fn start_again(&mut self) -> Result<()> {
        self.daemon = self.subject.variant.start(&self.lab)?;
        self.api = self.daemon.api()?;
        Ok(())
    }

    /// More addresses for the client, as many clients of one service would have.
    pub fn more_clients(&self, count: u16) -> Result<Vec<IpAddr>> {
        let (prefix, bits) = if self.family == Family::V4 { ("172.16.1.1", 24) } else { ("fd10:1::1", 64) };
        let addresses: Vec<IpAddr> =
            (0..count).map(|n| Ok(format!("{prefix}{n:02}").parse()?)).collect::<Result<_>>()?;
        let nodad = if self.family == Family::V4 { "" } else { " nodad" };
        let lines: Vec<String> =
            addresses.iter().map(|address| format!("addr add {address}/{bits} dev eth0{nodad}")).collect();
        self.lab.client.ip(&lines.join("\n"))?;
        Ok(addresses)
    }
}

/// A status for people.
#[must_use]
pub fn say(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// The call was refused with this code, and a Problem of this kind stands in its details.
///
/// # Errors
/// Says what was answered instead.
pub fn refused<T: std::fmt::Debug>(reply: Reply<T>, code: Code, kind: problem::Code) -> Result<Problem> {
    let status = reply.err().with_context(|| format!("accepted, expected {code:?}"))?;
    ensure!(status.code() == code, "expected {code:?}, got {}", say(&status));
    let details = tonic_types::pb::Status::decode(status.details()).context("details of the status")?.details;
    let problems = details.iter().filter(|any| any.type_url.ends_with("/vipd.v1.Problem"));
    let problems: Vec<Problem> = problems.filter_map(|any| Problem::decode(any.value.as_slice()).ok()).collect();
    let found = problems.iter().find(|problem| problem.code() == kind).cloned();
    found.with_context(|| format!("no {kind:?} among {problems:?} of {}", say(&status)))
}

/// Tries until it is so.
///
/// # Errors
/// The last attempt's error, once `patience` is over.
pub fn eventually(patience: Duration, mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error.context(format!("not within {patience:?}"))),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}
