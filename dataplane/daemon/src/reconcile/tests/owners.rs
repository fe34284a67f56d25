//! Leases.

use std::time::Duration;

use vipd_model::{Lease, LeaseExpiry, Owner, ProblemCode, Request};

use super::kit::*;
use super::words::*;
use crate::reconcile::ServiceState;
use crate::reconcile::journal::EventKind;

const SECOND: Duration = Duration::from_secs(1);

async fn leased(on_expiry: LeaseExpiry) -> Node {
    let node = Node::new().await;
    let lease = Some(Lease { ttl: 10 * SECOND, on_expiry });
    node.call(Request::SetOwner(Owner { lease, ..Owner::new(key("x").owner) })).await.unwrap();
    node.apply(vec![upsert("web", &[1]), set("web", &[1])]).await.unwrap();
    node
}

fn has(node: &Node, code: ProblemCode) -> bool {
    node.read(|core| core.status(core.desired.service(&key("web")).unwrap()).problems.iter().any(|p| p.code == code))
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_reports_and_traffic_flows() {
    let node = leased(LeaseExpiry::Report).await;
    let before = node.kernel.objects();
    node.pass(9 * SECOND).await;
    assert!(!has(&node, ProblemCode::LeaseExpired));
    node.pass(2 * SECOND).await;
    assert!(has(&node, ProblemCode::LeaseExpired));
    assert_eq!((node.state("web"), node.kernel.objects()), (ServiceState::InForce, before));
    node.call(Request::RenewLease(key("web").owner)).await.unwrap();
    assert!(!has(&node, ProblemCode::LeaseExpired));
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_withdraws_and_deletes_nothing() {
    let node = leased(LeaseExpiry::Withdraw).await;
    node.pass(11 * SECOND).await;
    assert_eq!(node.state("web"), ServiceState::Withdrawn);
    assert_eq!(node.kernel.dump(), "");
    assert!(node.read(|core| core.desired.service(&key("web")).is_some()));
    node.pass(60 * SECOND).await;
    // OK says that it is served again, not only that the lease runs.
    node.pace.set(Duration::from_millis(20));
    node.call(Request::RenewLease(key("web").owner)).await.unwrap();
    assert_eq!(node.state("web"), ServiceState::InForce);
    node.assert_settled();
    let (_, events) = node.read(|core| core.journal.after(0, 100));
    assert_eq!(events.iter().filter(|e| e.kind == EventKind::Lease).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_renews_and_even_a_no_op_waits_for_the_service_to_be_back() {
    let node = leased(LeaseExpiry::Withdraw).await;
    node.pass(11 * SECOND).await;
    assert_eq!(node.kernel.dump(), "");
    node.pace.set(Duration::from_millis(20));
    node.one(set("web", &[1])).await.unwrap();
    assert_eq!(node.state("web"), ServiceState::InForce);
    node.assert_settled();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_renewed_in_time_never_expires() {
    let node = leased(LeaseExpiry::Withdraw).await;
    let messages = node.kernel.messages();
    for _ in 0..20 {
        node.pass(9 * SECOND).await;
        node.call(Request::RenewLease(key("web").owner)).await.unwrap();
    }
    assert_eq!(node.kernel.messages(), messages);
    assert_eq!(node.state("web"), ServiceState::InForce);
}

#[tokio::test(start_paused = true)]
async fn deleting_an_owner_removes_what_it_declared() {
    let node = leased(LeaseExpiry::Withdraw).await;
    node.call(Request::DeleteOwner(key("web").owner)).await.unwrap();
    assert_eq!(node.kernel.dump(), "");
    node.pass(20 * SECOND).await;
    node.assert_settled();
}
