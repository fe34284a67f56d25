//! What an engine does to the machine beside its tables: it starts no process, marks no packet, turns no setting.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use vipd_tests::conformance::Subject;
use vipd_tests::lab::{Daemon, Lab, installed};
use vipd_tests::rings;
use vipd_tests::traffic::Proto;

use crate::{put, servers, spec, verify};

/// `strace` of the daemon and its threads, from its start through changes to a repair, shows one execve: its own.
pub(crate) fn processes(subject: &Subject) -> Result<()> {
    if let Err(why) = installed("strace") {
        ensure!(!rings::all_required(), "{why}");
        println!("SKIPPED: processes of the nftables engine: {why}");
        return Ok(());
    }
    let lab = Lab::new()?;
    let _servers = servers(&lab, Proto::Tcp)?;
    let trace = lab.dir().join("trace");
    let strace = ["strace", "-D", "-f", "-qq", "-e", "trace=execve,execveat", "-o", &trace.display().to_string()];
    let arguments = [&["--no-engine-fallback"], subject.variant.flags].concat();
    let mut daemon = Daemon::start_under(&lab, &strace, subject.variant.engine, &arguments)?;
    let api = daemon.api()?;
    for backends in [&[0][..], &[0, 1], &[2], &[]] {
        put(&api, &spec(&lab, Proto::Tcp, backends))?;
    }
    lab.node.run("nft flush ruleset")?;
    verify(&api)?;
    daemon.stop()?;
    let text = fs::read_to_string(trace)?;
    let started: Vec<&str> = text.lines().filter(|line| line.contains("exec")).collect();
    ensure!(started.len() == 1, "expected its own start and nothing else: {started:?}");
    Ok(())
}

/// Every setting of the node's network is what it was, but for those that `GetInfo` lists; no rule sets a mark.
pub(crate) fn settings(subject: &Subject) -> Result<()> {
    let lab = Lab::new()?;
    let _servers = servers(&lab, Proto::Tcp)?;
    let before = lab.node.enter(|| sysctls(Path::new("/proc/sys/net")))?;
    let daemon = subject.variant.start(&lab)?;
    put(&daemon.api()?, &spec(&lab, Proto::Tcp, &[0, 1]))?;
    let after = lab.node.enter(|| sysctls(Path::new("/proc/sys/net")))?;
    let declared: Vec<String> =
        daemon.api()?.info()?.sysctls.into_iter().map(|sysctl| sysctl.name.replace('.', "/")).collect();
    let changed: Vec<_> =
        after.iter().filter(|(path, value)| before.get(*path).is_some_and(|old| old != *value)).collect();
    let silent = changed.iter().filter(|(path, _)| !declared.iter().any(|known| path.ends_with(known)));
    let silent: Vec<_> = silent.collect();
    ensure!(before.len() > 100, "only {} settings were read: this run showed nothing", before.len());
    ensure!(silent.is_empty(), "changed without a word in GetInfo: {silent:?}");
    for (list, marks) in
        [("nft list ruleset", &["mark set"][..]), ("iptables-legacy-save", &["MARK"]), ("iptables-nft-save", &["MARK"])]
    {
        let rules = lab.node.run(list)?;
        let marking = rules.lines().find(|line| marks.iter().any(|mark| line.contains(mark)));
        ensure!(marking.is_none(), "a packet is marked: {marking:?}");
    }
    Ok(())
}

/// Every readable setting below a folder that does not change by itself.
fn sysctls(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sysctls(&path));
        } else if !path.ends_with("nf_conntrack_count")
            && let Ok(value) = fs::read_to_string(&path)
        {
            found.insert(path, value);
        }
    }
    found
}
