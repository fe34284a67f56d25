//! Policies and scopes: which endpoints a client gets depends on where it stands. KUBE-PROXY-SEMANTICS §2 and §3.

use anyhow::{Result, ensure};
use vipd_proto::v1::endpoint::State;
use vipd_proto::v1::frontend::{Policy, Scope, SourceNat};
use vipd_proto::v1::{Endpoint, Feature, Frontend};

use crate::api::{at, in_state, local};
use crate::conformance::world::{EVERYWHERE, World};
use crate::conformance::{Case, Over, Vantage};

pub(super) const CASES: &[Case] = &[
    Case::new("policy_all_uses_every_endpoint_from_everywhere", Over::All, policy_all),
    Case::new("internal_local_uses_local_endpoints_from_everywhere", Over::All, internal_local)
        .needs(&[Feature::PolicyLocal]),
    Case::new("external_local_is_local_only_for_those_outside", Over::All, external_local)
        .needs(&[Feature::PolicyLocal]),
    Case::new("case_122_draining_serves_only_when_nothing_ready_is_left", Over::All, draining_as_last_resort),
    Case::new("case_084_a_draining_local_endpoint_serves_when_it_is_the_last", Over::All, last_local_drains)
        .needs(&[Feature::PolicyLocal]),
    Case::new("the_lowest_tier_that_has_a_ready_endpoint_is_used", Over::All, tiers),
    Case::new("external_local_keeps_the_source", Over::All, keeps_source)
        .needs(&[Feature::PolicyLocal, Feature::KeepsSource]),
    Case::new("source_nat_never_keeps_the_source", Over::All, never_translated).needs(&[Feature::KeepsSource]),
    Case::new("source_nat_always_hides_the_source", Over::All, always_translated),
];

fn frontend(world: &World, scope: Scope, policy: Policy) -> Frontend {
    Frontend { scope: scope.into(), policy: policy.into(), ..at(world.vip(10), 80) }
}

/// `b1` is on this node, the others are elsewhere.
fn one_local(world: &World) -> Vec<Endpoint> {
    let mut endpoints = world.backends();
    endpoints[0] = local(endpoints[0].clone());
    endpoints
}

fn declare(world: &World, scope: Scope, policy: Policy, endpoints: Vec<Endpoint>) -> Result<(std::net::IpAddr, u16)> {
    world.put(&world.spec("web").frontend(frontend(world, scope, policy)).to(endpoints))?;
    Ok((world.vip(10), 80))
}

fn policy_all(world: &mut World) -> Result<()> {
    world.declare_network()?;
    for scope in [Scope::Internal, Scope::External] {
        let to = declare(world, scope, Policy::All, one_local(world))?;
        for vantage in EVERYWHERE {
            world.check_over(vantage, to, &["b1", "b2", "b3"])?;
        }
    }
    Ok(())
}

fn internal_local(world: &mut World) -> Result<()> {
    world.declare_network()?;
    let to = declare(world, Scope::Internal, Policy::Local, one_local(world))?;
    for vantage in EVERYWHERE {
        world.check_over(vantage, to, &["b1"])?;
    }
    Ok(())
}

/// Traffic that began on this node, or at a local source, never left: it gets ALL's endpoints.
fn external_local(world: &mut World) -> Result<()> {
    world.declare_network()?;
    let to = declare(world, Scope::External, Policy::Local, one_local(world))?;
    for vantage in [Vantage::Client, Vantage::Neighbour] {
        world.check_over(vantage, to, &["b1"])?;
    }
    for vantage in [Vantage::Node, Vantage::Backend(1)] {
        world.check_over(vantage, to, &["b1", "b2", "b3"])?;
    }
    Ok(())
}

fn draining_as_last_resort(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let mut endpoints = world.backends();
    endpoints[0] = in_state(endpoints[0].clone(), State::Draining);
    world.put(&world.spec("web").at(to.0, to.1).to(endpoints.clone()))?;
    world.check_over(Vantage::Client, to, &["b2", "b3"])?;
    for endpoint in &mut endpoints[1..] {
        *endpoint = in_state(endpoint.clone(), State::NotReady);
    }
    world.api.set_endpoints("web", endpoints)?;
    world.check_over(Vantage::Client, to, &["b1"])
}

fn last_local_drains(world: &mut World) -> Result<()> {
    world.declare_network()?;
    let mut endpoints = one_local(world);
    endpoints[0] = in_state(endpoints[0].clone(), State::Draining);
    let to = declare(world, Scope::External, Policy::Local, endpoints)?;
    world.check_over(Vantage::Client, to, &["b1"])?;
    // Inside, where READY ones elsewhere count, the draining one is not needed.
    world.check_over(Vantage::Node, to, &["b2", "b3"])
}

fn tiers(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let mut endpoints = world.backends();
    (endpoints[1].tier, endpoints[2].tier) = (1, 2);
    world.put(&world.spec("web").at(to.0, to.1).to(endpoints.clone()))?;
    world.check_over(Vantage::Client, to, &["b1"])?;
    endpoints[0] = in_state(endpoints[0].clone(), State::NotReady);
    world.api.set_endpoints("web", endpoints.clone())?;
    world.check_over(Vantage::Client, to, &["b2"])?;
    endpoints[1].weight = Some(0);
    world.api.set_endpoints("web", endpoints)?;
    world.check_over(Vantage::Client, to, &["b3"])
}

fn keeps_source(world: &mut World) -> Result<()> {
    world.declare_network()?;
    let to = declare(world, Scope::External, Policy::Local, one_local(world))?;
    sees(world, to, true)
}

fn never_translated(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let kept = Frontend { source_nat: SourceNat::Never.into(), ..at(to.0, to.1) };
    world.put(&world.spec("web").frontend(kept).to(world.backends()))?;
    sees(world, to, true)
}

fn always_translated(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let hidden = Frontend { source_nat: SourceNat::Always.into(), ..at(to.0, to.1) };
    world.put(&world.spec("web").frontend(hidden).to(world.backends()))?;
    sees(world, to, false)
}

fn sees(world: &World, to: (std::net::IpAddr, u16), the_client: bool) -> Result<()> {
    let tally = world.check(Vantage::Client, to, 6)?;
    let own = world.address(Vantage::Client);
    ensure!(tally.was_seen(own) == the_client, "the back ends saw {:?} of client {own}", tally.sources());
    Ok(())
}
