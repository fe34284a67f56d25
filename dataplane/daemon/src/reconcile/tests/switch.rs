//! Services that move between engines, and frontends that move between services.

use std::time::Duration;

use vipd_engine::fake::Count;
use vipd_model::{
    Algorithm, At, Definition, Drain, EngineKind, Frontend, NodePort, OnExpiry, PortRange, ProblemCode, Protocol,
    Request,
};

use super::kit::*;
use super::words::*;
use crate::reconcile::ServiceState;

const SECOND: Duration = Duration::from_secs(1);

fn default_engine(engine: Option<EngineKind>) -> Request {
    Request::SetDefaultEngine { engine, allow_degraded: false, drain: Drain::default() }
}

#[tokio::test(start_paused = true)]
async fn set_default_engine_moves_what_follows_it_and_nothing_else() {
    let node = Node::start(Setup { engines: vec![EngineKind::Userspace, EngineKind::Ipvs], ..Setup::default() }).await;
    let named = Definition { engine: Some(EngineKind::Userspace), ..serving(&[2]) };
    node.apply(vec![upsert("web", &[1]), set("web", &[1]), upsert_as(key("named"), named), set("named", &[1])])
        .await
        .unwrap();
    assert_eq!(node.engine("web"), Some(EngineKind::Userspace));
    node.call(default_engine(Some(EngineKind::Ipvs))).await.unwrap();
    assert_eq!((node.engine("web"), node.engine("named")), (Some(EngineKind::Ipvs), Some(EngineKind::Userspace)));
    // The order of captures and balancers held at every step: see the kit's watcher.
    node.assert_settled();
    node.call(default_engine(None)).await.unwrap();
    assert_eq!(node.engine("web"), Some(EngineKind::Userspace));
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_that_another_engine_has_moves_the_service() {
    let abilities = [(EngineKind::Userspace, lacking(&[], &[Algorithm::Mh]))].into();
    let engines = vec![EngineKind::Userspace, EngineKind::Ipvs];
    let node = Node::start(Setup { engines, abilities, ..Setup::default() }).await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1, 2])]).await.unwrap();
    node.one(schedule("web", Algorithm::Mh)).await.unwrap();
    assert_eq!(node.engine("web"), Some(EngineKind::Ipvs));
    let problems = node.read(|core| core.status(core.desired.service(&key("web")).unwrap()).problems);
    assert!(problems.iter().any(|p| p.code == ProblemCode::EngineChosen), "{problems:?}");
    node.assert_settled();
    node.one(schedule("web", Algorithm::Rr)).await.unwrap();
    assert_eq!(node.engine("web"), Some(EngineKind::Userspace));
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn a_switch_that_fails_leaves_the_old_engine_serving_and_nothing_of_the_new_one() {
    let engines = vec![EngineKind::Userspace, EngineKind::Ipvs];
    let node = Node::start(Setup { engines, ..Setup::default() }).await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1])]).await.unwrap();
    let before = node.kernel.objects();
    node.kernel.refuse("ipvs endpoint ops/web all4 10.1.0.1:8080");
    assert_eq!(not_programmed(node.call(default_engine(Some(EngineKind::Ipvs))).await), ["web".to_owned()].into());
    assert_eq!(node.kernel.objects(), before);
    // The balancer is made and the capture refused: the new balancer's objects must not stay for ever.
    node.kernel.accept("ipvs endpoint ops/web all4 10.1.0.1:8080");
    node.kernel.refuse("guard capture 10.96.0.1 . tcp . 80");
    node.pass(3 * SECOND).await;
    assert_eq!(node.engine("web"), Some(EngineKind::Userspace));
    assert!(node.kernel.get("userspace frontend 10.96.0.1 . tcp . 80").is_some());
    node.kernel.accept("guard capture 10.96.0.1 . tcp . 80");
    node.call(default_engine(None)).await.unwrap();
    node.assert_settled();
    assert_eq!(node.kernel.objects(), before);
}

