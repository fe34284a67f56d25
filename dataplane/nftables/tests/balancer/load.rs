//! What a full load, a start with nothing changed and one change cost, at `VIPD_NFT_LOAD` services of
//! `VIPD_NFT_ENDPOINTS` endpoints (a few by default; the figures that are published come from the benches).

use std::{env, time::Instant};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};
use vipd_engine::Runner;
use vipd_model::{Selected, ServiceKey};
use vipd_netlink::testing::in_namespace;
use vipd_nftables::Nftables;

use crate::{lab::Lab, service::*};

fn number(name: &str, default: usize) -> usize {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn service(n: usize, endpoints: usize) -> (ServiceKey, Option<Selected>) {
    let mut service = tcp(&format!("namespace-{}/service-{n}", n % 100))
        .vip(&format!("10.{}.{}.{}", 96 + (n >> 16), n >> 8 & 255, n & 255), 80);
    for e in 0..endpoints {
        let at = n * endpoints + e;
        service = service.to(&[&format!("10.{}.{}.{}", 128 + (at >> 16), at >> 8 & 255, at & 255)]);
    }
    (service.key(), Some(service.selected()))
}

/// Milliseconds of CPU of this thread, user and system.
fn cpu() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    usage.user_time().num_milliseconds() + usage.system_time().num_milliseconds()
}

fn timed<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let (start, before) = (Instant::now(), cpu());
    let value = run();
    println!("{what}: {} ms CPU, {:.1} ms", cpu() - before, start.elapsed().as_secs_f64() * 1e3);
    value
}

#[test]
fn a_load_a_start_and_a_change() {
    in_namespace(|| {
        let (services, endpoints) = (number("VIPD_NFT_LOAD", 300), number("VIPD_NFT_ENDPOINTS", 5));
        let batch: Vec<_> = (0..services).map(|n| service(n, endpoints)).collect();
        let keys: Vec<_> = batch.iter().map(|(key, _)| key.clone()).collect();
        let again = batch.clone();
        let mut runner = timed("open", || started(Nftables::open().unwrap(), Lab::node()));
        let made = timed("load", || runner.make(batch));
        assert!(made.outcomes.iter().all(|(_, outcome)| outcome.is_ok()));
        timed("finish", || runner.finish(&keys));
        for round in 0..3 {
            let name = format!("change {round}");
            timed(&name, || change(&mut runner, vec![service(services / 2, endpoints + 1 + round)]).unwrap());
        }
        let mut times: Vec<f64> = (0..100)
            .map(|n| {
                let batch = vec![service(n * services / 100, endpoints + 1 - n % 2)];
                let start = Instant::now();
                change(&mut runner, batch).unwrap();
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("one endpoint more or less: p50 {:.0} µs, p99 {:.0} µs", times[50], times[98]);
        let mut times: Vec<f64> = (0..100)
            .map(|n| {
                let batch = vec![service(services + n, endpoints)];
                let start = Instant::now();
                change(&mut runner, batch).unwrap();
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("one service more: p50 {:.0} µs, p99 {:.0} µs", times[50], times[98]);
        drop(runner);
        let mut runner = timed("start: read", || Runner::start(Nftables::open().unwrap()).unwrap());
        timed("start: node", || runner.set_node(Lab::node()).unwrap());
        let made = timed("start: services", || runner.make(again));
        assert!(made.outcomes.iter().all(|(_, outcome)| outcome.is_ok()));
    });
}
