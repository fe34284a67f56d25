//! Who answers, and how evenly.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Result, ensure};
use vipd_proto::v1::Feature;
use vipd_proto::v1::scheduler::Algorithm;

use crate::api::{endpoint, weighted};
use crate::conformance::world::{EVERYWHERE, PORT, World};
use crate::conformance::{Case, Over, Vantage};
use crate::lab::Family;
use crate::traffic::{Server, Tally};

pub(super) const CASES: &[Case] = &[
    Case::new("a_service_is_served_from_everywhere", Over::All, from_everywhere),
    Case::new("round_robin_is_exact", Over::All, round_robin).by(&[Algorithm::Rr]),
    Case::new("services_called_in_lock_step_do_not_share_a_turn", Over::All, lock_step).by(&[Algorithm::Rr]),
    Case::new("weighted_round_robin_is_exact", Over::All, weighted_round_robin)
        .by(&[Algorithm::Wrr])
        .needs(&[Feature::Weight]),
    Case::new("random_is_even", Over::All, random).by(&[Algorithm::Random]),
    Case::new("random_follows_the_weights", Over::Tcp, weighted_random)
        .by(&[Algorithm::Random])
        .needs(&[Feature::Weight]),
    Case::new("weight_0_gets_nothing_new", Over::All, weight_zero).needs(&[Feature::Weight]),
    Case::new("endpoints_of_the_other_family_are_not_used", Over::All, other_family),
    Case::new("ten_thousand_endpoints_are_all_used", Over::Once, ten_thousand),
];

fn from_everywhere(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    for vantage in EVERYWHERE {
        world.check_over(vantage, to, &["b1", "b2", "b3"])?;
    }
    Ok(())
}

fn round_robin(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()).by(Algorithm::Rr))?;
    world.check(Vantage::Client, to, 90)?.is_exactly(&[("b1", 30), ("b2", 30), ("b3", 30)])
}

/// With a counter that services share, each of two services called in turn is pinned to one endpoint.
fn lock_step(world: &mut World) -> Result<()> {
    let (one, two) = ((world.vip(10), 80), (world.vip(11), 80));
    for (name, at) in [("one", one), ("two", two)] {
        let two_endpoints = vec![world.backend(0), world.backend(1)];
        world.put(&world.spec(name).at(at.0, at.1).to(two_endpoints).by(Algorithm::Rr))?;
    }
    let (mut first, mut second) = (Tally::default(), Tally::default());
    for _ in 0..20 {
        first.add(&world.client().ask(one)?);
        second.add(&world.client().ask(two)?);
    }
    first.is_exactly(&[("b1", 10), ("b2", 10)])?;
    second.is_exactly(&[("b1", 10), ("b2", 10)])
}

fn weighted_round_robin(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let endpoints = (0..3).map(|n| weighted(world.backend(n), n as u32 + 1)).collect();
    world.put(&world.spec("web").at(to.0, to.1).to(endpoints).by(Algorithm::Wrr))?;
    let tally = world.check(Vantage::Client, to, 60)?;
    tally.is_exactly(&[("b1", 10), ("b2", 20), ("b3", 30)])
}

fn random(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()).by(Algorithm::Random))?;
    let tally = world.check(Vantage::Client, to, 300)?;
    tally.is_drawn_from(&[("b1", 1.0), ("b2", 1.0), ("b3", 1.0)])?;
    // Random, not a turn in disguise: in 300 draws some endpoint answers twice running.
    ensure!(tally.order().windows(2).any(|two| two[0] == two[1]), "never twice running: {:?}", tally.order());
    Ok(())
}

fn weighted_random(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let endpoints = [(0, 1), (1, 2), (2, 7)].map(|(n, weight)| weighted(world.backend(n), weight)).to_vec();
    world.put(&world.spec("web").at(to.0, to.1).to(endpoints).by(Algorithm::Random))?;
    world.check(Vantage::Client, to, 400)?.is_drawn_from(&[("b1", 1.0), ("b2", 2.0), ("b3", 7.0)])
}

fn weight_zero(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let endpoints = [0, 1, 1].into_iter().enumerate().map(|(n, weight)| weighted(world.backend(n), weight)).collect();
    world.put(&world.spec("web").at(to.0, to.1).to(endpoints))?;
    world.check_over(Vantage::Client, to, &["b2", "b3"])
}

/// Both families in one list; a frontend uses its own, and without any it refuses.
fn other_family(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let (own, other) = (world.address(Vantage::Backend(0)), other_address(world));
    let both = vec![endpoint(own, PORT), endpoint(other, PORT)];
    world.put(&world.spec("web").at(to.0, to.1).to(both))?;
    world.check(Vantage::Client, to, 6)?.is_all("b1")?;
    world.api.set_endpoints("web", vec![endpoint(other, PORT)])?;
    world.check(Vantage::Client, to, 3)?.is_all("refused")
}

fn other_address(world: &World) -> IpAddr {
    let other = if world.family == Family::V4 { Family::V6 } else { Family::V4 };
    world.lab.backends[1].address(other)
}

/// One host plays them all: it owns 10.2.0.0/16 and says which address was called.
fn ten_thousand(world: &mut World) -> Result<()> {
    const COUNT: u16 = 10_000;
    world.lab.node.ip("route add 10.2.0.0/16 via 10.1.1.2")?;
    world.lab.backends[0].ip("route add local 10.2.0.0/16 dev lo")?;
    let all = Server::start(&world.lab.backends[0], Server::BY_ADDRESS, ("0.0.0.0".parse()?, 9000), world.proto)?;
    let address = |n: u16| IpAddr::from([10, 2, n.to_be_bytes()[0], n.to_be_bytes()[1]]);
    let endpoints = (0..COUNT).map(|n| endpoint(address(n), all.address().port())).collect();
    let to = (world.vip(10), 80);
    world.put(&world.spec("huge").at(to.0, to.1).to(endpoints))?;
    let ran = world.api.get("huge")?.status.unwrap_or_default().algorithm();
    let tally = world.client().ask_many(usize::from(COUNT), to)?;
    if ran == Algorithm::Rr {
        let distinct = tally.order().iter().collect::<BTreeSet<_>>().len();
        ensure!(distinct == usize::from(COUNT), "{distinct} of {COUNT} endpoints answered in one whole turn");
        return Ok(());
    }
    // Too few draws to judge each endpoint; a twentieth of them is judged to 5 % (four standard deviations).
    let mut groups = Tally::default();
    let names: Vec<String> = (0..20).map(|group| format!("group {group}")).collect();
    for name in tally.order() {
        let last: IpAddr = name.parse().map_err(|_| anyhow::anyhow!("{name} instead of an endpoint"))?;
        let IpAddr::V4(last) = last else { continue };
        let number = usize::from(u16::from_be_bytes([last.octets()[2], last.octets()[3]]));
        groups.add(&crate::traffic::Outcome::Answered {
            by: names[number * 20 / usize::from(COUNT)].clone(),
            seen: ([0, 0, 0, 0], 0).into(),
            after: std::time::Duration::ZERO,
        });
    }
    let shares: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
    groups.is_drawn_from(&shares)
}
