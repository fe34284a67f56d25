//! "The promise" of docs/api.md, point by point.

use std::time::Duration;

use vipd_model::{Algorithm, EngineKind, Mode, Request};

use super::kit::*;
use super::words::*;
use crate::reconcile::{CallError, ServiceState};

const MS: Duration = Duration::from_millis(1);

/// 1: OK is in force.
#[tokio::test(start_paused = true)]
async fn ok_is_in_force_and_not_earlier() {
    let node = Node::start(Setup { pace: Pace::of(20 * MS), ..Setup::default() }).await;
    let call =
        node.begin(Request::Apply { operations: vec![upsert("web", &[1]), set("web", &[1])], mode: Mode::Atomic });
    node.pass(10 * MS).await;
    assert!(!call.is_finished());
    assert_eq!(node.state("web"), ServiceState::Pending);
    let answer = call.await.unwrap().unwrap();
    assert!(answer.in_force);
    assert_eq!(node.state("web"), ServiceState::InForce);
    node.assert_settled();
}

/// 1: a repeated call waits for what it repeats.
#[tokio::test(start_paused = true)]
async fn a_no_op_never_answers_early() {
    let node = Node::start(Setup { pace: Pace::of(100 * MS), ..Setup::default() }).await;
    node.accepted(Request::One(upsert("web", &[1]))).await.unwrap();
    node.pass(10 * MS).await;
    assert_ne!(node.kernel.objects(), node.expected());
    let again = node.one(upsert("web", &[1])).await.unwrap();
    assert!(!again.delta.changed());
    node.assert_settled();
    // Answered as accepted, the same call says that it is not in force yet.
    node.accepted(Request::One(set("web", &[1]))).await.unwrap();
    assert!(!node.accepted(Request::One(set("web", &[1]))).await.unwrap().in_force);
}

/// 1: the flows that a change made stale are gone, also for one who repeats the call meanwhile.
#[tokio::test(start_paused = true)]
async fn ok_comes_after_the_stale_flows_are_gone() {
    let node = Node::new().await;
    node.apply(vec![upsert_udp("dns", &[1]), set("dns", &[1, 2])]).await.unwrap();
    node.cleaning_pace.set(500 * MS);
    let first = node.begin(Request::One(set("dns", &[2])));
    node.pass(100 * MS).await;
    assert_eq!(node.kernel.objects(), node.expected(), "the rules are in");
    let repeated = node.begin(Request::One(set("dns", &[2])));
    let other = tokio::time::timeout(200 * MS, node.apply(vec![upsert("web", &[2]), set("web", &[1])])).await;
    assert!(other.unwrap().is_ok(), "another service does not wait for the walk");
    assert!(!first.is_finished() && !repeated.is_finished());
    first.await.unwrap().unwrap();
    repeated.await.unwrap().unwrap();
    assert_eq!(node.cleaner.walks().iter().flatten().count(), 1);
}

/// 1: flows that could not be forgotten are owed, and the caller is told.
#[tokio::test(start_paused = true)]
async fn a_walk_that_fails_is_owed() {
    let node = Node::new().await;
    node.apply(vec![upsert_udp("dns", &[1]), set("dns", &[1, 2])]).await.unwrap();
    node.cleaner.fail(true);
    assert_eq!(not_programmed(node.one(set("dns", &[2])).await), ["dns".to_owned()].into());
    assert_eq!(node.state("dns"), ServiceState::Failed);
    let repeated = node.begin(Request::One(set("dns", &[2])));
    node.pass(100 * MS).await;
    assert!(!repeated.is_finished(), "the rules are in, the flows are not gone");
    node.cleaner.fail(false);
    repeated.await.unwrap().unwrap();
    assert_eq!(node.cleaner.walks().iter().flatten().count(), 1, "{:?}", node.cleaner.walks());
    node.assert_settled();
}

/// 1: what an owner says of the network is in force when the call answers.
#[tokio::test(start_paused = true)]
async fn ok_for_an_owners_network_is_in_force() {
    let node = Node::start(Setup { pace: Pace::of(20 * MS), ..Setup::default() }).await;
    let mut owner = vipd_model::Owner::new(key("x").owner);
    owner.network.virtual_ranges = vec!["10.96.0.0/16".parse().unwrap()];
    node.call(Request::SetOwner(owner.clone())).await.unwrap();
    assert!(node.kernel.get("guard range 10.96.0.0/16").is_some());
    node.kernel.refuse("guard range 10.97.0.0/16");
    owner.network.virtual_ranges.push("10.97.0.0/16".parse().unwrap());
    assert_eq!(not_programmed(node.call(Request::SetOwner(owner.clone())).await), ["node".to_owned()].into());
    assert!(node.read(|core| core.unhealthy(node.now()).is_some()));
    node.kernel.accept("guard range 10.97.0.0/16");
    node.call(Request::SetOwner(owner)).await.unwrap();
    node.assert_settled();
}

