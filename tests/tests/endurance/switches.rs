//! The default engine changes again and again under traffic: nobody's request fails, and every connection stays with the
//! engine that it began with.

use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use vipd_proto::v1::{Engine, SetDefaultEngineRequest};
use vipd_tests::conformance::world::say;
use vipd_tests::lab::{Daemon, Lab};
use vipd_tests::rings;
use vipd_tests::traffic::Proto;

use crate::traffic::{Lasting, during};
use crate::{Random, front, number, put, servers, spec, verify};

/// Connections that live through all that follows; the oldest are closed when there are more.
const LASTING: usize = 60;

pub(crate) fn run() -> Result<()> {
    let mut random = Random::new()?;
    let lab = Lab::new()?;
    let _servers = servers(&lab, Proto::Tcp)?;
    let daemon = Daemon::start(&lab, "userspace", &[])?;
    let api = daemon.api()?;
    let usable = api.info()?.engines.into_iter().filter(|engine| engine.usable).map(|engine| engine.engine());
    // IPVS and eBPF have trials of their own where they are built in.
    let known = [Engine::Userspace, Engine::Iptables, Engine::Nftables];
    let engines: Vec<Engine> = usable.filter(|engine| known.contains(engine)).collect();
    if engines.len() < 2 {
        ensure!(!rings::all_required(), "there is nothing to switch between: {engines:?}");
        println!("SKIPPED: switching engines: this node has only {engines:?}");
        return Ok(());
    }
    put(&api, &spec(&lab, Proto::Tcp, &[0, 1, 2]))?;

    let (mut now, mut lasting, mut slowest) = (Engine::Userspace, Vec::new(), 0.0f64);
    during(&lab.client, front(), 2, |traffic| {
        let switches = number("VIPD_SWITCHES", 8);
        for switch in 1..=switches {
            lasting.extend((0..3).map(|_| Lasting::open(&lab.client, front())).collect::<Result<Vec<_>>>()?);
            lasting.drain(..lasting.len().saturating_sub(LASTING));
            let others: Vec<Engine> = engines.iter().copied().filter(|engine| *engine != now).collect();
            let next = others[usize::try_from(random.below(others.len() as u64))?];
            let (from, begin) = (now, Instant::now());
            let request = SetDefaultEngineRequest { engine: next.into(), ..Default::default() };
            let reply = api.wait(api.node().set_default_engine(request));
            let reply = reply.map_err(|status| anyhow!("to {next:?}: {}", say(&status)))?.into_inner();
            ensure!(reply.to() == next && reply.services_moved == 1, "{reply:?}");
            slowest = slowest.max(begin.elapsed().as_secs_f64());
            now = next;
            traffic.wait_for(20)?;
            let check = || -> Result<()> {
                traffic.was_served()?;
                lasting.iter().try_for_each(Lasting::holds)?;
                verify(&api)
            };
            check().with_context(|| format!("switch {switch}, {from:?} → {next:?}; log:\n{}", daemon.log_tail()))?;
        }
        let served = traffic.served();
        println!("    {switches} switches among {engines:?}, {served} requests, none failed; slowest {slowest:.2} s");
        Ok(())
    })
}
