//! Schedulers that count active connections. Connections are held open, so that every next choice is determined.

use anyhow::{Result, ensure};
use vipd_proto::v1::Feature;
use vipd_proto::v1::scheduler::Algorithm;

use crate::api::weighted;
use crate::conformance::world::{World, eventually};
use crate::conformance::{Case, Over};
use crate::traffic::Flow;

pub(super) const CASES: &[Case] = &[
    Case::new("least_connections_fills_the_emptiest", Over::Tcp, least).by(&[Algorithm::Lc]),
    Case::new("weighted_least_connections_fills_by_weight", Over::Tcp, weighted_least)
        .by(&[Algorithm::Wlc])
        .needs(&[Feature::Weight]),
    Case::new("shortest_expected_delay_fills_by_weight", Over::Tcp, shortest)
        .by(&[Algorithm::Sed])
        .needs(&[Feature::Weight]),
    Case::new("never_queue_takes_idle_endpoints_first", Over::Tcp, never_queue)
        .by(&[Algorithm::Nq])
        .needs(&[Feature::Weight]),
    Case::new("overflow_fills_the_highest_weight_first", Over::Tcp, overflow)
        .by(&[Algorithm::Ovf])
        .needs(&[Feature::Weight]),
    Case::new("power_of_two_choices_avoids_the_busiest", Over::Tcp, two_choices).by(&[Algorithm::P2c]),
    Case::new("closed_connections_are_not_counted", Over::Tcp, closed_are_forgotten).by(&[Algorithm::Lc]),
];

type Held = Vec<(Flow, String)>;

/// How many held connections each back end has.
fn counts(held: &[&Held]) -> [usize; 3] {
    let at = |name| held.iter().flat_map(|some| some.iter()).filter(|(_, by)| by == name).count();
    ["b1", "b2", "b3"].map(at)
}

/// A service by this algorithm on these weights, and so many connections, one after the other.
fn fill(world: &World, algorithm: Algorithm, weights: [u32; 3], connections: usize) -> Result<Held> {
    let to = (world.vip(10), 80);
    let endpoints = weights.iter().enumerate().map(|(n, &weight)| weighted(world.backend(n), weight)).collect();
    world.put(&world.spec("web").at(to.0, to.1).to(endpoints).by(algorithm))?;
    world.hold(connections, to)
}

fn least(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(vec![world.backend(0)]).by(Algorithm::Lc))?;
    let before = world.hold(4, to)?;
    world.api.set_endpoints("web", world.backends())?;
    let after = world.hold(8, to)?;
    let counted = counts(&[&before, &after]);
    ensure!(counted == [4, 4, 4], "four at b1, then eight more by least connections: {counted:?}");
    Ok(())
}

fn weighted_least(world: &mut World) -> Result<()> {
    let counted = counts(&[&fill(world, Algorithm::Wlc, [1, 1, 2], 16)?]);
    ensure!(counted == [4, 4, 8], "16 connections by weights 1, 1, 2: {counted:?}");
    Ok(())
}

fn shortest(world: &mut World) -> Result<()> {
    let [a, b, c] = counts(&[&fill(world, Algorithm::Sed, [1, 1, 2], 16)?]);
    // (active + 1) / weight is smallest: 4, 4, 8 up to who wins a tie.
    let near = |count: usize, due: usize| count.abs_diff(due) <= 1;
    ensure!(near(a, 4) && near(b, 4) && near(c, 8), "16 connections by weights 1, 1, 2: {a} {b} {c}");
    Ok(())
}

/// SED would give the first three to weight 10; NQ leaves nobody idle.
fn never_queue(world: &mut World) -> Result<()> {
    let counted = counts(&[&fill(world, Algorithm::Nq, [1, 1, 10], 3)?]);
    ensure!(counted == [1, 1, 1], "three connections to three idle endpoints: {counted:?}");
    Ok(())
}

fn overflow(world: &mut World) -> Result<()> {
    let held = fill(world, Algorithm::Ovf, [3, 2, 1], 6)?;
    let order: Vec<&str> = held.iter().map(|(_, by)| by.as_str()).collect();
    ensure!(order == ["b1", "b1", "b1", "b2", "b2", "b3"], "by weights 3, 2, 1 as capacity: {order:?}");
    Ok(())
}

fn two_choices(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(vec![world.backend(0)]).by(Algorithm::P2c))?;
    let busy = world.hold(30, to)?;
    world.api.set_endpoints("web", world.backends())?;
    let after = counts(&[&world.hold(30, to)?]);
    // Of two different ones the busier never wins.
    ensure!(after[0] == 0 && after[1].abs_diff(after[2]) <= 10, "b1 holds {}, then 30 more: {after:?}", busy.len());
    Ok(())
}

fn closed_are_forgotten(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(vec![world.backend(0)]).by(Algorithm::Lc))?;
    drop(world.hold(5, to)?);
    world.api.set_endpoints("web", world.backends())?;
    // The ends travel through the node: soon, not at once.
    eventually(std::time::Duration::from_secs(3), || {
        let counted = counts(&[&world.hold(3, to)?]);
        ensure!(counted == [1, 1, 1], "nobody is busy any more: {counted:?}");
        Ok(())
    })
}
