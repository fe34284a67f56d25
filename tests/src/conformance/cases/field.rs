//! Reports from the field that fit no other file, by number. What concerns all engines alike runs once.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use tonic::Code;
use vipd_proto::v1::endpoint::State;
use vipd_proto::v1::sync_request::Step;
use vipd_proto::v1::{
    Declare, Endpoint, Feature, ListServicesRequest, SyncBegin, SyncCommit, SyncRequest, SyncResponse, problem,
};

use crate::api::{Reply, Spec, endpoint, in_state, node_port};
use crate::conformance::world::{OWNER, PORT, World, eventually, refused};
use crate::conformance::{Case, Over, Vantage};

pub(super) const CASES: &[Case] = &[
    Case::new("case_017_drained_restarted_and_ready_again_an_endpoint_serves", Over::All, ready_again),
    Case::new("case_021_a_restart_removes_nothing_that_is_declared", Over::Once, restart_with_many),
    Case::new("case_051_a_restart_fails_no_connection", Over::All, restart_under_load)
        .needs(&[Feature::FlowsSurviveRestart]),
    Case::new("case_078_loopback_multicast_and_unspecified_are_no_vips", Over::Once, no_vips),
    Case::new("case_093_an_endpoint_sent_twice_is_merged_in_either_order", Over::All, sent_twice),
    Case::new("case_097_many_services_at_once_and_none_is_lost", Over::Once, many_at_once),
    Case::new("case_098_a_bad_endpoint_is_refused_by_name_and_nothing_applied", Over::Once, bad_endpoints),
    Case::new("case_114_new_connections_do_not_wait_for_a_storm_of_changes", Over::Tcp, storm),
    Case::new("case_123_a_sync_that_would_remove_almost_everything_is_refused", Over::Once, large_removal),
    Case::new("case_123_a_sync_that_breaks_off_changes_nothing", Over::Once, broken_sync),
    Case::new("case_124_every_reply_says_the_epoch", Over::Once, epoch),
    Case::new("case_130_addresses_that_changed_while_we_were_stopped_are_followed", Over::Once, missed_events)
        .needs(&[Feature::NodePort]),
];

fn ready_again(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(vec![world.backend(0)]))?;
    let _open = world.established(to)?;
    world.api.set_endpoints("web", vec![in_state(world.backend(0), State::Draining), world.backend(1)])?;
    world.restart()?;
    world.api.set_endpoints("web", vec![world.backend(0)])?;
    world.check(Vantage::Client, to, 6)?.is_all("b1")
}

