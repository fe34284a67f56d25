//! Removes what kube-proxy left in the kernel, and nothing else: not the kubelet's chains, not anybody's.
//!
//! kube-proxy leaves its rules behind on purpose when it ends. They would go on deciding about packets beside vipd's, so
//! they have to go once. The tools are those that kube-proxy itself needs; one that is missing has left nothing.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, bail};

/// Chains by their whole names, and how the names of the rest begin. KUBE-FIREWALL and KUBE-KUBELET-CANARY are the
/// kubelet's; KUBE-MARK-DROP was.
const CHAINS: &[&str] = &[
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-MARK-MASQ",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
    "KUBE-PROXY-CANARY",
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];
const CHAIN_PREFIXES: &[&str] = &["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-XLB-"];
/// The tables of its newest mode.
const TABLES: &[[&str; 2]] = &[["ip", "kube-proxy"], ["ip6", "kube-proxy"]];
/// The interface that holds virtual addresses in its oldest mode.
const DUMMY: &str = "kube-ipvs0";

/// Removes it; says what was done, a line each.
///
/// # Errors
/// A tool that is there and fails.
pub fn kube_proxy() -> anyhow::Result<Vec<String>> {
    let mut done = Vec::new();
    for family in ["iptables", "ip6tables"] {
        for variant in ["-legacy", "-nft"] {
            done.extend(restore(family, variant)?);
        }
    }
    for [family, table] in TABLES {
        let listed = run("nft", &["list", "table", family, table], None)?;
        if listed.is_some_and(|output| output.status.success()) {
            checked("nft", &["delete", "table", family, table], None)?;
            done.push(format!("nft: table {family} {table}"));
        }
    }
    done.extend(virtual_servers()?);
    if done.is_empty() {
        done.push("nothing of kube-proxy is left here".to_owned());
    }
    Ok(done)
}

/// One family of one back end.
fn restore(family: &str, variant: &str) -> anyhow::Result<Option<String>> {
    let Some(saved) = run(&format!("{family}{variant}-save"), &[], None)? else { return Ok(None) };
    if !saved.status.success() {
        return Ok(None);
    }
    let (script, chains) = removal(&String::from_utf8_lossy(&saved.stdout));
    if chains == 0 {
        return Ok(None);
    }
    checked(&format!("{family}{variant}-restore"), &["--noflush", "--wait", "5"], Some(&script))?;
    Ok(Some(format!("{family}{variant}: {chains} chains")))
}

/// The dummy interface, and with it the virtual servers on its addresses; then the sets.
fn virtual_servers() -> anyhow::Result<Vec<String>> {
    let mut done = Vec::new();
    let shown = run("ip", &["-o", "addr", "show", "dev", DUMMY], None)?;
    if let Some(shown) = shown.filter(|output| output.status.success()) {
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        let addresses: Vec<&str> = text.lines().filter_map(address_of).collect();
        let servers = run("ipvsadm", &["-S", "-n"], None)?.filter(|output| output.status.success());
        let servers = servers.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        for words in servers.lines().filter_map(|line| virtual_server(line, &addresses)) {
            checked("ipvsadm", &["-D", words[0], words[1]], None)?;
            done.push(format!("ipvs: {}", words[1]));
        }
        checked("ip", &["link", "delete", DUMMY], None)?;
        done.push(format!("link {DUMMY}"));
    }
    let sets = run("ipset", &["list", "-n"], None)?.filter(|output| output.status.success());
    let names = sets.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for name in names.lines().filter(|name| name.starts_with("KUBE-")) {
        checked("ipset", &["destroy", name], None)?;
        done.push(format!("ipset {name}"));
    }
    Ok(done)
}

/// "3: kube-ipvs0    inet 10.96.0.1/32 scope global kube-ipvs0"
fn address_of(line: &str) -> Option<&str> {
    let mut words = line.split_ascii_whitespace().skip_while(|word| !word.starts_with("inet"));
    words.nth(1)?.split('/').next()
}

