//! The lab itself: before it may judge vipd, it must be shown to work.

use std::env;
use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use vipd_tests::lab::{Family, Host, Lab, vip};
use vipd_tests::rings;
use vipd_tests::runner::{self, Selection, Trial};
use vipd_tests::traffic::{Client, Outcome, Proto, Server};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const PROTOS: [Proto; 2] = [Proto::Tcp, Proto::Udp];
/// Asks this program to make a lab with a process in it and to wait for its death.
const HOLD: &str = "hold-a-lab";
/// A command line that nobody else on the machine has.
const MARK: &str = "86397.25";

fn main() -> ExitCode {
    rings::in_the_lab("lab", || {
        if env::args().any(|word| word == HOLD) {
            return hold();
        }
        Ok(runner::conclude(&runner::run(trials(), &Selection::from_args())))
    })
}

fn trials() -> Vec<Trial> {
    vec![
        Trial::new("everybody_reaches_every_back_end", everybody_reaches_every_back_end),
        Trial::new("closed_is_refused_and_a_black_hole_is_silent", closed_is_refused_and_a_black_hole_is_silent),
        Trial::new("what_the_node_does_not_serve_leaves_it", what_the_node_does_not_serve_leaves_it),
        Trial::new("a_neighbour_can_ask_who_has_an_address", a_neighbour_can_ask_who_has_an_address),
        Trial::new("big_transfers_and_half_close", big_transfers_and_half_close),
        Trial::new("it_works_without_root", it_works_without_root),
        Trial::new("nothing_outlives_a_kill", nothing_outlives_a_kill),
        Trial::new("a_fresh_lab_for_each_case_is_affordable", a_fresh_lab_for_each_case_is_affordable),
    ]
}

fn servers(lab: &Lab, family: Family, proto: Proto) -> Result<Vec<Server>> {
    let named = lab.backends.iter().zip(["b1", "b2", "b3"]);
    named.map(|(host, name)| Server::start(host, name, (host.address(family), 8080), proto)).collect()
}

fn everybody_reaches_every_back_end() -> Result<()> {
    let lab = Lab::new()?;
    for family in FAMILIES {
        for proto in PROTOS {
            for server in servers(&lab, family, proto)? {
                for from in [&lab.client, &lab.neighbour, &lab.node, &lab.backends[0]] {
                    let to = (server.address().ip(), 8080);
                    let outcome = Client::new(from, proto).ask(to)?;
                    ensure!(outcome.by() == Some(server.name()), "{} to {to:?}: {outcome:?}", from.name());
                    let own = from.name() != lab.node.name();
                    ensure!(!own || outcome.seen() == Some(from.address(family)), "{outcome:?}");
                }
            }
        }
    }
    Ok(())
}

fn closed_is_refused_and_a_black_hole_is_silent() -> Result<()> {
    let lab = Lab::new()?;
    for family in FAMILIES {
        let silent = lab.black_hole(family, 1)?;
        for proto in PROTOS {
            for from in [&lab.client, &lab.node] {
                let client = Client::new(from, proto).patience(Duration::from_millis(300));
                let closed = client.ask((lab.backends[0].address(family), 81))?;
                ensure!(matches!(closed, Outcome::Refused { .. }), "closed port, {proto:?}: {closed:?}");
                let swallowed = client.ask((silent, 80))?;
                ensure!(swallowed == Outcome::TimedOut, "black hole, {proto:?}: {swallowed:?}");
            }
        }
    }
    Ok(())
}

/// Without vipd a VIP is just an address that the node routes onwards: to the neighbour, its gateway.
fn what_the_node_does_not_serve_leaves_it() -> Result<()> {
    let lab = Lab::new()?;
    lab.neighbour.ip(&format!("addr add {}/32 dev lo\n", vip(Family::V4, 10)))?;
    let elsewhere = Server::start(&lab.neighbour, "elsewhere", (vip(Family::V4, 10), 80), Proto::Tcp)?;
    for from in [&lab.client, &lab.node, &lab.backends[2]] {
        let outcome = Client::new(from, Proto::Tcp).ask((elsewhere.address().ip(), 80))?;
        ensure!(outcome.by() == Some("elsewhere"), "{}: {outcome:?}", from.name());
    }
    Ok(())
}