#[tokio::test(start_paused = true)]
async fn a_contested_frontend_is_taken_over_when_it_is_free() {
    let node = Node::new().await;
    node.apply(vec![upsert("first", &[1]), set("first", &[1])]).await.unwrap();
    node.apply(vec![upsert_waiting("second", &[1, 2], 5), set("second", &[2])]).await.unwrap();
    let problems = node.read(|core| core.status(core.desired.service(&key("second")).unwrap()).problems);
    assert!(problems.iter().any(|p| p.message.contains("ops/first")), "{problems:?}");
    node.assert_settled();
    // OK for the removal says that the other has it.
    node.one(delete("first")).await.unwrap();
    assert!(node.kernel.get("userspace frontend 10.96.0.1 . tcp . 80").unwrap().starts_with("ops/second "));
    node.assert_settled();
    assert_eq!(node.state("second"), ServiceState::InForce);
}

#[tokio::test(start_paused = true)]
async fn a_taken_over_frontend_moves_across_engines() {
    let node = Node::start(Setup { engines: vec![EngineKind::Userspace, EngineKind::Ipvs], ..Setup::default() }).await;
    let ipvs = Definition { engine: Some(EngineKind::Ipvs), ..serving(&[1]) };
    node.apply(vec![upsert_as(key("first"), ipvs), set("first", &[1])]).await.unwrap();
    node.apply(vec![upsert_waiting("second", &[1], 5), set("second", &[2])]).await.unwrap();
    node.one(delete("first")).await.unwrap();
    assert_eq!(node.engine("second"), Some(EngineKind::Userspace));
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn frontends_swap_in_one_call() {
    let node = Node::new().await;
    node.apply(vec![upsert("a", &[1]), set("a", &[1]), upsert("b", &[2]), set("b", &[2])]).await.unwrap();
    node.apply(vec![upsert("a", &[2]), upsert("b", &[1])]).await.unwrap();
    node.assert_settled();
}

const ENGINES: [EngineKind; 3] = [EngineKind::Userspace, EngineKind::Nftables, EngineKind::Iptables];
const PROXY_FRONTEND: &str = "userspace frontend 10.96.0.1 . tcp . 80";
const PROXY_CAPTURE: &str = "guard capture 10.96.0.1 . tcp . 80";

/// A proxy that carries its flows, and two engines whose flows the kernel carries.
async fn three_engines() -> Node {
    let setup = Setup { engines: ENGINES.to_vec(), carriers: vec![EngineKind::Userspace], ..Setup::default() };
    let node = Node::start(setup).await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1, 2])]).await.unwrap();
    node
}

fn active(node: &Node, active: u64) {
    node.kernel.count(EngineKind::Userspace, &key("web"), Count { connections: 9, active });
}

fn draining(node: &Node) -> Option<EngineKind> {
    node.read(|core| core.status(core.desired.service(&key("web")).unwrap()).draining_engine)
}