/// "-A -t 10.96.0.1:443 -s rr": how it is deleted, if it is on one of the addresses.
fn virtual_server<'a>(line: &'a str, addresses: &[&str]) -> Option<[&'a str; 2]> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (&"-A", &protocol, &server) = (words.first()?, words.get(1)?, words.get(2)?) else { return None };
    let (address, _) = server.rsplit_once(':')?;
    let address = address.trim_start_matches('[').trim_end_matches(']');
    addresses.contains(&address).then_some([protocol, server])
}

/// The script that removes kube-proxy's chains from what a save printed, and the jumps to them; how many they are.
fn removal(saved: &str) -> (String, usize) {
    let (mut script, mut count) = (String::new(), 0);
    let (mut flush, mut rules, mut delete) = (Vec::new(), Vec::new(), Vec::new());
    for line in saved.lines() {
        if line.starts_with('*') {
            script += &format!("{line}\n");
        } else if let Some(name) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) {
            if is_its(name) {
                flush.push(format!(":{name} - [0:0]\n"));
                delete.push(format!("-X {name}\n"));
            }
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let mut words = rule.split(' ');
            let chain = words.next().unwrap_or_default();
            let jumps = rule.split(" -j ").nth(1).and_then(|rest| rest.split(' ').next());
            if !is_its(chain) && jumps.is_some_and(is_its) {
                rules.push(format!("-D {rule}\n"));
            }
        } else if line == "COMMIT" {
            count += delete.len();
            script.extend(flush.drain(..).chain(rules.drain(..)).chain(delete.drain(..)));
            script += "COMMIT\n";
        }
    }
    (script, count)
}

fn is_its(chain: &str) -> bool {
    CHAINS.contains(&chain) || CHAIN_PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

fn checked(program: &str, arguments: &[&str], input: Option<&str>) -> anyhow::Result<()> {
    let shown = format!("{program} {}", arguments.join(" "));
    match run(program, arguments, input)? {
        Some(output) if output.status.success() => Ok(()),
        Some(output) => bail!("{shown}: {}", String::from_utf8_lossy(&output.stderr).trim()),
        None => bail!("{shown}: there is no such program"),
    }
}

/// Runs a program to its end; `None` if there is none of that name.
fn run(program: &str, arguments: &[&str], input: Option<&str>) -> anyhow::Result<Option<Output>> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| program.to_owned()),
    };
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        stdin.write_all(input.as_bytes()).with_context(|| program.to_owned())?;
    }
    Ok(Some(child.wait_with_output().with_context(|| program.to_owned())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "\
# Generated by iptables-save
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ABC - [0:0]
:MINE - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A PREROUTING -j MINE
-A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SVC-ABC
COMMIT
*filter
:INPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
COMMIT
";

    #[test]
    fn only_kube_proxys_chains_go_and_jumps_to_them_first() {
        let (script, chains) = removal(SAVED);
        assert_eq!(chains, 2);
        assert_eq!(
            script,
            "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-ABC - [0:0]\n\
             -D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
             -X KUBE-SERVICES\n-X KUBE-SVC-ABC\nCOMMIT\n*filter\nCOMMIT\n"
        );
    }

    #[test]
    fn only_virtual_servers_on_its_addresses_go() {
        let line = "3: kube-ipvs0    inet 10.96.0.1/32 scope global kube-ipvs0\\ valid_lft forever";
        assert_eq!(address_of(line), Some("10.96.0.1"));
        assert_eq!(address_of("3: kube-ipvs0    inet6 fd00::1/128 scope global"), Some("fd00::1"));
        let addresses = ["10.96.0.1", "fd00::1"];
        assert_eq!(virtual_server("-A -t 10.96.0.1:443 -s rr", &addresses), Some(["-t", "10.96.0.1:443"]));
        assert_eq!(virtual_server("-A -u [fd00::1]:53 -s rr", &addresses), Some(["-u", "[fd00::1]:53"]));
        assert_eq!(virtual_server("-A -t 192.0.2.1:80 -s rr", &addresses), None);
        assert_eq!(virtual_server("-a -t 10.96.0.1:443 -r 10.1.0.1:443 -m", &addresses), None);
    }
}
