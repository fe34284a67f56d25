//! What the node tells load balancers and operators: health ports, `/healthz`, metrics, digests.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Result, ensure};
use vipd_proto::v1::endpoint::State;
use vipd_proto::v1::frontend::{Policy, Scope};
use vipd_proto::v1::{Frontend, Owner};

use crate::api::{Spec, at, in_state, local};
use crate::conformance::world::{OWNER, World, eventually};
use crate::conformance::{Case, Over, Vantage};
use crate::traffic::http::{Page, get};
use crate::traffic::{Client, Proto, Server};

pub(super) const CASES: &[Case] = &[
    Case::new("case_085_the_health_port_knows_when_the_last_local_endpoint_leaves", Over::Once, last_local),
    Case::new("case_084_the_health_port_fails_while_a_draining_endpoint_serves", Over::Once, draining),
    Case::new("case_104_a_metrics_port_that_is_taken_ends_the_start", Over::Once, port_taken),
    Case::new("case_014_the_fill_of_the_conntrack_table_is_a_metric", Over::Once, conntrack_metric),
    Case::new("case_096_nodes_that_were_told_the_same_have_one_digest", Over::Once, digest),
    Case::new("a_draining_node_says_so_to_load_balancers", Over::Once, node_draining),
];

const HEALTH: u16 = 32_000;
const METRICS: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

fn service(world: &World) -> Spec {
    let frontend = Frontend { scope: Scope::External.into(), policy: Policy::Local.into(), ..at(world.vip(10), 80) };
    world.spec("web").frontend(frontend).with(|service| {
        service.group = "shop/web".to_owned();
        service.health_port = HEALTH.into();
    })
}

fn health(world: &World) -> Result<Page> {
    get(&Client::new(&world.lab.client, Proto::Tcp), (world.address(Vantage::Node), HEALTH), "/")
}

fn last_local(world: &mut World) -> Result<()> {
    world.put(&service(world).to(vec![local(world.backend(0)), local(world.backend(1)), world.backend(2)]))?;
    let page = health(world)?;
    ensure!(page.status == 200, "two local endpoints: {page:?}");
    ensure!(page.header("X-Load-Balancing-Endpoint-Weight") == Some("2"), "{page:?}");
    world.api.set_endpoints("web", vec![world.backend(2)])?;
    let page = health(world)?;
    ensure!(page.status == 503, "no local endpoint, and the call was answered: {page:?}");
    world.api.delete("web")?;
    ensure!(health(world).is_err(), "a deleted service's health port answers");
    Ok(())
}

fn draining(world: &mut World) -> Result<()> {
    world.put(&service(world).to(vec![in_state(local(world.backend(0)), State::Draining), world.backend(2)]))?;
    ensure!(health(world)?.status == 503, "a draining endpoint is no reason to send more");
    world.check_over(Vantage::Client, (world.vip(10), 80), &["b1"])
}

fn port_taken(world: &mut World) -> Result<()> {
    let _other = Server::start(&world.lab.node, "other", (METRICS.0, 9999), Proto::Tcp)?;
    world.daemon.stop()?;
    let again = world.subject.variant.start_with(&world.lab, &["--metrics", "127.0.0.1:9999"]);
    let error = again.err().map(|error| format!("{error:#}"));
    let error = error.ok_or_else(|| anyhow::anyhow!("it runs without the port it was told to serve"))?;
    ensure!(error.contains("127.0.0.1:9999"), "the address is not named: {error}");
    Ok(())
}

fn metrics(world: &World, path: &str) -> Result<Page> {
    get(&Client::new(&world.lab.node, Proto::Tcp), METRICS, path)
}

fn conntrack_metric(world: &mut World) -> Result<()> {
    let page = metrics(world, "/metrics")?;
    ensure!(page.status == 200, "{page:?}");
    let lines = page.body.lines().filter(|line| line.contains("conntrack") && !line.starts_with('#'));
    ensure!(lines.count() >= 2, "count and maximum of conntrack entries are no metrics:\n{}", page.body);
    Ok(())
}

/// The same state by another way: other order, a detour, a restart.
fn digest(world: &mut World) -> Result<()> {
    let spec = |n: u8| world.spec(&format!("web-{n}")).at(world.vip(n), 80).to(world.backends());
    for n in 1..=3 {
        world.put(&spec(n))?;
    }
    let first = world.api.info()?.digest;
    for n in 1..=3 {
        world.api.delete(&format!("web-{n}"))?;
    }
    ensure!(world.api.info()?.digest != first, "nothing declared has the digest of three services");
    world.put(&world.spec("web-2").at(world.vip(9), 80))?;
    for n in [3, 2, 1] {
        world.put(&spec(n))?;
    }
    ensure!(world.api.info()?.digest == first, "the same state, another digest");
    world.restart()?;
    ensure!(world.api.info()?.digest == first, "a restart changed the digest");
    Ok(())
}

fn node_draining(world: &mut World) -> Result<()> {
    for (draining, healthz) in [(false, 200), (true, 503), (false, 200)] {
        let owner = Owner { name: OWNER.to_owned(), node_draining: draining, ..Default::default() };
        world.api.set_owner(owner)?;
        for (path, status) in [("/healthz", healthz), ("/livez", 200)] {
            let page = metrics(world, path)?;
            ensure!(page.status == status, "draining: {draining}, {path}: {page:?}");
        }
        eventually(Duration::from_secs(1), || {
            let page = metrics(world, "/readyz")?;
            ensure!(page.status == 200, "draining: {draining}, /readyz: {page:?}");
            Ok(())
        })?;
    }
    Ok(())
}
