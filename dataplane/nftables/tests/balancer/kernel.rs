//! The balancer's objects in the kernel: written, read back, listed by the real `nft`.

use vipd_engine::{Node, Runner, Steps as _};
use vipd_model::{Algorithm, EngineKind, feature::designed};
use vipd_netlink::testing::{in_namespace, run};
use vipd_nftables::Nftables;

use crate::{lab::Lab, service::*};

/// A bit of everything.
pub(crate) fn everything() -> Vec<Made> {
    let four = ["10.2.1.1", "10.2.1.2", "10.2.1.3", "10.2.1.4", "fd02::1:1", "fd02::1:2"];
    vec![
        tcp("web").vip("10.96.0.1", 80).vip("fd96::1", 80).to(&four),
        udp("dns").vip("10.96.0.10", 53).to(&four[..2]).node_port(30053, &[]),
        tcp("turns").by(Algorithm::Rr).vip("10.96.0.2", 80).to(&four),
        tcp("hashed").by(Algorithm::Sh).vip("10.96.0.3", 80).to(&four),
        tcp("maglev").by(Algorithm::Mh).vip("10.96.0.4", 80).to(&four),
        tcp("sticky").affinity(10_800_000, 24).vip("10.96.0.5", 80).vip("fd96::5", 80).to(&four),
        tcp("limited").vip("10.96.0.6", 80).to(&four[..1]).endpoint("10.2.1.5", |e| e.max_connections = 7),
        tcp("empty").vip("10.96.0.7", 80),
    ]
}

#[test]
fn everything_is_read_back_as_it_was_written_and_nft_lists_it() {
    in_namespace(|| {
        let mut runner = started(Nftables::open_without_owner().unwrap(), Lab::node());
        everything().into_iter().for_each(|service| drop(put(&mut runner, service)));
        wanted_is_in_kernel(&mut runner);
        let listed = run("nft", &["list", "ruleset"]);
        println!("{listed}");
        assert!(listed.contains("k8s/web ipv6"));
    });
}

#[test]
fn this_kernel_has_what_the_engine_is_designed_for() {
    in_namespace(|| {
        let ability = vipd_engine::Engine::ability(&Nftables::open().unwrap());
        assert!(ability.usable);
        let designed = designed(EngineKind::Nftables);
        assert_eq!((ability.features, ability.algorithms), (designed.features, designed.algorithms));
    });
}

#[test]
fn cleanup_leaves_nothing() {
    in_namespace(|| {
        let mut runner = started(Nftables::open().unwrap(), Node::default());
        everything().into_iter().for_each(|service| drop(put(&mut runner, service)));
        assert!(runner.steps_mut().cleanup().unwrap() > 50);
        assert_eq!(run("nft", &["list", "ruleset"]), "");
        assert!(runner.steps_mut().observe().unwrap().objects.is_empty());
    });
}

#[test]
fn an_engine_that_serves_nobody_has_nothing_in_the_kernel() {
    in_namespace(|| {
        let mut runner = Runner::start(Nftables::open().unwrap()).unwrap().resting();
        runner.set_node(Lab::node()).unwrap();
        runner.release().unwrap();
        for _ in 0..2 {
            assert_eq!(run("nft", &["list", "ruleset"]), "");
            let keys: Vec<_> = everything().iter().map(Made::key).collect();
            everything().into_iter().for_each(|service| drop(put(&mut runner, service)));
            wanted_is_in_kernel(&mut runner);
            change(&mut runner, keys.into_iter().map(|key| (key, None)).collect()).unwrap();
        }
        assert_eq!(run("nft", &["list", "ruleset"]), "");
    });
}

#[test]
fn what_somebody_takes_away_is_found_named_and_put_back() {
    in_namespace(|| {
        let mut runner = started(Nftables::open_without_owner().unwrap(), Lab::node());
        everything().into_iter().for_each(|service| drop(put(&mut runner, service)));
        assert!(!runner.steps_mut().disturbed());
        for mischief in [
            "flush ruleset",
            "flush map inet vipd-nft pools",
            "flush map inet vipd-nft endpoints4-0",
            "flush set inet vipd-nft endpoint-nets4",
            "flush set inet vipd-nft equal",
            "flush chain inet vipd-nft choose",
            "insert rule inet vipd-nft nat-pre accept",
            "add element inet vipd-nft endpoints4-0 { 7:4000 . 0x00000001 : 192.0.2.1 . 80 }",
            "add element inet vipd-nft vips4 { 192.0.2.1 . tcp . 80 : 7:4000 }",
            "add chain inet vipd-nft strange",
        ] {
            run("nft", &[mischief]);
            assert!(runner.steps_mut().disturbed(), "{mischief}");
            assert!(runner.steps_mut().disturber().is_some_and(|who| who.starts_with("nft (")), "{mischief}");
            let drift = runner.check().unwrap();
            assert!(!drift.is_empty(), "{mischief}");
            // What stands in the way of what is missing goes first, and the next round makes it.
            for _ in 0..3 {
                runner.repair();
                runner.check().unwrap();
            }
            wanted_is_in_kernel(&mut runner);
        }
    });
}
