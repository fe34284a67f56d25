//! The guard's objects and the real kernel: equal after every change, adopted, repaired, removed, readable by `nft`.

use crate::common::*;
use vipd_engine::{InvalidPackets, Node, Objects, Operation, Runner, Steps};
use vipd_model::{Family, PortRange, Protocol};
use vipd_netlink::testing::{in_namespace, run};
use vipd_nftables::{Guard, Key, Object, Value};

const TCP: Protocol = Protocol::Tcp;
const UDP: Protocol = Protocol::Udp;

/// A bit of everything.
fn everything(runner: &mut Runner<Guard>) {
    let web = vip("10.96.0.1", TCP, 80);
    put(runner, "web", vec![capture(web.clone(), 15001), allow(web, &["10.1.0.0/24", "192.0.2.7/32"])]);
    put(
        runner,
        "web6",
        vec![
            capture(vip("fd96::1", TCP, 80), 15001),
            allow(vip("fd96::1", TCP, 80), &["fd01::/64", "fd02::7/128", "::/0"]),
        ],
    );
    put(
        runner,
        "dns",
        vec![capture(vip("10.96.0.10", UDP, 53), 20053), capture(node_port(Family::V4, UDP, 30053), 20054)],
    );
    let admin = node_port(Family::V6, TCP, 30080);
    put(runner, "admin", vec![capture(admin.clone(), 15001), allow(admin, &["fd01::/64"])]);
    put(runner, "empty", vec![reject(vip("10.96.0.2", TCP, 80)), silence(node_port(Family::V4, TCP, 30081))]);
    let mut range = vip("10.96.0.3", TCP, 5000);
    range.ports = PortRange { first: 5000, last: 5009 };
    put(runner, "range", vec![capture(range, 15001)]);
}

fn wanted_is_in_kernel(runner: &mut Runner<Guard>) {
    let wanted = runner.wanted();
    let observed = runner.steps_mut().observe().unwrap().objects;
    let differ: Vec<_> = wanted.iter().filter(|(key, value)| observed.get(key) != Some(value)).collect();
    assert!(
        differ.is_empty(),
        "{differ:#?}\nin the kernel: {:#?}",
        differ.iter().map(|(k, _)| observed.get(k)).collect::<Vec<_>>()
    );
    let more: Vec<_> = observed.keys().filter(|key| !wanted.contains_key(key)).collect();
    assert!(more.is_empty(), "{more:?}");
}

#[test]
fn what_is_observed_is_what_was_rendered() {
    in_namespace(|| {
        let mut runner = started(Guard::open().unwrap(), node(&["10.96.0.0/16", "10.0.0.0/8", "fd96::/64"]));
        everything(&mut runner);
        wanted_is_in_kernel(&mut runner);
        assert_eq!(runner.check().unwrap().len(), 0);
        for name in ["web", "web6", "dns", "admin", "empty", "range"] {
            put(&mut runner, name, vec![]);
        }
        wanted_is_in_kernel(&mut runner);
        runner.set_node(Node { invalid_packets: InvalidPackets::Off, ..node(&["10.0.0.0/8"]) }).unwrap();
        wanted_is_in_kernel(&mut runner);
    });
}

/// Death after any operation of a change: the next process finishes it, whatever it finds.
#[test]
fn a_process_that_dies_anywhere_in_a_change_is_continued_by_the_next() {
    in_namespace(|| {
        let ranges = ["10.96.0.0/16"];
        let web = || vip("10.96.0.1", TCP, 80);
        let before = || vec![capture(web(), 15001), allow(web(), &["10.1.0.0/24"]), reject(vip("10.96.0.2", TCP, 80))];
        let after = || {
            let opened = vip("10.96.0.2", TCP, 80);
            vec![
                reject(web()),
                allow(web(), &["10.2.0.0/16"]),
                capture(opened.clone(), 15002),
                allow(opened, &["fd00::/8"]),
            ]
        };
        let mut cut = 0;
        loop {
            let mut runner = started(Guard::open().unwrap(), node(&ranges));
            put(&mut runner, "web", before());
            let key = service("web");
            let (plan, _) =
                runner.dry_run(vec![(key.clone(), Some(vipd_engine::GuardInput { key, entries: after() }))]);
            let operations: Vec<_> = plan.make.into_iter().chain(plan.finish).collect();
            if cut > operations.len() {
                break;
            }
            for operation in &operations[..cut] {
                runner.steps_mut().apply(std::slice::from_ref(operation), &mut Default::default()).unwrap();
            }
            drop(runner);

            let mut runner = started(Guard::open().unwrap(), node(&ranges));
            put(&mut runner, "web", after());
            runner.release().unwrap();
            wanted_is_in_kernel(&mut runner);
            runner.steps_mut().cleanup().unwrap();
            cut += 1;
        }
        assert!(cut > 10, "{cut} operations");
    });
}