#[tokio::test(start_paused = true)]
async fn the_proxy_keeps_a_service_until_its_last_flow_has_ended() {
    let node = three_engines().await;
    active(&node, 2);
    node.call(default_engine(Some(EngineKind::Nftables))).await.unwrap();
    assert_eq!(node.engine("web"), Some(EngineKind::Nftables));
    assert_eq!(node.control.flows_left().await.unwrap(), 2);
    assert_eq!(draining(&node), Some(EngineKind::Userspace));
    assert_eq!(node.kernel.get(PROXY_CAPTURE), None, "nothing leads new flows there");
    // It follows what becomes of the service, or its flows would outlive their endpoints.
    node.one(set("web", &[2, 3])).await.unwrap();
    assert_eq!(node.kernel.get("userspace endpoint ops/web all4 10.1.0.1:8080"), None);
    assert!(node.kernel.get("userspace endpoint ops/web all4 10.1.0.3:8080").is_some());
    node.pass(60 * SECOND).await;
    assert!(node.kernel.get(PROXY_FRONTEND).is_some(), "as long as there are flows");
    active(&node, 0);
    node.pass(3 * SECOND).await;
    assert_eq!((draining(&node), node.control.flows_left().await.unwrap()), (None, 0));
    node.assert_settled();
    let (_, events) = node.read(|core| core.journal.after(0, usize::MAX));
    assert!(events.iter().any(|e| e.text.contains("the last flow that userspace carried")), "{events:#?}");
    // What it has counted stays counted.
    node.kernel.count(EngineKind::Nftables, &key("web"), Count { connections: 5, active: 0 });
    let counted = node.control.counters(vec![key("web")]).await.unwrap();
    assert_eq!((counted[0].total.connections, counted[0].total.active), (Some(14), None));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_comes_back_before_its_flows_have_ended_is_served_as_if_it_had_stayed() {
    let node = three_engines().await;
    active(&node, 2);
    node.call(default_engine(Some(EngineKind::Nftables))).await.unwrap();
    node.call(default_engine(None)).await.unwrap();
    assert_eq!(node.engine("web"), Some(EngineKind::Userspace));
    node.pass(60 * SECOND).await;
    assert_eq!(draining(&node), None);
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_over_cuts_what_is_left() {
    let node = three_engines().await;
    active(&node, 2);
    let drain = Drain { timeout: Some(10 * SECOND), on_expiry: OnExpiry::Reset };
    let request = Request::SetDefaultEngine { engine: Some(EngineKind::Nftables), allow_degraded: false, drain };
    node.call(request).await.unwrap();
    node.pass(9 * SECOND).await;
    assert!(node.kernel.get(PROXY_FRONTEND).is_some());
    node.pass(3 * SECOND).await;
    assert_eq!(node.kernel.get(PROXY_FRONTEND), None);
    node.assert_settled();
    // The kernel's are forgotten by number, and no other.
    let web = "10.96.0.1:80";
    node.cleaner.track(&[(Protocol::Tcp, web, "10.1.0.1:8080"), (Protocol::Tcp, "10.96.0.9:80", "10.1.0.1:8080")]);
    let request = Request::SetDefaultEngine { engine: Some(EngineKind::Iptables), allow_degraded: false, drain };
    node.call(request).await.unwrap();
    assert_eq!(node.control.flows_left().await.unwrap(), 1);
    node.pass(9 * SECOND).await;
    assert_eq!((node.cleaner.tracked(), draining(&node)), (2, Some(EngineKind::Nftables)));
    node.pass(3 * SECOND).await;
    assert_eq!((node.cleaner.tracked(), draining(&node)), (1, None));
}

#[tokio::test(start_paused = true)]
async fn flows_of_the_kernel_are_counted_from_engine_to_engine() {
    let node = three_engines().await;
    let to = "10.96.0.1:80";
    node.call(default_engine(Some(EngineKind::Nftables))).await.unwrap();
    node.pass(5 * SECOND).await;
    node.cleaner.track(&[
        (Protocol::Tcp, to, "10.1.0.1:8080"),
        (Protocol::Tcp, to, "10.1.0.2:8080"),
        (Protocol::Tcp, "10.96.0.7:80", "10.1.0.2:8080"),
        (Protocol::Tcp, to, "192.0.2.1:20001"),
    ]);
    node.call(default_engine(Some(EngineKind::Iptables))).await.unwrap();
    assert_eq!(node.control.flows_left().await.unwrap(), 2, "to its endpoints, by its frontend");
    assert_eq!(draining(&node), Some(EngineKind::Nftables));
    node.assert_settled();
    // A flow that began after the switch has another number and is not one of them.
    node.cleaner.track(&[(Protocol::Tcp, to, "10.1.0.1:8080")]);
    node.pass(3 * SECOND).await;
    assert_eq!(node.control.flows_left().await.unwrap(), 1);
    node.cleaner.track(&[]);
    node.pass(3 * SECOND).await;
    assert_eq!((draining(&node), node.control.flows_left().await.unwrap()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn udp_flows_are_judged_where_several_engines_have_made_some() {
    let setup = Setup { engines: ENGINES.to_vec(), carriers: vec![EngineKind::Userspace], ..Setup::default() };
    let node = Node::start(setup).await;
    node.apply(vec![upsert_udp("dns", &[1]), set("dns", &[1, 2])]).await.unwrap();
    node.kernel.count(EngineKind::Userspace, &key("dns"), Count { connections: 1, active: 1 });
    let stale = |node: &Node, from: &str| {
        let from: std::net::SocketAddr = from.parse().unwrap();
        let judged = node.cleaner.judged();
        judged.last().unwrap().is_stale(([10, 96, 0, 1].into(), 80), (from.ip(), from.port()))
    };
    let (endpoint, gone, relay) = ("10.1.0.1:8080", "10.1.0.9:8080", "192.0.2.1:20001");
    node.call(default_engine(Some(EngineKind::Nftables))).await.unwrap();
    assert_eq!([endpoint, gone, relay].map(|from| stale(&node, from)), [false, true, false], "the relay still runs");
    let walks = node.cleaner.walks().len();
    node.one(set("dns", &[2])).await.unwrap();
    let filters = node.cleaner.walks()[walks..].concat();
    assert!(filters.iter().any(|f| f.destination.is_some() && f.reply_source.unwrap().0.to_string() == "10.1.0.1"));
    node.kernel.count(EngineKind::Userspace, &key("dns"), Count { connections: 1, active: 0 });
    node.pass(3 * SECOND).await;
    assert_eq!([endpoint, "10.1.0.2:8080", relay].map(|from| stale(&node, from)), [true, false, true]);
    node.assert_settled();
    node.call(default_engine(Some(EngineKind::Iptables))).await.unwrap();
    assert_eq!(["10.1.0.2:8080", "10.96.0.1:80"].map(|from| stale(&node, from)), [false, true]);
    // Back at the proxy, flows that the kernel translates still go when their endpoint goes.
    node.call(default_engine(None)).await.unwrap();
    let walks = node.cleaner.walks().len();
    node.one(set("dns", &[1])).await.unwrap();
    let filters = node.cleaner.walks()[walks..].concat();
    assert!(filters.iter().any(|f| f.destination.is_some() && f.reply_source.unwrap().0.to_string() == "10.1.0.2"));
}

#[tokio::test(start_paused = true)]
async fn after_a_start_udp_flows_are_judged_by_what_is_in_force() {
    let node = Node::start(Setup { carriers: vec![EngineKind::Userspace], ..Setup::default() }).await;
    node.apply(vec![upsert_udp("dns", &[1]), set("dns", &[1]), upsert("web", &[2]), set("web", &[1])]).await.unwrap();
    let desired = node.read(|core| core.desired.clone());
    let kernel = node.kernel.clone();
    node.kill();
    let setup = Setup { desired: Some(desired), kernel, carriers: vec![EngineKind::Userspace], ..Setup::default() };
    let node = Node::start(setup).await;
    let judged = node.cleaner.judged();
    let [judge] = &judged[..] else { panic!("one walk: {judged:?}") };
    let stale = |vip: u8, from: &str| {
        let from: std::net::SocketAddr = from.parse().unwrap();
        judge.is_stale(([10, 96, 0, vip].into(), 80), (from.ip(), from.port()))
    };
    assert!(!stale(1, "10.1.0.1:8080") && !stale(1, "127.0.0.1:20001"), "an endpoint, the proxy");
    assert!(stale(1, "10.1.0.2:8080") && stale(1, "10.96.0.1:80"), "one that was removed while nobody looked");
    assert!(!stale(2, "10.1.0.2:8080"), "no UDP service");
}

fn node_port(port: u16) -> Frontend {
    let at = At::NodePort(NodePort { v4: true, v6: false, addresses: Vec::new() });
    Frontend { at, ports: PortRange::one(port), ..vip(1) }
}

#[tokio::test(start_paused = true)]
async fn node_ports_of_the_kernels_engines_are_served_on_loopback_by_the_proxy() {
    let engines = vec![EngineKind::Nftables, EngineKind::Userspace];
    let addresses = vec![[127, 0, 0, 1].into(), [192, 0, 2, 1].into()];
    let carriers = vec![EngineKind::Userspace];
    let node = Node::start(Setup { engines, addresses, carriers, ..Setup::default() }).await;
    let definition = Definition { frontends: vec![vip(1), node_port(30_000)], ..Definition::default() };
    node.apply(vec![upsert_as(key("web"), definition.clone()), set("web", &[1])]).await.unwrap();
    assert_eq!(node.engine("web"), Some(EngineKind::Nftables));
    let of =
        |prefix: &str| node.kernel.objects().into_keys().filter(|name| name.starts_with(prefix)).collect::<Vec<_>>();
    assert_eq!(of("userspace frontend"), ["userspace frontend 127.0.0.1 . tcp . 30000"]);
    assert_eq!(of("guard"), ["guard capture 127.0.0.1 . tcp . 30000"]);
    assert_eq!(of("nftables frontend").len(), 2);
    let planned = node.control.plan(vec![delete("web")], None).await.unwrap();
    assert_eq!(planned.changes.len(), node.kernel.objects().len());
    assert_eq!(node.control.verify(Some(key("web"))).await.unwrap().drift.len(), 0);
    // It has no flows of before, so that nothing drains.
    node.pass(5 * SECOND).await;
    assert_eq!(draining(&node), None);
    node.assert_settled();
    node.call(default_engine(Some(EngineKind::Userspace))).await.unwrap();
    assert_eq!(of("guard").len(), 2, "its own frontends");
    node.assert_settled();
    node.call(default_engine(None)).await.unwrap();
    node.pass(5 * SECOND).await;
    assert_eq!(of("userspace frontend"), ["userspace frontend 127.0.0.1 . tcp . 30000"]);
    node.assert_settled();
    node.one(upsert_as(key("web"), serving(&[1]))).await.unwrap();
    assert_eq!(of("userspace").len() + of("guard").len(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_counted_goes_on_over_switches_and_restarts() {
    let node = three_engines().await;
    let connections = async |node: &Node| {
        let counted = node.control.counters(vec![key("web")]).await.unwrap();
        counted.first().and_then(|one| one.total.connections)
    };
    node.kernel.count(EngineKind::Userspace, &key("web"), Count { connections: 9, active: 0 });
    node.call(default_engine(Some(EngineKind::Nftables))).await.unwrap();
    node.pass(5 * SECOND).await;
    node.kernel.count(EngineKind::Nftables, &key("web"), Count { connections: 5, active: 0 });
    assert_eq!(connections(&node).await, Some(14));
    node.call(default_engine(None)).await.unwrap();
    node.kernel.count(EngineKind::Userspace, &key("web"), Count { connections: 2, active: 0 });
    assert_eq!(connections(&node).await, Some(16));
    let desired = node.read(|core| core.desired.clone());
    node.control.stop().await;
    let kept = node.store.kept().unwrap();
    assert!(kept.whole && kept.services.len() == 1);
    // The proxy of the next process counts from 0, and what it counts comes on top.
    let store = node.store.clone();
    let setup = Setup { engines: ENGINES.to_vec(), carriers: vec![EngineKind::Userspace], ..Setup::default() };
    let node = Node::start(Setup { desired: Some(desired), store, ..setup }).await;
    node.kernel.count(EngineKind::Userspace, &key("web"), Count { connections: 1, active: 0 });
    assert_eq!(connections(&node).await, Some(17));
    node.one(delete("web")).await.unwrap();
    node.pass(31 * SECOND).await;
    assert_eq!(node.store.kept().unwrap().services, [], "with the service its counts go");
}
