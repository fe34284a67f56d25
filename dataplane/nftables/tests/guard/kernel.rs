//! The guard's objects and the real kernel: equal after every change, readable by `nft`, beside anything foreign.

use vipd_engine::{InvalidPackets, Node, Objects, Operation, Steps};
use vipd_model::Protocol;
use vipd_netlink::testing::{in_namespace, run};
use vipd_nftables::{
    Guard,
    guard::{Key, Object, Value, names::SetName},
};

use crate::common::*;

const TCP: Protocol = Protocol::Tcp;

#[test]
fn what_is_observed_is_what_was_rendered() {
    in_namespace(|| {
        let mut runner = started(Guard::open().unwrap(), node(&["10.96.0.0/16", "10.0.0.0/8", "fd96::/64"]));
        runner.release().unwrap();
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
        let (key, _) = runner
            .wanted()
            .into_iter()
            .find(|(key, _)| matches!(key.object, Object::Element(SetName::Spots { .. }, _)))
            .unwrap();
        let again = Operation::Add { key: key.clone(), value: Value::Port(9) };
        let error = runner.steps_mut().apply(&[again], &mut Default::default()).unwrap_err();
        assert!(error.message.starts_with(&key.to_string()), "{error}");
        assert_eq!(error.applied, vipd_engine::steps::Applied::Unknown, "it was not as we believed: look");
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
