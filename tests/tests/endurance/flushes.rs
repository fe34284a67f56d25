//! Another program flushes everything while clients ask. Where the kernel lets us own our table, nobody notices; where it
//! does not, the rules are back within a second, and the journal says what was missing.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use vipd_proto::v1::EventsRequest;
use vipd_proto::v1::events_response::Kind;
use vipd_tests::api::Api;
use vipd_tests::conformance::Subject;
use vipd_tests::conformance::world::eventually;
use vipd_tests::lab::Lab;
use vipd_tests::traffic::{Client, Proto};

use crate::traffic::during;
use crate::{front, number, put, servers, spec, verify};

/// From the flush until a client is served again. The aim is one second; a machine that is busy besides takes longer.
const BOUND: Duration = Duration::from_secs(5);

pub(crate) fn run(subject: &Subject) -> Result<()> {
    let flush = flush_of(subject.variant.name);
    let lab = Lab::new()?;
    let _servers = servers(&lab, Proto::Tcp)?;
    let daemon = subject.variant.start(&lab)?;
    let api = daemon.api()?;
    put(&api, &spec(&lab, Proto::Tcp, &[0, 1, 2]))?;
    let owned = subject.variant.engine == "nftables" && tables_can_be_owned()?;

    let mut longest = Duration::ZERO;
    for round in 1..=number("VIPD_FLUSHES", 5) {
        let failed = during(&lab.client, front(), 2, |traffic| {
            traffic.wait_for(20)?;
            lab.node.run(flush)?;
            longest = longest.max(served_again(&lab)?);
            traffic.wait_for(20)?;
            Ok(traffic.failures().len())
        })?;
        ensure!(!owned || failed == 0, "round {round}: the table is ours alone, yet {failed} requests failed");
        eventually(Duration::from_secs(3), || verify(&api))?;
    }
    let how = if owned { "the table is owned" } else { "the table is not owned" };
    println!("    {flush}: {how}; a client was served again after {longest:?} at most");
    ensure!(longest < BOUND, "served again only after {longest:?}");
    if !owned {
        said(&api)?;
    }
    Ok(())
}

fn flush_of(variant: &str) -> &'static str {
    match variant {
        "iptables-legacy" => "iptables-legacy -t nat -F",
        "iptables-nft" => "iptables-nft -t nat -F",
        _ => "nft flush ruleset",
    }
}

/// Tables that belong to one process, and outlive it: Linux 6.9 (`NFT_TABLE_F_PERSIST`).
fn tables_can_be_owned() -> Result<bool> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut parts = release.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    Ok((parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) >= (6, 9))
}

/// How long nobody is served.
fn served_again(lab: &Lab) -> Result<Duration> {
    let begin = Instant::now();
    let client = Client::new(&lab.client, Proto::Tcp).patience(Duration::from_millis(100)).abortive();
    loop {
        let asked = Instant::now();
        if client.ask(front())?.by().is_some() {
            return Ok(asked - begin);
        }
        ensure!(begin.elapsed() < Duration::from_secs(20), "nobody is served 20 s after the flush");
    }
}

/// The journal names what was missing, and that it is there again.
fn said(api: &Api) -> Result<()> {
    let mut events = api.wait(api.node().events(EventsRequest::default()))?.into_inner();
    let (mut drifted, mut repaired) = (String::new(), false);
    while let Some(event) = api.wait(events.message())? {
        match event.kind() {
            Kind::Drifted => drifted = event.text,
            Kind::Repaired => repaired = true,
            _ => {}
        }
    }
    println!("    the journal: {drifted}");
    ensure!(repaired && !drifted.is_empty(), "drifted {drifted:?}, repaired {repaired}");
    drifted.contains("missing").then_some(()).ok_or_else(|| anyhow!("it does not say what was missing: {drifted:?}"))
}
