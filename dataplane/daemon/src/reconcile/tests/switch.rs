//! Services that move between engines, and frontends that move between services.

use std::time::Duration;

use vipd_model::{Algorithm, Definition, Drain, EngineKind, ProblemCode, Request};

use super::kit::*;
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