fn a_neighbour_can_ask_who_has_an_address() -> Result<()> {
    let lab = Lab::new()?;
    for (family, own) in [(Family::V4, "172.16.2.1"), (Family::V6, "fd10:2::1")] {
        ensure!(lab.neighbour.who_has(own.parse()?, "eth0")?.is_some(), "the node does not answer for its own {own}");
        let nobody = vip(family, 77);
        ensure!(lab.neighbour.who_has(nobody, "eth0")?.is_none(), "somebody answers for {nobody}");
        // And it is heard when the node does answer for a VIP: the trap of a `local` route.
        lab.node.ip(&format!("route add local {nobody} dev lo\n"))?;
        let heard = lab.neighbour.who_has(nobody, "eth0")?.is_some();
        ensure!(heard || family == Family::V6, "a local route for {nobody} was not heard");
    }
    Ok(())
}

fn big_transfers_and_half_close() -> Result<()> {
    use vipd_tests::traffic::server::{give, sum, sum_of_pattern};
    let lab = Lab::new()?;
    let servers = servers(&lab, Family::V6, Proto::Tcp)?;
    let (to, total) = ((servers[0].address().ip(), 8080), 3 << 20);
    let connect = || Client::new(&lab.client, Proto::Tcp).open(to)?.map_err(|end| anyhow::anyhow!("{end:?}"));

    let up = connect()?;
    up.send("SUM")?;
    give(up.socket(), total)?;
    up.socket().shutdown(std::net::Shutdown::Write)?;
    let answer = up.line()?;
    ensure!(answer.ends_with(&format!("{total} {:016x}", sum_of_pattern(total))), "{answer}");

    let down = connect()?;
    down.send(&format!("GIVE {total}"))?;
    ensure!(down.line()?.starts_with("b1 "), "no name first");
    let (bytes, hash) = sum(down.rest())?;
    ensure!((bytes, hash) == (total, sum_of_pattern(total)), "{bytes} bytes of {total}");
    Ok(())
}

/// This program again, in a user namespace although we are root here, running one of the trials above.
fn it_works_without_root() -> Result<()> {
    let output = Command::new(env::current_exe()?)
        .arg("everybody_reaches_every_back_end")
        .env_remove("VIPD_LAB_INSIDE")
        .env("VIPD_LAB_ROOTLESS", "1")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(text.contains("1 passed; 0 failed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn hold() -> Result<ExitCode> {
    let lab = Lab::new()?;
    lab.backends[0].spawn(Command::new("sleep").arg(MARK))?.wait()?;
    Ok(ExitCode::SUCCESS)
}

fn nothing_outlives_a_kill() -> Result<()> {
    let mut holder =
        Command::new(env::current_exe()?).arg(HOLD).env_remove("VIPD_LAB_INSIDE").stdout(Stdio::null()).spawn()?;
    wait_until(|| marked().is_ok_and(|found| found)).context("the lab's process never appeared")?;
    holder.kill()?;
    holder.wait()?;
    wait_until(|| marked().is_ok_and(|found| !found)).context("the lab's process outlived its test")
}

/// True when the process of [`hold`] runs somewhere below this sandbox.
fn marked() -> Result<bool> {
    let all = fs::read_dir("/proc")?.flatten();
    Ok(all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok()).any(|line| {
        let line = String::from_utf8_lossy(&line);
        line.starts_with("sleep\0") && line.contains(MARK)
    }))
}

fn wait_until(what: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !what() {
        ensure!(Instant::now() < deadline, "waited 10 s");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Prints a time, and asserts none.
fn a_fresh_lab_for_each_case_is_affordable() -> Result<()> {
    let begin = Instant::now();
    let labs: Vec<Lab> = (0..5).map(|_| Lab::new()).collect::<Result<_>>()?;
    println!("    a lab takes {:?} to make", begin.elapsed() / 5);
    let names: std::collections::BTreeSet<&str> = labs.iter().map(|lab| Host::name(&lab.node)).collect();
    ensure!(names.len() == labs.len(), "labs share a node");
    Ok(())
}
