//! Refusing: at once or in silence, by what is missing, on every path (case 80).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use vipd_proto::v1::endpoint::State;
use vipd_proto::v1::explain_response::Verdict;
use vipd_proto::v1::frontend::Policy;
use vipd_proto::v1::service::Refusal;
use vipd_proto::v1::{Endpoint, Feature, Frontend};

use crate::api::{at, in_state, node_port};
use crate::conformance::world::{EVERYWHERE, World};
use crate::conformance::{Case, Over, Vantage};

pub(super) const CASES: &[Case] = &[
    Case::new("case_080_no_endpoints_are_refused_at_once", Over::All, none_at_all),
    Case::new("case_080_endpoints_of_which_none_is_ready_are_refused_at_once", Over::All, none_ready),
    Case::new("case_080_none_local_is_silence", Over::All, none_local).needs(&[Feature::PolicyLocal]),
    Case::new("case_080_either_refusal_can_be_chosen", Over::All, chosen).needs(&[Feature::PolicyLocal]),
    Case::new("case_080_a_node_port_refuses_as_a_vip_does", Over::All, node_ports)
        .needs(&[Feature::NodePort, Feature::PolicyLocal]),
    Case::new("case_081_a_refused_client_is_served_as_soon_as_endpoints_appear", Over::All, then_served),
    Case::new("a_deleted_service_refuses_in_virtual_ranges", Over::All, deleted),
];

fn declare(world: &World, frontend: Frontend, refusals: [Refusal; 2], endpoints: Vec<Endpoint>) -> Result<()> {
    let web = world.spec("web").frontend(frontend).to(endpoints).with(|service| {
        service.on_no_endpoints = refusals[0].into();
        service.on_no_local_endpoints = refusals[1].into();
    });
    world.put(&web)
}

const DEFAULTS: [Refusal; 2] = [Refusal::Unspecified, Refusal::Unspecified];

fn from_everywhere(world: &World, verdict: Verdict) -> Result<()> {
    EVERYWHERE.into_iter().try_for_each(|vantage| world.check_is(vantage, (world.vip(10), 80), verdict))
}

fn none_at_all(world: &mut World) -> Result<()> {
    declare(world, at(world.vip(10), 80), DEFAULTS, Vec::new())?;
    from_everywhere(world, Verdict::Rejected)?;
    // From serving to nothing, as well as from the beginning.
    world.api.set_endpoints("web", world.backends())?;
    world.check_is(Vantage::Client, (world.vip(10), 80), Verdict::Forwarded)?;
    world.api.set_endpoints("web", Vec::new())?;
    from_everywhere(world, Verdict::Rejected)
}

fn none_ready(world: &mut World) -> Result<()> {
    let out = world.backends().into_iter().map(|endpoint| in_state(endpoint, State::NotReady)).collect();
    declare(world, at(world.vip(10), 80), DEFAULTS, out)?;
    from_everywhere(world, Verdict::Rejected)
}

fn local_only(world: &World) -> Frontend {
    Frontend { policy: Policy::Local.into(), ..at(world.vip(10), 80) }
}

fn none_local(world: &mut World) -> Result<()> {
    world.declare_network()?;
    declare(world, local_only(world), DEFAULTS, world.backends())?;
    from_everywhere(world, Verdict::Dropped)?;
    // None anywhere is another thing than none here.
    world.api.set_endpoints("web", Vec::new())?;
    from_everywhere(world, Verdict::Rejected)
}

fn chosen(world: &mut World) -> Result<()> {
    world.declare_network()?;
    declare(world, at(world.vip(10), 80), [Refusal::Drop, Refusal::Reject], Vec::new())?;
    world.check_is(Vantage::Client, (world.vip(10), 80), Verdict::Dropped)?;
    world.check_is(Vantage::Node, (world.vip(10), 80), Verdict::Dropped)?;
    declare(world, local_only(world), [Refusal::Drop, Refusal::Reject], world.backends())?;
    world.check_is(Vantage::Client, (world.vip(10), 80), Verdict::Rejected)?;
    world.check_is(Vantage::Node, (world.vip(10), 80), Verdict::Rejected)
}

fn node_ports(world: &mut World) -> Result<()> {
    let to = (world.address(Vantage::Node), 30_080);
    let frontend = Frontend { policy: Policy::Local.into(), ..node_port(to.1, &[]) };
    declare(world, frontend.clone(), DEFAULTS, world.backends())?;
    world.check_is(Vantage::Client, to, Verdict::Dropped)?;
    world.check_is(Vantage::Node, to, Verdict::Forwarded)?;
    declare(world, frontend, DEFAULTS, Vec::new())?;
    world.check_is(Vantage::Client, to, Verdict::Rejected)?;
    world.check_is(Vantage::Node, to, Verdict::Rejected)
}

/// A client that was refused retries by itself; one that heard nothing would sit out its back-off.
fn then_served(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    declare(world, at(to.0, to.1), DEFAULTS, Vec::new())?;
    world.client().ask_many(2, to)?.is_all("refused")?;
    world.api.set_endpoints("web", world.backends())?;
    let begin = Instant::now();
    let outcome = world.client().ask(to)?;
    ensure!(outcome.by().is_some(), "after endpoints came: {outcome:?}");
    ensure!(begin.elapsed() < Duration::from_secs(1), "served only after a retransmission: {:?}", begin.elapsed());
    Ok(())
}

fn deleted(world: &mut World) -> Result<()> {
    world.declare_network()?;
    declare(world, at(world.vip(10), 80), DEFAULTS, world.backends())?;
    world.check_is(Vantage::Client, (world.vip(10), 80), Verdict::Forwarded)?;
    let reply = world.api.delete("web")?;
    ensure!(reply.existed == Some(true), "{reply:?}");
    from_everywhere(world, Verdict::Rejected)?;
    ensure!(world.api.delete("web")?.existed == Some(false), "deleted twice, existed twice");
    Ok(())
}