/// 2: acceptance is the commit point.
#[tokio::test(start_paused = true)]
async fn a_refused_call_changes_nothing() {
    let node = Node::new().await;
    node.one(upsert("web", &[1])).await.unwrap();
    let (objects, revision) = (node.kernel.objects(), node.read(|core| core.desired.revision()));
    for operations in [vec![set("web", &[1]), set("nobody", &[1])], vec![upsert("other", &[1])]] {
        assert!(matches!(node.apply(operations).await, Err(CallError::Rejected(_))));
    }
    assert_eq!((node.kernel.objects(), node.read(|core| core.desired.revision())), (objects, revision));
    assert_eq!(node.store.commits(), 1);
}

/// 2: what the kernel refuses is accepted, reported and retried; what was in force stays, and so do the others' changes.
#[tokio::test(start_paused = true)]
async fn not_programmed_leaves_what_was_in_force() {
    let node = Node::new().await;
    node.apply(vec![upsert("a", &[1]), set("a", &[1]), upsert("b", &[2]), set("b", &[1])]).await.unwrap();
    let bad = "userspace endpoint ops/a all4 10.1.0.9:8080";
    node.kernel.refuse(bad);
    let before = node.kernel.objects();
    let answer = node.apply(vec![set("a", &[9]), set("b", &[2])]).await;
    assert!(matches!(&answer, Err(CallError::NotProgrammed { delta, .. }) if delta.revision.0 == 2));
    assert_eq!(not_programmed(answer), ["a".to_owned()].into());
    let now = node.kernel.objects();
    assert!(
        before.iter().filter(|(name, _)| name.contains("ops/a ")).all(|(name, value)| now.get(name) == Some(value))
    );
    assert!(now.contains_key("userspace endpoint ops/b all4 10.1.0.2:8080"));
    assert_eq!((node.state("a"), node.state("b")), (ServiceState::Failed, ServiceState::InForce));
    node.read(|core| {
        assert_eq!(core.programmed_revision(), core.desired.revision(), "a failed one does not hold it back")
    });
    node.kernel.accept(bad);
    node.pass(Duration::from_secs(3)).await;
    assert_eq!(node.state("a"), ServiceState::InForce);
    node.assert_settled();
}

/// 3: only the final state counts, and repeating writes nothing.
#[tokio::test(start_paused = true)]
async fn repeating_writes_nothing() {
    let node = Node::new().await;
    let calls = || vec![upsert("web", &[1, 2]), set("web", &[1, 2, 3]), schedule("web", Algorithm::Wlc)];
    node.apply(calls()).await.unwrap();
    let before = (node.kernel.messages(), node.kernel.transactions(), node.store.commits());
    for _ in 0..3 {
        node.apply(calls()).await.unwrap();
        for call in calls() {
            node.one(call).await.unwrap();
        }
    }
    assert_eq!((node.kernel.messages(), node.kernel.transactions(), node.store.commits()), before);
}

/// 3: however it was reached.
#[tokio::test(start_paused = true)]
async fn only_the_final_state_counts() {
    let (straight, crooked) = (Node::new().await, Node::new().await);
    straight.apply(vec![upsert("web", &[1]), set("web", &[2])]).await.unwrap();
    for call in [
        upsert("old", &[1, 7]),
        delete("old"),
        upsert("web", &[1, 2, 3]),
        set("web", &[1, 2, 3]),
        schedule("web", Algorithm::Lc),
        upsert("web", &[1]),
        set("web", &[2]),
        schedule("web", Algorithm::Default),
    ] {
        crooked.one(call).await.unwrap();
    }
    assert_eq!(straight.kernel.objects(), crooked.kernel.objects());
    straight.read(|a| crooked.read(|b| assert_eq!(a.desired.digest(), b.desired.digest())));
}

