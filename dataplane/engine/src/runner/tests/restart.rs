//! A new process over a kernel that has objects of ours.

use super::*;

#[test]
fn a_restart_adopts_without_a_write() {
    let kernel = FakeKernel::default();
    let all: Vec<_> = (1..=20).map(|n| service(&format!("s{n}"), &[n], &[n, n + 1])).collect();
    change(&mut runner(&kernel), all.iter().map(to).collect());
    let (messages, objects) = (kernel.messages(), kernel.objects());

    let mut runner = Runner::start(FakeEngine::new(KIND, kernel.clone())).unwrap();
    assert!(runner.holding());
    let transactions = kernel.transactions();
    assert!(change(&mut runner, all.iter().map(to).collect()).is_empty());
    assert_eq!(runner.release().unwrap(), 0);
    assert_eq!((kernel.messages(), kernel.objects()), (messages, objects));
    assert_eq!(kernel.transactions(), transactions);
    assert_eq!(runner.check().unwrap(), []);
}

#[test]
fn strays_stay_while_holding_and_go_with_the_release() {
    let kernel = FakeKernel::default();
    let (kept, lost) = (service("kept", &[1], &[1]), service("lost", &[2], &[2]));
    change(&mut runner(&kernel), vec![to(&kept), to(&lost)]);

    let mut runner = Runner::start(FakeEngine::new(KIND, kernel.clone())).unwrap();
    change(&mut runner, vec![to(&kept)]);
    assert_eq!(runner.check().unwrap(), [], "not drift: the desired state may be incomplete");
    runner.repair();
    assert_eq!(kernel.objects(), rendered([&kept, &lost]));
    assert_eq!(runner.release().unwrap(), rendered([&lost]).len());
    assert_eq!(kernel.objects(), rendered([&kept]));
}

#[test]
fn what_others_stand_on_stays_with_them_while_holding() {
    let kernel = FakeKernel::default();
    let (kept, leaves) = (service("kept", &[1], &[1]), service("leaves", &[2], &[2]));
    change(&mut runner(&kernel), vec![to(&kept), to(&leaves)]);

    let mut runner = Runner::start(FakeEngine::new(KIND, kernel.clone()).bearing("frontend")).unwrap();
    change(&mut runner, vec![to(&leaves)]);
    assert!(change(&mut runner, vec![gone("leaves")]).is_empty());
    let left: Vec<_> = kernel.objects().into_keys().filter(|name| name.contains("10.96.0.2")).collect();
    assert_eq!(left, ["nftables frontend 10.96.0.2 . tcp . 80"], "its endpoints are gone");
    change(&mut runner, vec![to(&kept)]);
    runner.release().unwrap();
    assert_eq!(kernel.objects(), rendered([&kept]));
}

#[test]
fn a_failure_while_holding_leaves_what_was_there_before_us() {
    let kernel = FakeKernel::default();
    let before = service("web", &[1], &[1]);
    change(&mut runner(&kernel), vec![to(&before)]);

    let mut runner = Runner::start(FakeEngine::new(KIND, kernel.clone())).unwrap();
    kernel.refuse("nftables endpoint ops/web all4 10.1.0.2:8080");
    assert_eq!(change(&mut runner, vec![to(&service("web", &[1], &[1, 2]))]), ["web"]);
    assert_eq!(kernel.objects(), rendered([&before]));
}

#[test]
fn cleanup_removes_ours_and_nothing_else() {
    let kernel = FakeKernel::default();
    kernel.write_behind_us("foreign table", "not ours");
    let mut runner = runner(&kernel);
    change(&mut runner, vec![to(&service("web", &[1], &[1]))]);
    assert_eq!(runner.steps_mut().cleanup().unwrap(), 2);
    assert_eq!(kernel.dump(), "foreign table not ours\n");
}

#[test]
fn the_nodes_own_objects_follow_the_node() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    let node = |names: &[&str]| {
        let mut node = Node::default();
        node.network.local_source_interfaces = names.iter().map(ToString::to_string).collect();
        node
    };
    runner.set_node(node(&["cni0", "veth*"])).unwrap();
    runner.set_node(node(&["cni0", "eth9"])).unwrap();
    assert_eq!(kernel.dump(), "nftables inside cni0 local\nnftables inside eth9 local\n");
    kernel.refuse("nftables inside bad0");
    assert!(runner.set_node(node(&["bad0"])).is_err());
    assert_eq!(runner.node(), &node(&["cni0", "eth9"]));
    kernel.remove_behind_us(|_| true);
    runner.check().unwrap();
    runner.repair();
    assert_eq!(kernel.dump(), "nftables inside cni0 local\nnftables inside eth9 local\n");
}

fn on_two_interfaces() -> Node {
    let mut node = Node::default();
    node.network.local_source_interfaces = vec!["cni0".to_owned(), "veth*".to_owned()];
    node
}

#[test]
fn an_engine_that_rests_has_nothing_in_the_kernel_until_it_serves_something() {
    let kernel = FakeKernel::default();
    let mut runner = Runner::start(FakeEngine::new(KIND, kernel.clone())).unwrap().resting();
    runner.set_node(on_two_interfaces()).unwrap();
    runner.release().unwrap();
    assert_eq!(kernel.messages(), 0);
    let (planned, _) = runner.dry_run(vec![to(&service("web", &[1], &[1]))]);
    assert_eq!(planned.make.len(), 4, "two of its own, two of the service");
    change(&mut runner, vec![to(&service("web", &[1], &[1])), to(&service("two", &[2], &[]))]);
    assert_eq!(kernel.objects().len(), 5);
    change(&mut runner, vec![gone("web")]);
    assert_eq!(kernel.objects().len(), 3, "one is left to serve");
    let (planned, _) = runner.dry_run(vec![gone("two")]);
    assert_eq!(planned.finish.len(), 3);
    change(&mut runner, vec![gone("two")]);
    assert_eq!(kernel.dump(), "");
    // What does not come up leaves nothing either.
    kernel.refuse("nftables inside veth*");
    assert_eq!(change(&mut runner, vec![to(&service("web", &[1], &[1]))]), ["web"]);
    assert_eq!(kernel.dump(), "");
    kernel.accept("nftables inside veth*");
    kernel.refuse("nftables frontend 10.96.0.1 . tcp . 80");
    assert_eq!(change(&mut runner, vec![to(&service("web", &[1], &[1]))]), ["web"]);
    assert_eq!(kernel.dump(), "");
    kernel.accept("nftables frontend 10.96.0.1 . tcp . 80");
    assert!(change(&mut runner, vec![to(&service("web", &[1], &[1]))]).is_empty());
    assert_eq!(kernel.objects().len(), 4);
    assert_eq!(runner.check().unwrap(), []);
}

#[test]
fn while_holding_nothing_rests() {
    let kernel = FakeKernel::default();
    let mut first = Runner::start(FakeEngine::new(KIND, kernel.clone())).unwrap().resting();
    first.set_node(on_two_interfaces()).unwrap();
    change(&mut first, vec![to(&service("web", &[1], &[1]))]);
    let before = kernel.objects();

    let mut runner = Runner::start(FakeEngine::new(KIND, kernel.clone())).unwrap().resting();
    runner.set_node(on_two_interfaces()).unwrap();
    change(&mut runner, vec![to(&service("other", &[2], &[2]))]);
    change(&mut runner, vec![gone("other")]);
    assert_eq!(kernel.objects(), before, "web may be declared yet");
    assert_eq!(runner.release().unwrap(), 4);
    assert_eq!(kernel.dump(), "");
}
