//! Restarts, deaths, and what others do to our tables: adopted, noticed, repaired.

use vipd_engine::{Runner, Steps};
use vipd_model::Protocol;
use vipd_netlink::testing::{in_namespace, run};
use vipd_nftables::Guard;

use crate::common::*;

const TCP: Protocol = Protocol::Tcp;

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

/// Before any check has noticed: the attempt fails once, and the next knows better.
#[test]
fn a_change_over_somebody_else_s_comes_through_at_the_second_try() {
    in_namespace(|| {
        let mut runner = started(Guard::open_without_owner().unwrap(), node(&[]));
        let web = |port| {
            let key = service("web");
            let entries = vec![capture(vip("10.96.0.1", TCP, 80), port)];
            vec![(key.clone(), Some(vipd_engine::GuardInput { key, entries }))]
        };
        put(&mut runner, "web", vec![capture(vip("10.96.0.1", TCP, 80), 15001)]);
        run("nft", &["delete element inet vipd capture4 { 10.96.0.1 . tcp . 80 }"]);
        let first = runner.make(web(15002)).outcomes.remove(0).1;
        let second = runner.make(web(15002)).outcomes.remove(0).1;
        assert!(first.is_ok() || second.is_ok(), "{first:?}, {second:?}");
        runner.finish(&[service("web")]);
        wanted_is_in_kernel(&mut runner);
    });
}