/// Everything that a host may have beside us, some of it with words that we do not know.
#[test]
fn foreign_content_is_neither_in_the_way_nor_touched() {
    const FOREIGN: &str = r#"
        table ip nat {
            chain POSTROUTING { type nat hook postrouting priority srcnat
                masquerade
            }
        }
        table inet vipd2 {
            chain capture { type filter hook prerouting priority -90
                ct state new log prefix "x" accept
            }
        }
        table netdev edge {
            chain in { type filter hook ingress device lo priority 0
            }
        }
        table inet firewalld {
            ct helper ftp { type "ftp" protocol tcp
            }
            counter seen { }
            quota most { over 1 mbytes
            }
            set recent { type ipv4_addr . inet_service; flags dynamic,timeout; timeout 1h; size 65535
            }
            map verdicts { type inet_service : verdict; flags interval; elements = { 1-9 : accept, 80 : drop }
            }
            chain input { type filter hook input priority 10
                tcp dport vmap @verdicts
                update @recent { ip saddr . tcp dport limit rate 10/second }
                meta l4proto { tcp, udp } counter name seen
                fib saddr . iif oif missing drop comment "spoofed"
            }
        }
    "#;
    in_namespace(|| {
        let file = tempfile(FOREIGN);
        run("nft", &["-f", &file]);
        std::fs::remove_file(file).unwrap();
        let foreign = run("nft", &["list", "ruleset"]);
        let mut runner = started(Guard::open().unwrap(), node(&["10.96.0.0/16"]));
        everything(&mut runner);
        runner.release().unwrap();
        wanted_is_in_kernel(&mut runner);
        runner.steps_mut().cleanup().unwrap();
        assert_eq!(run("nft", &["list", "ruleset"]), foreign);
    });
}

/// Many hosts keep their rule set by `nft list ruleset > file` and `nft -f file`: ours must not break theirs.
#[test]
fn nft_reads_back_what_it_lists() {
    in_namespace(|| {
        let mut runner = started(Guard::open_without_owner().unwrap(), node(&["10.96.0.0/16", "fd96::/64"]));
        everything(&mut runner);
        let listing = run("nft", &["list", "ruleset"]);
        let file = tempfile(&listing);
        in_namespace(|| {
            run("nft", &["-f", &file]);
            let again = run("nft", &["list", "ruleset"]);
            assert_eq!(again.lines().count(), listing.lines().count(), "{again}");
        });
        std::fs::remove_file(file).unwrap();
    });
}

