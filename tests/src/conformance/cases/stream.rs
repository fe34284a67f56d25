//! TCP as a stream: half-close, big transfers, slow readers, and endpoints that do not answer.

use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use vipd_proto::v1::Feature;
use vipd_proto::v1::scheduler::Algorithm;

use crate::api::endpoint;
use crate::conformance::world::{PORT, World};
use crate::conformance::{Case, Over, Vantage};
use crate::traffic::Flow;
use crate::traffic::server::{give, sum, sum_of_pattern};

pub(super) const CASES: &[Case] = &[
    Case::new("case_109_half_close_is_kept", Over::Tcp, half_close),
    Case::new("big_transfers_arrive_whole_in_both_directions", Over::Tcp, big),
    Case::new("a_slow_reader_loses_nothing", Over::Tcp, slow_reader),
    Case::new("an_endpoint_that_closes_first_closes_the_client", Over::Tcp, endpoint_closes),
    Case::new("case_115_another_endpoint_is_tried_when_one_refuses", Over::Tcp, refusing).needs(&[Feature::Retry]),
    Case::new("another_endpoint_is_tried_when_one_is_silent", Over::Tcp, silent).needs(&[Feature::Retry]),
    Case::new("when_every_endpoint_refuses_the_client_is_told", Over::Tcp, all_refuse),
];

fn connected(world: &World) -> Result<Flow> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    world.client().open(to)?.map_err(|end| anyhow::anyhow!("connecting: {}", end.word()))
}

/// The client ends its half; the server answers only after that, and late.
fn half_close(world: &mut World) -> Result<()> {
    let total = 200_000;
    let flow = connected(world)?;
    flow.send("SUM")?;
    give(flow.socket(), total)?;
    thread::sleep(Duration::from_millis(200));
    flow.socket().shutdown(Shutdown::Write)?;
    let answer = flow.line().context("no answer after the client's half was closed")?;
    ensure!(answer.ends_with(&format!("{total} {:016x}", sum_of_pattern(total))), "not what was sent: {answer}");
    let (left, _) = sum(flow.rest())?;
    ensure!(left == 0, "{left} bytes after the answer");
    // And the other way round: the server ends its half after what it gives, the client's end comes later.
    let flow = connected(world)?;
    flow.send(&format!("GIVE {total}"))?;
    flow.line()?;
    ensure!(sum(flow.rest())? == (total, sum_of_pattern(total)), "a download that ended before the client's half");
    Ok(())
}

fn big(world: &mut World) -> Result<()> {
    let total = 24 << 20;
    let (up, down) = (connected(world)?, connected(world)?);
    let wanted = sum_of_pattern(total);
    thread::scope(|scope| -> Result<()> {
        let sending = scope.spawn(move || -> Result<String> {
            up.send("SUM")?;
            give(up.socket(), total)?;
            up.socket().shutdown(Shutdown::Write)?;
            Ok(up.line()?)
        });
        down.send(&format!("GIVE {total}"))?;
        down.line()?;
        let (bytes, hash) = sum(down.rest())?;
        ensure!((bytes, hash) == (total, wanted), "down: {bytes} of {total} bytes, or changed");
        let answer = sending.join().map_err(|_| anyhow::anyhow!("sender panicked"))??;
        ensure!(answer.ends_with(&format!("{total} {wanted:016x}")), "up: {answer}, expected {total} {wanted:016x}");
        Ok(())
    })
}

fn slow_reader(world: &mut World) -> Result<()> {
    let total = 6 << 20;
    let flow = connected(world)?;
    flow.socket().set_recv_buffer_size(8 << 10)?;
    flow.send(&format!("GIVE {total}"))?;
    flow.line()?;
    // Long enough for every buffer on the way to fill.
    thread::sleep(Duration::from_millis(800));
    let (bytes, hash) = sum(flow.rest())?;
    ensure!((bytes, hash) == (total, sum_of_pattern(total)), "{bytes} of {total} bytes, or changed");
    Ok(())
}

fn endpoint_closes(world: &mut World) -> Result<()> {
    let flow = connected(world)?;
    ensure!(flow.ask().by().is_some(), "no answer");
    flow.send("BYE")?;
    let begin = Instant::now();
    let (left, _) = sum(flow.rest()).unwrap_or_default();
    ensure!(left == 0 && begin.elapsed() < Duration::from_secs(2), "closed only after {:?}", begin.elapsed());
    Ok(())
}

/// Two of three ports are closed. Nobody notices, not even the first client.
fn refusing(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.servers.truncate(1);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()).by(Algorithm::Rr))?;
    for vantage in [Vantage::Client, Vantage::Node] {
        world.from(vantage).ask_many(20, to)?.is_all("b1").with_context(|| format!("{vantage:?}"))?;
    }
    Ok(())
}

/// One endpoint swallows everything. Whoever meets it waits a little; soon it is avoided.
fn silent(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let hole = endpoint(world.lab.black_hole(world.family, 2)?, PORT);
    world.put(&world.spec("web").at(to.0, to.1).to(vec![hole, world.backend(0)]).by(Algorithm::Rr))?;
    let client = world.client().patience(Duration::from_secs(5));
    client.ask_many(4, to)?.is_all("b1")?;
    let begin = Instant::now();
    client.ask_many(10, to)?.is_all("b1")?;
    ensure!(begin.elapsed() < Duration::from_secs(3), "ten more took {:?}: it is not avoided", begin.elapsed());
    Ok(())
}

fn all_refuse(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.servers.clear();
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    let begin = Instant::now();
    let outcome = world.client().ask(to)?;
    ensure!(matches!(outcome.word(), "refused" | "reset"), "all ports closed: {outcome:?}");
    ensure!(begin.elapsed() < Duration::from_secs(3), "told only after {:?}", begin.elapsed());
    Ok(())
}