/// 4: the cost is the change's, in messages and in what is stored.
#[tokio::test(start_paused = true)]
async fn one_change_costs_the_same_among_ten_and_ten_thousand() {
    let mut costs = Vec::new();
    for services in [10, 10_000] {
        let node =
            Node::start(Setup { desired: Some(declared(services)), watch_order: false, ..Setup::default() }).await;
        node.assert_settled();
        let cost = || (node.kernel.messages(), node.kernel.transactions(), node.kernel.reads(), node.store.commits());
        let before = cost();
        node.one(set("s7", &[1, 2, 3])).await.unwrap();
        node.one(set("s7", &[1, 3])).await.unwrap();
        node.one(upsert("new", &[1])).await.unwrap();
        node.one(delete("new")).await.unwrap();
        let after = cost();
        costs.push((after.0 - before.0, after.1 - before.1, after.2 - before.2, after.3 - before.3));
    }
    assert_eq!(costs[0], costs[1]);
    assert_eq!(costs[0].2, 0, "a change never reads the whole kernel");
    assert_eq!(costs[0].0, 6, "an endpoint comes, one goes, a frontend with its refusal comes and goes");
}

/// 5: nothing vanishes by itself. What the store took is what a restart serves, and the kernel is not even written.
#[tokio::test(start_paused = true)]
async fn a_restart_serves_what_was_accepted() {
    let node = Node::new().await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1, 2])]).await.unwrap();
    node.one(upsert("gone", &[3])).await.unwrap();
    node.one(delete("gone")).await.unwrap();
    let mut stored =
        vipd_model::Desired::new(engines(&Setup::default().engines, &Default::default()), Default::default());
    node.store.deltas().iter().for_each(|delta| stored.apply(delta));
    node.read(|core| assert_eq!(core.desired, stored));

    let kernel = node.kernel.clone();
    node.kill();
    let messages = kernel.messages();
    let node = Node::start(Setup { desired: Some(stored), kernel: kernel.clone(), ..Setup::default() }).await;
    assert_eq!(kernel.messages(), messages);
    node.assert_settled();
}

/// 6: what was accepted is honoured or said.
#[tokio::test(start_paused = true)]
async fn a_capability_that_is_lost_takes_nothing_down() {
    let setup = || Setup { engines: vec![EngineKind::Nftables, EngineKind::Ipvs], ..Setup::default() };
    let random = lacking(&[], &[Algorithm::Wlc]);
    let node = Node::start(Setup { abilities: [(EngineKind::Nftables, random.clone())].into(), ..setup() }).await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1]), schedule("web", Algorithm::Wlc)]).await.unwrap();
    assert_eq!(node.engine("web"), Some(EngineKind::Ipvs));
    let (desired, kernel) = (node.read(|core| core.desired.clone()), node.kernel.clone());
    node.kill();

    // IPVS is gone after a reboot of the node; the kernel still has what it had.
    let mut lost = desired.clone();
    lost.set_engines(engines(&[EngineKind::Nftables], &[(EngineKind::Nftables, random.clone())].into()));
    let abilities = [(EngineKind::Nftables, random)].into();
    let node = Node::start(Setup {
        engines: vec![EngineKind::Nftables],
        abilities,
        desired: Some(lost),
        kernel: kernel.clone(),
        ..setup()
    })
    .await;
    assert_eq!((node.state("web"), node.engine("web")), (ServiceState::InForce, Some(EngineKind::Nftables)));
    let problems = node.read(|core| core.status(core.desired.service(&key("web")).unwrap()).problems);
    assert!(problems.iter().any(|p| p.code == vipd_model::ProblemCode::SchedulerReplaced), "{problems:?}");
    node.kill();

    // It returns by itself.
    let node = Node::start(Setup { desired: Some(desired), kernel, ..setup() }).await;
    assert_eq!(node.engine("web"), Some(EngineKind::Ipvs));
    node.assert_settled();
}

/// Commands that arrive during an apply are one apply more.
#[tokio::test(start_paused = true)]
async fn a_storm_costs_few_transactions() {
    let node = Node::start(Setup { pace: Pace::of(20 * MS), desired: Some(declared(100)), ..Setup::default() }).await;
    let before = node.kernel.transactions();
    let calls: Vec<_> = (0..2000u32)
        .map(|n| node.begin(Request::One(set(&format!("s{}", n % 100), &[1, u8::try_from(n % 50).unwrap() + 2]))))
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let cost = node.kernel.transactions() - before;
    assert!(cost <= 8, "{cost} transactions for 2,000 calls");
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn each_caller_of_a_storm_is_told_its_own_result() {
    let node = Node::start(Setup { pace: Pace::of(20 * MS), desired: Some(declared(50)), ..Setup::default() }).await;
    node.kernel.refuse("userspace endpoint ops/s13 all4 10.1.0.99:8080");
    let calls: Vec<_> = (0..50u32).map(|n| node.begin(Request::One(set(&format!("s{n}"), &[99])))).collect();
    let refused = node.begin(Request::One(set("nobody", &[1])));
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().is_ok(), n != 13);
    }
    assert!(matches!(refused.await.unwrap(), Err(CallError::Rejected(_))));
}
