//! The balancer's objects in the kernel: written, read back, listed by the real `nft`.

use vipd_engine::{Node, Steps as _};
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
