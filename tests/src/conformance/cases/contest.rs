//! Two services, one frontend (case 77), and loops.

use anyhow::{Result, ensure};
use tonic::Code;
use vipd_proto::v1::problem;
use vipd_proto::v1::service::Contest;

use crate::api::{Spec, endpoint};
use crate::conformance::world::{World, refused};
use crate::conformance::{Case, Over, Vantage};

pub(super) const CASES: &[Case] = &[
    Case::new("case_077_a_held_frontend_is_refused_and_its_holder_named", Over::All, refuses),
    Case::new("case_077_a_waiting_service_takes_over_when_the_holder_goes", Over::All, waits),
    Case::new("case_077_precedence_decides_not_the_order_of_arrival", Over::All, precedence),
    Case::new("frontends_swap_in_one_call", Over::All, swap),
    Case::new("an_endpoint_that_is_a_frontend_is_a_loop", Over::Once, no_loops),
];

/// `name` at VIP 10, served by back end `n`.
fn claim(world: &World, name: &str, n: usize) -> Spec {
    world.spec(name).at(world.vip(10), 80).to(vec![world.backend(n)])
}

fn waiting(world: &World, name: &str, n: usize, precedence: u64) -> Spec {
    claim(world, name, n).with(|service| {
        service.on_contest = Contest::Wait.into();
        service.precedence = precedence;
    })
}

fn served_by(world: &World, name: &str) -> Result<()> {
    world.check(Vantage::Client, (world.vip(10), 80), 4)?.is_all(name)
}

fn refuses(world: &mut World) -> Result<()> {
    world.put(&claim(world, "first", 0))?;
    let reply = world.api.upsert(claim(world, "second", 1).service);
    let problem = refused(reply, Code::AlreadyExists, problem::Code::FrontendTaken)?;
    ensure!(problem.message.contains("first"), "the holder is not named: {problem:?}");
    ensure!(problem.field.contains("frontends[0]"), "the field is not named: {problem:?}");
    ensure!(world.api.get("second").is_err(), "refused, and there all the same");
    served_by(world, "b1")
}

fn waits(world: &mut World) -> Result<()> {
    world.put(&claim(world, "first", 0))?;
    world.put(&waiting(world, "second", 1, 0))?;
    let status = world.api.get("second")?.status.unwrap_or_default();
    ensure!(status.waiting_frontends == [0], "{status:?}");
    served_by(world, "b1")?;
    world.api.delete("first")?;
    served_by(world, "b2")?;
    let status = world.api.get("second")?.status.unwrap_or_default();
    ensure!(status.waiting_frontends.is_empty(), "{status:?}");
    Ok(())
}

fn precedence(world: &mut World) -> Result<()> {
    world.put(&waiting(world, "late", 0, 2000))?;
    served_by(world, "b1")?;
    world.put(&waiting(world, "early", 1, 1000))?;
    served_by(world, "b2")?;
    world.restart()?;
    served_by(world, "b2")?;
    world.api.delete("early")?;
    served_by(world, "b1")
}

fn swap(world: &mut World) -> Result<()> {
    let (one, two) = ((world.vip(10), 80), (world.vip(11), 80));
    let at = |name: &str, to: (std::net::IpAddr, u16), n| world.spec(name).at(to.0, to.1).to(vec![world.backend(n)]);
    world.put(&at("one", one, 0))?;
    world.put(&at("two", two, 1))?;
    world.api.apply(vec![at("one", two, 0).upsert(), at("two", one, 1).upsert()])?;
    world.check(Vantage::Client, one, 4)?.is_all("b2")?;
    world.check(Vantage::Client, two, 4)?.is_all("b1")
}

fn no_loops(world: &mut World) -> Result<()> {
    world.put(&claim(world, "first", 0))?;
    world.api.upsert(world.spec("second").at(world.vip(11), 80).service)?;
    let reply = world.api.set_endpoints("second", vec![endpoint(world.vip(10), 80)]);
    let problem = refused(reply, Code::InvalidArgument, problem::Code::Invalid)?;
    ensure!(problem.field.contains("endpoints[0]"), "{problem:?}");
    Ok(())
}
