//! Starting over a kernel that has objects of ours.

use std::time::Duration;

use vipd_engine::fake::FakeKernel;
use vipd_model::{Desired, Millis, Owner, OwnerName, Request, Restart, Sync};

use super::kit::*;
use super::words::*;
use crate::reconcile::run::Settings;
use crate::reconcile::{CallError, Hold, ServiceState};

const SECOND: Duration = Duration::from_secs(1);

fn ops() -> OwnerName {
    key("x").owner
}

/// A kernel that serves `web` and `lost`, and the state behind it.
async fn served() -> (FakeKernel, Desired) {
    let node = Node::new().await;
    node.apply(vec![upsert("web", &[1]), set("web", &[1]), upsert("lost", &[2]), set("lost", &[2])]).await.unwrap();
    node.kill();
    (node.kernel.clone(), node.read(|core| core.desired.clone()))
}

fn sync(node: &Node, names: &[(&str, u8)]) -> Request {
    let (ticket, begun) = node.control.sync_begin(&ops());
    let declares = names.iter().zip(0..).map(|((name, vip), index)| vipd_model::command::Declare {
        index,
        key: key(name),
        definition: serving(&[*vip]).into(),
        scheduler: None,
        endpoints: endpoints(&[1]),
    });
    let declares: Vec<_> = declares.collect();
    Request::Sync(Box::new(Sync {
        owner: ops(),
        take_over: false,
        holder: String::new(),
        ticket,
        begun,
        settings: None,
        allow_large_removal: true,
        all_or_nothing: false,
        declared: declares.len() as u64,
        declares,
        unconverted: Vec::new(),
    }))
}

#[tokio::test(start_paused = true)]
async fn without_a_store_the_kernel_keeps_what_it_has_until_an_operator_says_so() {
    let (kernel, _) = served().await;
    let before = kernel.objects();
    let node = Node::start(Setup { kernel: kernel.clone(), known: false, ..Setup::default() }).await;
    node.pass(120 * SECOND).await;
    assert_eq!(kernel.objects(), before);
    assert!(node.read(|core| core.holding()).unwrap().contains("no store"));
    // What is declared meanwhile is served, what it does not name stays.
    node.apply(vec![upsert("web", &[1]), set("web", &[1])]).await.unwrap();
    assert_eq!(kernel.objects(), before);
    assert_eq!(node.control.release_hold("me".into(), "it is all there".into()).await.unwrap(), 3);
    assert_eq!(node.read(|core| core.holding()), None);
    node.assert_settled();
    assert_eq!(node.control.release_hold("me".into(), String::new()).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_store_named_owners_are_waited_for() {
    let (kernel, _) = served().await;
    let settings = Settings { wait_for_owners: [ops()].into(), ..Settings::default() };
    let before = kernel.objects();
    let node = Node::start(Setup { kernel: kernel.clone(), known: false, settings, ..Setup::default() }).await;
    node.pass(SECOND).await;
    assert_eq!(kernel.objects(), before);
    assert!(node.read(|core| core.holds.contains(&Hold::Owner(ops()))));
    let messages = kernel.messages();
    node.call(sync(&node, &[("web", 1)])).await.unwrap();
    node.pass(SECOND).await;
    assert_eq!(kernel.messages() - messages, 3, "what it declares is there already; what it does not goes");
    assert_eq!(node.read(|core| core.holding()), None);
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_awaits_its_sync_is_not_served_before_and_not_torn_down() {
    let (kernel, mut desired) = served().await;
    let owner = Owner { on_restart: Restart::AwaitSync, ..Owner::new(ops()) };
    set_owner(&mut desired, owner, Millis(1));
    let before = kernel.objects();
    let node = Node::start(Setup { kernel: kernel.clone(), desired: Some(desired), ..Setup::default() }).await;
    node.pass(SECOND).await;
    assert_eq!(node.state("web"), ServiceState::Withdrawn);
    assert_eq!(kernel.objects(), before, "the kernel keeps what it has");
    let messages = kernel.messages();
    node.call(sync(&node, &[("web", 1)])).await.unwrap();
    assert_eq!(node.state("web"), ServiceState::InForce);
    node.pass(SECOND).await;
    assert_eq!(kernel.messages() - messages, 3, "only what the Sync left out is written: it goes");
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn a_release_serves_what_was_withheld_before_it_removes_anything() {
    let (kernel, mut desired) = served().await;
    set_owner(&mut desired, Owner { on_restart: Restart::AwaitSync, ..Owner::new(ops()) }, Millis(1));
    let node = Node::start(Setup { kernel: kernel.clone(), desired: Some(desired), ..Setup::default() }).await;
    let messages = kernel.messages();
    assert_eq!(node.control.release_hold("me".into(), String::new()).await.unwrap(), 0);
    assert_eq!((kernel.messages(), node.state("web")), (messages, ServiceState::InForce));
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn a_state_that_is_too_old_is_not_restored() {
    let (_, desired) = served().await;
    let owner = Owner { restore_max_age: Some(600 * SECOND), ..Owner::new(ops()) };
    for (age, state) in [(599_000, ServiceState::InForce), (601_000, ServiceState::Withdrawn)] {
        let mut desired = desired.clone();
        set_owner(&mut desired, owner.clone(), Millis(1_000_000_000 - age));
        let node = Node::start(Setup { desired: Some(desired), ..Setup::default() }).await;
        assert_eq!(node.state("web"), state, "{age} ms old");
        match (state, node.one(set("web", &[5])).await) {
            (ServiceState::InForce, answer) => drop(answer.unwrap()),
            (_, answer) => assert!(matches!(answer, Err(CallError::NotProgrammed { .. })), "said, not served"),
        }
    }
}

fn set_owner(desired: &mut Desired, owner: Owner, at: Millis) {
    let request = Request::SetOwner(owner);
    let command = vipd_model::Command { actor: Default::default(), at, session: 0, note: String::new(), request };
    desired.dispatch(&command).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_restored_service_that_the_kernel_refuses_keeps_what_it_has() {
    let (kernel, mut desired) = served().await;
    // The change was stored, the process died before it was programmed; now the kernel refuses it.
    let request = Request::One(upsert("web", &[1, 9]));
    let command =
        vipd_model::Command { actor: Default::default(), at: Millis(5), session: 0, note: String::new(), request };
    desired.dispatch(&command).unwrap();
    kernel.refuse("userspace frontend 10.96.0.9 . tcp . 80");
    let before = kernel.objects();
    let node = Node::start(Setup { kernel: kernel.clone(), desired: Some(desired), ..Setup::default() }).await;
    node.pass(5 * SECOND).await;
    assert_eq!(node.state("web"), ServiceState::Failed);
    assert_eq!(kernel.objects(), before);
    kernel.accept("userspace frontend 10.96.0.9 . tcp . 80");
    node.pass(60 * SECOND).await;
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn left_over_objects_of_a_crash_go_once_the_state_is_programmed() {
    let (kernel, mut desired) = served().await;
    let request = Request::One(delete("lost"));
    let command =
        vipd_model::Command { actor: Default::default(), at: Millis(5), session: 0, note: String::new(), request };
    desired.dispatch(&command).unwrap();
    let node = Node::start(Setup { kernel: kernel.clone(), desired: Some(desired), ..Setup::default() }).await;
    node.assert_settled();
    assert!(!kernel.dump().contains("lost"));
}
