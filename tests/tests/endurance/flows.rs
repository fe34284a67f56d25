//! UDP flows, which live in the kernel's connection tracking: many of them while endpoints roll, and more than fit.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use vipd_tests::conformance::Subject;
use vipd_tests::conformance::world::eventually;
use vipd_tests::lab::{Family, Lab};
use vipd_tests::traffic::{Client, Proto, Server};

use crate::traffic::Lasting;
use crate::{NAME, PORT, front, number, put, servers, spec, verify};

/// Flows from one address: its ports.
const PER_ADDRESS: u64 = 50_000;
/// The first of those ports.
const FIRST_PORT: u16 = 10_000;

/// Rolls a service of many flows from one back end to the next: when the call is answered, no flow leads to the old one.
pub(crate) fn roll(subject: &Subject) -> Result<()> {
    let flows = number("VIPD_FLOWS", 5_000);
    let lab = Lab::new()?;
    let servers = servers(&lab, Proto::Udp)?;
    let daemon = subject.variant.start(&lab)?;
    let api = daemon.api()?;
    put(&api, &spec(&lab, Proto::Udp, &[0]))?;
    let sources = sources(&lab, flows)?;
    let begin = Instant::now();
    for source in &sources {
        ask(&lab, *source, "b1")?;
    }
    println!("    {flows} flows in {:.1} s", begin.elapsed().as_secs_f64());

    let mut slowest = Duration::ZERO;
    for (next, name) in [(1, "b2"), (2, "b3"), (0, "b1")] {
        let begin = Instant::now();
        api.set_endpoints(NAME, spec(&lab, Proto::Udp, &[next]).endpoints).map_err(|status| anyhow!("{status}"))?;
        slowest = slowest.max(begin.elapsed());
        let late: u64 = servers.iter().filter(|server| server.name() != name).map(|server| server.served()).sum();
        // The same addresses and ports go on, and meet the new one at once: every one of a sample.
        let sample = sources.iter().step_by((sources.len() / 1000).max(1));
        for source in sample {
            ask(&lab, *source, name)?;
        }
        let after: u64 = servers.iter().filter(|server| server.name() != name).map(|server| server.served()).sum();
        ensure!(after == late, "{} datagrams reached back ends that had left", after - late);
    }
    println!("    a roll took {slowest:?} at most");
    verify(&api)
}

/// Client addresses and ports, as many as there are to be flows.
fn sources(lab: &Lab, flows: u64) -> Result<Vec<SocketAddr>> {
    let mut sources = Vec::new();
    for n in 0..flows.div_ceil(PER_ADDRESS) {
        let address = Ipv4Addr::new(172, 16, 1, 100 + u8::try_from(n)?);
        lab.client.ip(&format!("addr add {address}/24 dev eth0\n"))?;
        let ports = PER_ADDRESS.min(flows - n * PER_ADDRESS);
        sources.extend((0..u16::try_from(ports)?).map(|port| SocketAddr::new(address.into(), FIRST_PORT + port)));
    }
    Ok(sources)
}

/// One datagram and its answer; a lost one is sent again, as a UDP client would.
fn ask(lab: &Lab, source: SocketAddr, by: &str) -> Result<()> {
    let socket = lab.client.enter(|| UdpSocket::bind(source))?.with_context(|| format!("binding {source}"))?;
    socket.connect(front())?;
    let (mut buffer, mut error) = ([0; 256], None);
    for patience in [100, 400, 1600] {
        socket.set_read_timeout(Some(Duration::from_millis(patience)))?;
        socket.send(b"ECHO hello\n")?;
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let answer = String::from_utf8_lossy(&buffer[..length]);
                ensure!(answer.starts_with(&format!("{by} ")), "{source} expected {by}, was answered {answer:?}");
                return Ok(());
            }
            Err(other) => error = Some(other),
        }
    }
    Err(error.map_or_else(|| anyhow!("never asked"), Into::into)).with_context(|| format!("{source} to {by}"))
}

/// A table that takes no more flows: what is established goes on, changes are made, and with room everything is served.
///
/// The limit is the whole machine's and not ours to lower, so it is reached by that many flows: long form only.
pub(crate) fn full_table(subject: &Subject) -> Result<()> {
    let lab = Lab::new()?;
    let _servers = servers(&lab, Proto::Tcp)?;
    let daemon = subject.variant.start(&lab)?;
    let api = daemon.api()?;
    put(&api, &spec(&lab, Proto::Tcp, &[0]))?;
    let lasting = Lasting::open(&lab.client, front())?;
    let client = Client::new(&lab.client, Proto::Tcp).patience(Duration::from_millis(300));
    let unserved = |to| (0..20).filter(|_| client.ask(to).is_ok_and(|outcome| outcome.by().is_none())).count();

    let most = lab.node.enter(|| std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max"))??;
    fill(&lab, most.trim().parse()?)?;
    let refused = unserved((lab.backends[1].address(Family::V4), PORT));
    println!(
        "    {} flows: {refused} of 20 new connections fail without vipd, {} with it",
        most.trim(),
        unserved(front())
    );
    ensure!(refused > 0, "the table never was full: this run showed nothing");
    lasting.holds()?;
    put(&api, &spec(&lab, Proto::Tcp, &[1]))?;
    verify(&api)?;
    lab.node.run("conntrack -D -p udp")?;
    eventually(Duration::from_secs(5), || {
        let outcome = client.ask(front())?;
        ensure!(outcome.by() == Some("b2"), "with room again: {outcome:?}");
        Ok(())
    })?;
    lasting.holds()
}

/// Flows through the node that belong to nobody. Those that are answered once more after two seconds are "assured" and do
/// not make room for new ones.
fn fill(lab: &Lab, most: u64) -> Result<()> {
    let to = (lab.backends[2].address(Family::V4), PORT);
    let _echo = Server::start(&lab.backends[2], "filler", to, Proto::Udp)?;
    let sources = sources(lab, most + 1000)?;
    for round in 0..2 {
        for source in &sources {
            let socket = lab.client.enter(|| UdpSocket::bind(source))?.with_context(|| format!("binding {source}"))?;
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            socket.connect(to)?;
            socket.send(b"ECHO fill\n")?;
            if socket.recv(&mut [0; 128]).is_err() && round == 1 {
                return Ok(());
            }
        }
        thread::sleep(Duration::from_secs(2));
    }
    Ok(())
}