fn tempfile(text: &str) -> String {
    let thread = nix::unistd::gettid();
    let path = std::env::temp_dir().join(format!("vipd-guard-{thread}.nft"));
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Rule by rule, as it prints the chain: our text is what the operator will read.
#[test]
fn nft_prints_every_rule_as_we_do() {
    in_namespace(|| {
        let mut runner = started(Guard::open_without_owner().unwrap(), node(&["10.96.0.0/16", "fd96::/64"]));
        everything(&mut runner);
        let listing = run("nft", &["list", "ruleset"]);
        let printed: Vec<&str> = listing.lines().map(str::trim).collect();
        let mut rules = 0;
        for (key, value) in runner.wanted() {
            let texts = match value {
                Value::Chain { rules, .. } => rules.iter().map(ToString::to_string).collect(),
                Value::Rule(rule) => vec![rule.to_string()],
                _ => continue,
            };
            for text in texts {
                assert!(printed.contains(&text.as_str()), "{key}: {text}\n{listing}");
                rules += 1;
            }
        }
        assert!(rules > 40, "{rules}");
        for element in ["10.96.0.1 . tcp . 80 : 15001", "10.96.0.1 . tcp . 80 . 10.1.0.0", "udp . 30053 : 20054"] {
            assert!(listing.contains(element), "{element}\n{listing}");
        }
    });
}

#[test]
fn one_frontend_more_is_a_handful_of_objects_whatever_the_number_of_services() {
    in_namespace(|| {
        let mut runner = started(Guard::open().unwrap(), node(&[]));
        let many = (0..3000).map(|n| {
            let key = service(&format!("s{n}"));
            let entries = vec![capture(vip(&format!("10.96.{}.{}", n / 250, n % 250), TCP, 80), 15001)];
            (key.clone(), Some(vipd_engine::GuardInput { key, entries }))
        });
        runner.make(many.collect()).outcomes.into_iter().for_each(|(_, outcome)| outcome.unwrap());
        wanted_is_in_kernel(&mut runner);
        let key = service("one-more");
        let entries = vec![capture(vip("10.97.0.1", TCP, 80), 15001)];
        let (plan, _) = runner.dry_run(vec![(key.clone(), Some(vipd_engine::GuardInput { key, entries }))]);
        let made: Vec<_> = plan.make.iter().map(ToString::to_string).collect();
        assert_eq!(made, ["add element inet vipd capture4 { 10.97.0.1 . tcp . 80 } : 15001"]);
        assert!(plan.finish.is_empty());
    });
}

#[test]
fn after_a_restart_nothing_that_is_right_is_written_again() {
    in_namespace(|| {
        let ranges = ["10.96.0.0/16"];
        let mut runner = started(Guard::open().unwrap(), node(&ranges));
        everything(&mut runner);
        let before = run("nft", &["-a", "list", "ruleset"]);
        assert!(Guard::open().is_err_and(|why| why.to_string().contains("another running process")));
        drop(runner);

        let mut runner = Runner::start(Guard::open().unwrap()).unwrap();
        runner.set_node(node(&ranges)).unwrap();
        let adopted = run("nft", &["-a", "list", "ruleset"]);
        assert_eq!(before, adopted, "handles are the same: nothing was made anew");
        everything(&mut runner);
        assert_eq!(runner.release().unwrap(), 0);
        assert_eq!(before, run("nft", &["-a", "list", "ruleset"]));
        wanted_is_in_kernel(&mut runner);
        let flushed = std::process::Command::new("nft").args(["flush", "ruleset"]).status().unwrap();
        assert!(flushed.success());
        assert_eq!(runner.check().unwrap().len(), 0, "taken over: another's flush passes our tables by");
    });
}

/// Drift of every kind, by the tool that an operator has at hand.
#[test]
fn whatever_somebody_does_to_our_tables_is_found_and_repaired() {
    in_namespace(|| {
        let mut runner = started(Guard::open_without_owner().unwrap(), node(&["10.96.0.0/16"]));
        everything(&mut runner);
        runner.release().unwrap();
        run("nft", &["add", "table", "inet", "foreign"]);
        run("nft", &["add", "chain", "inet", "foreign", "theirs"]);
        let faults: [&[&str]; 9] = [
            &["flush ruleset"],
            &["delete table inet vipd"],
            &["delete table inet vipd-anchor"],
            &["flush chain inet vipd capture"],
            &["flush chain inet vipd allowed4"],
            &["insert rule inet vipd refuse accept", "add rule inet vipd nat-pre accept"],
            &["delete element inet vipd capture4 { 10.96.0.1 . tcp . 80 }"],
            &[
                "delete element inet vipd capture4 { 10.96.0.1 . tcp . 80 }",
                "add element inet vipd capture4 { 10.96.0.1 . tcp . 80 : 1, 10.96.9.9 . tcp . 80 : 2 }",
            ],
            &[
                "add chain inet vipd theirs",
                "add chain inet vipd theirs2",
                "add rule inet vipd theirs jump theirs2",
                "add set inet vipd their-set { type inet_service; }",
            ],
        ];
        for commands in faults {
            for command in commands {
                run("nft", &[command]);
            }
            let drift = runner.check().unwrap();
            assert!(!drift.is_empty(), "{commands:?} was not noticed");
            runner.repair().outcomes.into_iter().for_each(|(_, outcome)| outcome.unwrap());
            let left: Vec<_> = runner.check().unwrap().into_iter().map(|drift| drift.object).collect();
            assert!(left.is_empty(), "{commands:?} left {left:?}");
            wanted_is_in_kernel(&mut runner);
        }
    });
}

#[test]
fn another_s_change_is_noticed_by_the_generation_alone_and_an_owner_need_not_look() {
    in_namespace(|| {
        run("nft", &["add", "table", "inet", "foreign"]);
        let mut runner = started(Guard::open_without_owner().unwrap(), node(&[]));
        everything(&mut runner);
        assert!(!runner.steps_mut().disturbed(), "all changes were ours");
        run("nft", &["delete element inet vipd capture4 { 10.96.0.1 . tcp . 80 }"]);
        put(&mut runner, "one-more", vec![capture(vip("10.96.7.7", TCP, 80), 15001)]);
        assert!(runner.steps_mut().disturbed(), "somebody came between ours");
        assert_eq!(runner.check().unwrap().len(), 1);
        assert!(!runner.steps_mut().disturbed());
        runner.steps_mut().cleanup().unwrap();
        drop(runner);

        let mut runner = started(Guard::open().unwrap(), node(&[]));
        run("nft", &["add", "chain", "inet", "foreign", "theirs"]);
        assert!(!runner.steps_mut().disturbed(), "nobody else can have touched ours");
    });
}

/// In a user namespace of its own a process is root, but not over this network namespace.
#[test]
fn without_the_privilege_the_probe_says_what_is_missing() {
    const INSIDE: &str = "VIPD_TEST_UNPRIVILEGED";
    if std::env::var_os(INSIDE).is_some() {
        let why = Guard::open().unwrap_err().to_string();
        assert!(why.contains("CAP_NET_ADMIN"), "{why}");
        assert_eq!(Guard::probe().unwrap_err().to_string(), why);
        return;
    }
    in_namespace(|| {
        Guard::probe().unwrap();
        assert_eq!(run("nft", &["list", "ruleset"]), "", "a probe leaves nothing behind");
        let this = std::env::current_exe().unwrap();
        let child = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user"])
            .arg(this)
            .args(["--exact", "kernel::without_the_privilege_the_probe_says_what_is_missing", "--nocapture"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"));
    });
}

#[test]
fn cleanup_removes_our_tables_and_nothing_else() {
    in_namespace(|| {
        run("nft", &["add", "table", "inet", "foreign"]);
        run("nft", &["add", "table", "ip", "vipd"]);
        let foreign = run("nft", &["list", "ruleset"]);
        let mut runner = started(Guard::open().unwrap(), node(&[]));
        everything(&mut runner);
        drop(runner);
        let mut guard = Guard::open().unwrap();
        assert!(guard.cleanup().unwrap() > 50);
        assert_eq!(run("nft", &["list", "ruleset"]), foreign);
        assert_eq!(guard.cleanup().unwrap(), 0, "a second time there is nothing to do");
    });
}

#[test]
fn a_refused_object_is_named() {
    in_namespace(|| {
        let mut runner = started(Guard::open().unwrap(), node(&[]));
        put(&mut runner, "web", vec![capture(vip("10.96.0.1", TCP, 80), 15001)]);
        let (key, _) = runner.wanted().into_iter().find(|(key, _)| matches!(key.object, Object::Element(..))).unwrap();
        let again = Operation::Add { key: key.clone(), value: Value::Port(9) };
        let error = runner.steps_mut().apply(&[again], &mut Default::default()).unwrap_err();
        assert!(error.message.starts_with(&key.to_string()), "{error}");
        assert_eq!(error.applied, vipd_engine::steps::Applied::Nothing);
    });
}

#[test]
fn single_objects_are_looked_up_without_a_dump() {
    in_namespace(|| {
        let mut runner = started(Guard::open().unwrap(), node(&[]));
        everything(&mut runner);
        let is_element = |key: &Key| matches!(key.object, Object::Element(..));
        let wanted: Objects<_, _> = runner.wanted().into_iter().filter(|(key, _)| is_element(key)).collect();
        let mut keys: Vec<_> = wanted.keys().cloned().collect();
        assert_eq!(runner.steps_mut().look(&keys).unwrap(), wanted);
        put(&mut runner, "web", vec![]);
        let found = runner.steps_mut().look(&keys).unwrap();
        keys.retain(|key| !found.contains_key(key));
        assert!(
            keys.iter().any(|key| key.to_string() == "element inet vipd capture4 { 10.96.0.1 . tcp . 80 }"),
            "{keys:?}"
        );
    });
}
