//! What else lives on the host: other programs' rules beside ours, and people who look at ours.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use vipd_proto::v1::explain_response::Verdict;
use vipd_proto::v1::scheduler::Algorithm;
use vipd_proto::v1::{Feature, Frontend};

use crate::api::{at, endpoint, node_port};
use crate::conformance::world::{EVERYWHERE, World};
use crate::conformance::{Case, Over, Vantage};
use crate::lab::{BACKENDS_V4, BACKENDS_V6, Family};

pub(super) const CASES: &[Case] = &[
    Case::new("case_053_no_packet_is_marked_and_no_setting_changed_unsaid", Over::Once, no_marks).needs(&[
        Feature::NodePort,
        Feature::SourceRanges,
        Feature::PolicyLocal,
    ]),
    Case::new("case_054_an_accept_of_the_hosts_does_not_hide_a_refusal", Over::All, accepted_before),
    Case::new("case_060_foreign_tables_of_any_kind_are_no_concern", Over::Once, foreign_tables),
    Case::new("case_064_the_hosts_nft_lists_all_rules", Over::Once, listed).needs(&[Feature::NodePort]),
];

/// Services that use as much of the engine as it has.
fn declare_much(world: &World) -> Result<()> {
    world.declare_network()?;
    let inside = if world.family == Family::V4 { BACKENDS_V4 } else { BACKENDS_V6 };
    let closed = Frontend { source_ranges: vec![inside.to_owned()], ..at(world.vip(11), 80) };
    world.put(&world.spec("web").at(world.vip(10), 80).to(world.backends()))?;
    world.put(&world.spec("closed").frontend(closed).to(world.backends()))?;
    world.put(&world.spec("node").frontend(node_port(30_080, &[])).to(world.backends()))?;
    world.put(&world.spec("none").at(world.vip(12), 80))?;
    if world.has(Feature::Affinity) {
        world.put(&world.spec("affine").at(world.vip(13), 80).to(world.backends()).affine(60))?;
    }
    if world.has(Feature::PortRange) {
        let range = Frontend { port_end: 8010, ..at(world.vip(14), 8001) };
        let endpoints = (0..3).map(|n| endpoint(world.address(Vantage::Backend(n)), 0)).collect();
        world.put(&world.spec("range").frontend(range).to(endpoints))?;
    }
    for (n, algorithm) in (20..).zip([Algorithm::Rr, Algorithm::Random, Algorithm::Sh, Algorithm::Mh]) {
        if world.subject.info.algorithms.contains(&algorithm.into()) {
            world.put(&world.spec(&format!("by-{n}")).at(world.vip(n), 80).by(algorithm).to(world.backends()))?;
        }
    }
    Ok(())
}

/// Every readable setting of the node's network, by path.
fn settings(world: &World) -> Result<Vec<(PathBuf, String)>> {
    fn read(dir: PathBuf, into: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            match fs::read_to_string(&path) {
                Ok(text) => into.push((path, text.trim().to_owned())),
                Err(_) if path.is_dir() => read(path, into),
                Err(_) => {}
            }
        }
    }
    world.lab.node.enter(|| {
        let mut all = Vec::new();
        read(PathBuf::from("/proc/sys/net"), &mut all);
        // A counter, not a setting.
        all.retain(|(path, _)| !path.ends_with("nf_conntrack_count"));
        all.sort();
        all
    })
}

fn no_marks(world: &mut World) -> Result<()> {
    let before = settings(world)?;
    declare_much(world)?;
    world.check_is(Vantage::Client, (world.vip(10), 80), Verdict::Forwarded)?;
    let listed: Vec<String> =
        world.api.info()?.sysctls.into_iter().map(|sysctl| sysctl.name.replace('.', "/")).collect();
    for (was, is) in before.iter().zip(&settings(world)?) {
        let said = listed.iter().any(|name| is.0.ends_with(name));
        ensure!(was == is || said, "{} was {}, is {}, and GetInfo does not say so", is.0.display(), was.1, is.1);
    }
    let rules = world.lab.node.run("nft list ruleset")? + &world.lab.node.run("iptables-legacy-save")?;
    let marking = |line: &&str| line.contains("mark set") || line.contains("MARK") || line.contains("ct mark");
    let marks: Vec<&str> = rules.lines().filter(marking).collect();
    ensure!(marks.is_empty(), "rules that mark packets: {marks:?}");
    Ok(())
}

/// Either the refusal comes all the same, or the node says in its findings that somebody's rule stands before ours.
fn accepted_before(world: &mut World) -> Result<()> {
    world.put(&world.spec("web").at(world.vip(10), 80))?;
    let tool = if world.family == Family::V4 { "iptables" } else { "ip6tables" };
    for chain in ["INPUT", "FORWARD", "OUTPUT"] {
        world.lab.node.run(&format!("{tool} -I {chain} -j ACCEPT"))?;
    }
    let refused = |world: &World| {
        EVERYWHERE.into_iter().try_for_each(|from| world.check_is(from, (world.vip(10), 80), Verdict::Rejected))
    };
    if let Err(error) = refused(world) {
        let findings = world.api.info()?.findings;
        let said = findings.iter().any(|finding| finding.message.contains("ACCEPT"));
        ensure!(said, "hidden, and no finding says so: {error:#}; findings: {findings:?}");
    }
    Ok(())
}

/// Tables that look a little like ours, and use what we do not know.
const FOREIGN: &str = "\
table inet vipd-like {
  set services { type ipv4_addr . inet_proto . inet_service; flags interval, timeout; }
  map verdicts { type mark : verdict; elements = { 1 : accept, 2 : jump other } }
  counter hits { }
  quota most { over 25 mbytes }
  chain other {
    meta mark set 0x4000 counter limit rate 10/second burst 5 packets accept
  }
  chain pre {
    type filter hook prerouting priority raw; policy accept;
    ct state vmap { invalid : accept }
  }
}
table netdev ours { }
table bridge vipd {
  chain c { type filter hook forward priority 0; policy accept; }
}
table ip vipd {
  chain c { type nat hook postrouting priority 101; policy accept; }
}
";

fn foreign_tables(world: &mut World) -> Result<()> {
    let file = world.lab.dir().join("foreign.nft");
    fs::write(&file, FOREIGN)?;
    world.lab.node.run(&format!("nft -f {}", file.display()))?;
    let theirs = |world: &World| -> Result<String> {
        let tables = ["inet vipd-like", "netdev ours", "bridge vipd", "ip vipd"];
        tables.map(|table| world.lab.node.run(&format!("nft list table {table}"))).into_iter().collect()
    };
    let before = theirs(world)?;
    declare_much(world)?;
    world.restart()?;
    world.put(&world.spec("web").at(world.vip(10), 80).to(vec![world.backend(1)]))?;
    world.check_over(Vantage::Client, (world.vip(10), 80), &["b2"])?;
    ensure!(theirs(world)? == before, "foreign tables were changed");
    Ok(())
}

/// `nft` of some versions dies of rules that the kernel takes: then nobody can look.
fn listed(world: &mut World) -> Result<()> {
    declare_much(world)?;
    let text = world.lab.node.run("nft list ruleset")?;
    world.lab.node.run("nft --json list ruleset")?;
    ensure!(text.contains("vipd"), "nothing of ours in the listing:\n{text}");
    Ok(())
}
