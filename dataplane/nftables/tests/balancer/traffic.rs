//! What the balancer does to real packets: from another host, from the node itself and from endpoints.

use vipd_model::Algorithm;
use vipd_netlink::testing::in_namespace;
use vipd_nftables::Nftables;

use crate::{lab::*, service::*};

#[test]
fn flows_are_spread_over_the_endpoints_of_their_family() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let both = ["10.2.1.1", "10.2.1.2", "10.2.1.3", "fd02::1:1", "fd02::1:2", "fd02::1:3"];
        put(&mut runner, tcp("web").vip("10.96.0.1", 80).vip("fd96::1", 80).to(&both));
        put(&mut runner, udp("dns").vip("10.96.0.1", 53).vip("fd96::1", 53).to(&both));
        for vip in ["10.96.0.1", "fd96::1"] {
            let spread = lab.client.spread(vip, 80, 60);
            assert!(spread.len() == 3 && spread.iter().all(|(_, count)| *count > 5), "{spread:?}");
            assert!(matches!(lab.client.ask(vip, 53), Fate::Served { .. }));
            assert!(matches!(connect(None, (ip(vip), 80).into()), Fate::Served { .. }), "from the node");
            assert!(matches!(ask((ip(vip), 53).into()), Fate::Served { .. }), "from the node");
        }
        wanted_is_in_kernel(&mut runner);
    });
}

#[test]
fn weights_hold_and_round_robin_is_exact() {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        let weighted = |name: &str| tcp(name).to(&["10.2.1.1"]).endpoint("10.2.1.2", |e| e.weight = 3);
        put(&mut runner, weighted("turns").by(Algorithm::Rr).vip("10.96.0.2", 80));
        let counts: Vec<_> = lab.client.spread("10.96.0.2", 80, 40).into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [10, 30]);
        put(&mut runner, weighted("chance").endpoint("10.2.1.3", |e| e.weight = 0).vip("10.96.0.3", 80));
        let spread = lab.client.spread("10.96.0.3", 80, 80);
        assert!(spread.len() == 2 && spread[1].1 > spread[0].1, "{spread:?}");
        wanted_is_in_kernel(&mut runner);
    });
}