fn restart_with_many(world: &mut World) -> Result<()> {
    const COUNT: u8 = 100;
    for n in 0..COUNT {
        world.put(&world.spec(&format!("web-{n}")).at(world.vip(n), 80).to(world.backends()))?;
    }
    world.restart()?;
    // No owner has spoken since. Everything is back all the same, and stays.
    for pause in [0, 500] {
        thread::sleep(Duration::from_millis(pause));
        for n in 0..COUNT {
            let to = (world.vip(n), 80);
            eventually(Duration::from_secs(5), || {
                let outcome = world.client().ask(to)?;
                ensure!(outcome.by().is_some(), "service {n} after a restart: {outcome:?}");
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn restart_under_load(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    for _ in 0..3 {
        world.daemon.kill()?;
        world.client().ask_many(30, to)?.is_drawn_from(&[("b1", 1.0), ("b2", 1.0), ("b3", 1.0)])?;
        world.start_again()?;
        world.check_over(Vantage::Client, to, &["b1", "b2", "b3"])?;
    }
    Ok(())
}

fn no_vips(world: &mut World) -> Result<()> {
    for address in ["127.0.0.1", "224.0.0.1", "0.0.0.0", "169.254.0.1", "::1", "ff02::1", "::"] {
        let reply = world.api.upsert(world.spec("hijack").at(address.parse()?, 53).service);
        let status = reply.err().with_context(|| format!("{address} was accepted as a VIP"))?;
        let code = status.code();
        ensure!(matches!(code, Code::PermissionDenied | Code::InvalidArgument), "{address}: {status:?}");
    }
    ensure!(world.api.get("hijack").is_err(), "refused, and there all the same");
    Ok(())
}

/// A ghost that is terminating and a new one with its address: the READY one counts, whichever was sent first.
fn sent_twice(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let ready = world.backend(0);
    let ghost = in_state(ready.clone(), State::Draining);
    let mut digests = Vec::new();
    for endpoints in [vec![ghost.clone(), ready.clone(), world.backend(1)], vec![world.backend(1), ready, ghost]] {
        let reply = world.api.put(&world.spec("web").at(to.0, to.1).to(endpoints))?;
        let notes = reply.change.unwrap_or_default().notes;
        let said = notes.iter().any(|note| note.code() == problem::Code::DuplicatesMerged);
        ensure!(said || !digests.is_empty(), "nobody said that endpoints were merged: {notes:?}");
        world.check_over(Vantage::Client, to, &["b1", "b2"])?;
        digests.push(world.api.info()?.digest);
    }
    ensure!(digests[0] == digests[1], "the order sent matters: {digests:?}");
    Ok(())
}

fn many_at_once(world: &mut World) -> Result<()> {
    const CALLERS: usize = 4;
    const EACH: usize = 125;
    thread::scope(|scope| -> Result<()> {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let world = &*world;
                scope.spawn(move || -> Result<()> {
                    for n in 0..EACH {
                        let number = caller * EACH + n;
                        let vip = IpAddr::from([10, 96, 1 + (number / 250) as u8, (number % 250) as u8]);
                        world.put(
                            &world.spec(&format!("svc-{number:03}")).at(vip, 80).to(vec![world.backend(number % 3)]),
                        )?;
                    }
                    Ok(())
                })
            })
            .collect();
        callers.into_iter().try_for_each(|caller| caller.join().map_err(|_| anyhow::anyhow!("panicked"))?)
    })?;
    let mut names = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListServicesRequest { page_token, page_size: 200, ..Default::default() };
        let page = world.api.wait(world.api.dataplane().list_services(request))?.into_inner();
        for state in page.services {
            ensure!(state.endpoints.len() == 1, "endpoints lost: {state:?}");
            names.extend(state.service.map(|service| service.name));
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let expected: Vec<String> = (0..CALLERS * EACH).map(|number| format!("svc-{number:03}")).collect();
    ensure!(names == expected, "{} services listed of {}", names.len(), expected.len());
    for number in (0..CALLERS * EACH).step_by(61) {
        let vip = IpAddr::from([10, 96, 1 + (number / 250) as u8, (number % 250) as u8]);
        world.client().ask_many(1, (vip, 80))?.is_all(world.servers[number % 3].name())?;
    }
    Ok(())
}

fn bad_endpoints(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    let before = world.api.info()?.revision;
    let bad = |address: &str, port| Endpoint { address: address.to_owned(), port, ..Default::default() };
    for (endpoint, field) in [
        (bad("10.1.1.2", 0), "port"),
        (bad("10.1.1.2", 65_536), "port"),
        (bad("", 80), "address"),
        (bad("0.0.0.0", 80), "address"),
        (bad("224.0.0.1", 80), "address"),
        (bad("010.0.0.1", 80), "address"),
        (bad("::ffff:10.0.0.1", 80), "address"),
        (bad("fe80::1%eth0", 80), "address"),
        (Endpoint { weight: Some(65_536), ..bad("10.1.1.2", 80) }, "weight"),
        (Endpoint { state: 99, ..bad("10.1.1.2", 80) }, "state"),
    ] {
        let what = format!("{endpoint:?}");
        let reply = world.api.set_endpoints("web", vec![world.backend(0), endpoint]);
        let problem = refused(reply, Code::InvalidArgument, problem::Code::Invalid).context(what.clone())?;
        ensure!(problem.field == format!("endpoints[1].{field}"), "{what}: field {:?}", problem.field);
    }
    ensure!(world.api.info()?.revision == before, "a refused call changed something");
    world.check_over(Vantage::Client, to, &["b1", "b2", "b3"])
}

/// Changes to other services at full speed; no new connection waits for them as long as a lost packet would.
fn storm(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    let end = Instant::now() + Duration::from_secs(3);
    thread::scope(|scope| -> Result<()> {
        let world = &*world;
        let storm = scope.spawn(move || -> Result<u32> {
            let mut changes = 0;
            while Instant::now() < end {
                let name = format!("other-{}", changes % 200);
                let n = (changes % 200) as u8 + 20;
                world.put(&world.spec(&name).at(world.vip(n), 81).to(vec![world.backend(changes as usize % 3)]))?;
                changes += 1;
            }
            Ok(changes)
        });
        let mut slowest = Duration::ZERO;
        while Instant::now() < end {
            let tally = world.client().ask_many(20, to)?;
            ensure!(tally.answered() == tally.total(), "{tally}");
            slowest = slowest.max(tally.slowest());
        }
        let changes = storm.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        ensure!(slowest < Duration::from_secs(1), "{changes} changes; the slowest of the connections took {slowest:?}");
        Ok(())
    })
}

/// A whole Sync: what is declared, and how it is committed. Without a commit the stream just ends.
fn sync(world: &World, begin: SyncBegin, specs: &[Spec], commit: bool) -> Reply<SyncResponse> {
    let declares = specs
        .iter()
        .map(|spec| Step::Declare(Declare { service: Some(spec.service.clone()), endpoints: spec.endpoints.clone() }));
    let commit = commit.then_some(Step::Commit(SyncCommit { declared: specs.len() as u64 }));
    let steps: Vec<SyncRequest> = [Step::Begin(begin)]
        .into_iter()
        .chain(declares)
        .chain(commit)
        .map(|step| SyncRequest { step: Some(step) })
        .collect();
    let request = tokio_stream::iter(steps);
    world.api.wait(async { world.api.dataplane().sync(request).await }).map(tonic::Response::into_inner)
}

fn begin() -> SyncBegin {
    SyncBegin { owner: OWNER.to_owned(), ..Default::default() }
}

fn thirty(world: &World) -> Vec<Spec> {
    (0..30).map(|n| world.spec(&format!("web-{n:02}")).at(world.vip(n), 80).to(vec![world.backend(0)])).collect()
}

fn large_removal(world: &mut World) -> Result<()> {
    let all = thirty(world);
    let reply = sync(world, begin(), &all, true)?;
    ensure!(reply.created == 30 && reply.removed == 0, "{reply:?}");
    world.client().ask_many(2, (world.vip(7), 80))?.is_all("b1")?;
    let empty = sync(world, begin(), &[], true);
    refused(empty, Code::FailedPrecondition, problem::Code::LargeRemoval)?;
    world.client().ask_many(2, (world.vip(7), 80))?.is_all("b1")?;
    // A few may go; all may go when that is said.
    let reply = sync(world, begin(), &all[1..], true)?;
    ensure!((reply.unchanged, reply.removed) == (29, 1), "{reply:?}");
    let reply = sync(world, SyncBegin { allow_large_removal: true, ..begin() }, &[], true)?;
    ensure!(reply.removed == 29, "{reply:?}");
    ensure!(world.client().ask((world.vip(7), 80))?.by().is_none(), "removed by Sync, and still served");
    Ok(())
}

fn broken_sync(world: &mut World) -> Result<()> {
    let to = (world.vip(3), 80);
    sync(world, begin(), &thirty(world), true)?;
    let before = world.api.info()?;
    let moved = world.spec("web-03").at(to.0, to.1).to(vec![world.backend(1)]);
    let broken = sync(world, begin(), &[moved], false);
    ensure!(broken.is_err(), "a Sync without commit was accepted: {broken:?}");
    let after = world.api.info()?;
    ensure!(after.digest == before.digest && after.revision == before.revision, "{before:?} {after:?}");
    world.client().ask_many(3, to)?.is_all("b1")
}

fn epoch(world: &mut World) -> Result<()> {
    let info = world.api.info()?;
    ensure!(!info.epoch.is_empty(), "GetInfo without epoch");
    let web = world.spec("web").at(world.vip(10), 80).to(world.backends());
    for _ in 0..2 {
        let change = world.api.put(&web)?.change.unwrap_or_default();
        ensure!(change.epoch == info.epoch, "{change:?}, GetInfo says {}", info.epoch);
    }
    let change = world.api.delete("web")?.change.unwrap_or_default();
    ensure!(change.epoch == info.epoch && change.in_force == Some(true), "{change:?}");
    Ok(())
}

/// Stopped for two seconds while addresses flap a thousand times: the event socket overflows, and is read anew.
fn missed_events(world: &mut World) -> Result<()> {
    world.put(&world.spec("web").frontend(node_port(30_080, &[])).to(world.backends()))?;
    world.daemon.signal(Signal::SIGSTOP)?;
    let flap = "addr add 172.16.1.9/24 dev client\naddr del 172.16.1.9/24 dev client\n";
    world.lab.node.ip(&flap.repeat(1000))?;
    world.lab.node.ip("addr add 172.16.1.9/24 dev client")?;
    thread::sleep(Duration::from_millis(500));
    world.daemon.signal(Signal::SIGCONT)?;
    let to = (IpAddr::from([172, 16, 1, 9]), 30_080);
    eventually(Duration::from_secs(5), || {
        let outcome = world.client().patience(Duration::from_millis(300)).ask(to)?;
        ensure!(outcome.by().is_some(), "an address that came while vipd was stopped: {outcome:?}");
        Ok(())
    })?;
    // And it goes on listening.
    world.lab.node.ip("addr add 172.16.1.10/24 dev client")?;
    eventually(Duration::from_secs(5), || {
        let outcome = world.client().ask((IpAddr::from([172, 16, 1, 10]), 30_080))?;
        ensure!(outcome.by().is_some(), "an address that came later: {outcome:?}");
        Ok(())
    })?;
    let other = vec![endpoint(world.address(Vantage::Backend(2)), PORT)];
    world.api.set_endpoints("web", other)?;
    world.client().ask_many(4, to)?.is_all("b3")
}
