//! Steps that fail: who is told, and what stays in force.

use super::*;
use crate::chaos::{Chaos, ChaosEngine, Mischief};
use crate::runner::DriftKind;

const ALWAYS: u16 = 1000;

#[test]
fn one_bad_service_among_a_thousand_fails_alone() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    let names: Vec<_> = (0..1000).map(|n| format!("s{n}")).collect();
    kernel.refuse("nftables endpoint ops/s617 all4 10.1.0.2:8080");
    let services: Vec<_> = names.iter().map(|name| service(name, &[], &[1, 2])).collect();
    assert_eq!(change(&mut runner, services.iter().map(to).collect()), ["s617"]);
    assert_eq!(kernel.objects(), rendered(services.iter().filter(|s| s.key != key("s617"))));
    assert!(kernel.transactions() < 30, "{} transactions to find it", kernel.transactions());
    kernel.accept("nftables endpoint ops/s617 all4 10.1.0.2:8080");
    assert!(change(&mut runner, vec![to(&services[617])]).is_empty());
    assert_eq!(kernel.objects(), rendered(&services));
}

#[test]
fn a_service_that_fails_keeps_what_was_in_force() {
    for mischief in [
        Mischief { fail: ALWAYS, ..Mischief::default() },
        Mischief { half: ALWAYS, ..Mischief::default() },
        Mischief { deny: ALWAYS, ..Mischief::default() },
    ] {
        for seed in 1..20 {
            let kernel = FakeKernel::default();
            let chaos = Chaos::new(seed, Mischief::default());
            let engine = ChaosEngine::new(FakeEngine::new(KIND, kernel.clone()), chaos.clone());
            let mut runner = Runner::start(engine).unwrap();
            runner.release().unwrap();
            let (before, after) = (service("web", &[1, 2], &[1, 2]), service("web", &[2, 3], &[2, 3, 4]));
            assert!(change(&mut runner, vec![to(&before)]).is_empty());
            chaos.set(mischief);
            let made = runner.make(vec![to(&after)]);
            assert_eq!(failures(&made), ["web"]);
            assert!(made.outcomes[0].1.as_ref().unwrap_err().message.starts_with("chaos: "));
            chaos.set(Mischief::default());
            // The put-back met the same mischief; the next attempt finishes the job from wherever it was left.
            assert!(change(&mut runner, vec![to(&before)]).is_empty());
            assert_eq!(kernel.objects(), rendered([&before]), "{mischief:?}");
            assert!(change(&mut runner, vec![to(&after)]).is_empty());
            assert_eq!(kernel.objects(), rendered([&after]), "{mischief:?}");
        }
    }
}

#[test]
fn half_of_a_change_is_put_back() {
    let kernel = FakeKernel::default();
    let mut runner = Runner::start(HalfOnce { engine: FakeEngine::new(KIND, kernel.clone()), armed: false }).unwrap();
    runner.release().unwrap();
    let before = service("web", &[1], &[1, 2]);
    assert!(change(&mut runner, vec![to(&before)]).is_empty());
    runner.steps_mut().armed = true;
    assert_eq!(change(&mut runner, vec![to(&service("web", &[1, 2], &[1, 2, 3]))]), ["web"]);
    assert_eq!(kernel.objects(), rendered([&before]));
}

/// Applies half of the next transaction and fails, once.
struct HalfOnce {
    engine: FakeEngine,
    armed: bool,
}

impl Steps for HalfOnce {
    type Input = Selected;
    type Key = String;
    type Value = String;

    fn render_node(&self, node: &Node, numbers: &mut crate::Assignments) -> BTreeMap<String, String> {
        self.engine.render_node(node, numbers)
    }

    fn render(
        &self,
        node: &Node,
        input: &Selected,
        numbers: &mut crate::Assignments,
    ) -> Result<BTreeMap<String, String>, crate::RenderError> {
        self.engine.render(node, input, numbers)
    }

    fn observe(&mut self) -> Result<crate::Observed<String, String>, crate::EngineError> {
        self.engine.observe()
    }

    fn apply(
        &mut self,
        operations: &[crate::Operation<String, String>],
        numbers: &mut crate::Assignments,
    ) -> Result<(), crate::ApplyError> {
        if std::mem::take(&mut self.armed) {
            self.engine.apply(&operations[..operations.len() / 2], numbers)?;
            return Err(crate::ApplyError::unknown("half of it"));
        }
        self.engine.apply(operations, numbers)
    }
}

#[test]
fn a_change_over_objects_that_somebody_removed_is_made_all_the_same() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    change(&mut runner, vec![to(&service("a", &[1], &[1, 2])), to(&service("b", &[2], &[1]))]);
    kernel.remove_behind_us(|_| true);
    let mut drained = Service::clone(&service("a", &[1], &[1]));
    drained.endpoints = drained.endpoints.iter().map(|e| Endpoint { weight: 7, ..e.clone() }).collect();
    let a = Arc::new(drained);
    assert!(change(&mut runner, vec![to(&a)]).is_empty(), "no caller is told of somebody else's flush");
    assert!(change(&mut runner, vec![gone("b")]).is_empty());
    assert_eq!(kernel.objects(), rendered([&a]));
}

#[test]
fn a_write_that_could_not_be_read_back_is_read_before_the_next() {
    let kernel = FakeKernel::default();
    let chaos = Chaos::new(3, Mischief { deny: ALWAYS, blind: ALWAYS, ..Mischief::default() });
    let mut runner = {
        chaos.set(Mischief::default());
        let engine = ChaosEngine::new(FakeEngine::new(KIND, kernel.clone()), chaos.clone());
        Runner::start(engine).unwrap()
    };
    runner.release().unwrap();
    chaos.set(Mischief { deny: ALWAYS, blind: ALWAYS, ..Mischief::default() });
    let web = service("web", &[1], &[1]);
    assert_eq!(change(&mut runner, vec![to(&web)]), ["web"]);
    assert_eq!(kernel.objects(), rendered([&web]), "applied, acknowledgement lost");
    chaos.set(Mischief { blind: ALWAYS, ..Mischief::default() });
    let made = runner.make(vec![to(&web)]);
    assert!(made.outcomes[0].1.as_ref().unwrap_err().message.contains("read back"), "{made:?}");
    chaos.set(Mischief::default());
    let messages = kernel.messages();
    assert!(change(&mut runner, vec![to(&web)]).is_empty());
    assert_eq!(kernel.messages(), messages, "it was there already");
    // However often it failed, it is counted once.
    assert!(change(&mut runner, vec![gone("web")]).is_empty());
    assert_eq!((kernel.dump(), runner.object_count()), (String::new(), 0));
}

#[test]
fn a_removal_that_fails_is_tried_again() {
    let kernel = FakeKernel::default();
    let chaos = Chaos::new(1, Mischief::default());
    let mut runner = Runner::start(ChaosEngine::new(FakeEngine::new(KIND, kernel.clone()), chaos.clone())).unwrap();
    runner.release().unwrap();
    let (a, b) = (service("a", &[1], &[1]), service("b", &[2], &[2]));
    change(&mut runner, vec![to(&a), to(&b)]);
    runner.make(vec![gone("a"), gone("b")]);
    chaos.set(Mischief { half: ALWAYS, ..Mischief::default() });
    let failed = failures(&runner.finish(&[a.key.clone(), b.key.clone()]));
    assert!(!failed.is_empty());
    chaos.set(Mischief::default());
    assert!(failures(&runner.finish(&[a.key.clone(), b.key.clone()])).is_empty());
    assert_eq!(kernel.dump(), "");
}

#[test]
fn drift_is_named_and_repaired() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    let web = service("web", &[1], &[1, 2]);
    change(&mut runner, vec![to(&web)]);
    kernel.remove_behind_us(|name| name.ends_with("10.1.0.1:8080"));
    kernel.write_behind_us("nftables endpoint ops/web all4 10.1.0.2:8080", "tcp weight 9");
    kernel.write_behind_us("nftables frontend stranger", "x");
    kernel.write_behind_us("foreign table", "not ours");
    let mut kinds: Vec<_> = runner.check().unwrap().into_iter().map(|d| (d.kind, d.services)).collect();
    kinds.sort_by_key(|(kind, _)| format!("{kind:?}"));
    assert_eq!(
        kinds,
        [(DriftKind::Changed, vec![key("web")]), (DriftKind::Extra, vec![]), (DriftKind::Missing, vec![key("web")])]
    );
    assert!(failures(&runner.repair()).is_empty());
    assert_eq!(runner.check().unwrap(), []);
    let mut expected = rendered([&web]);
    expected.insert("foreign table".to_owned(), "not ours".to_owned());
    assert_eq!(kernel.objects(), expected, "what is foreign stays");
}

#[test]
fn a_lie_is_found_by_the_next_check() {
    let kernel = FakeKernel::default();
    let chaos = Chaos::new(5, Mischief::default());
    let mut runner = Runner::start(ChaosEngine::new(FakeEngine::new(KIND, kernel.clone()), chaos.clone())).unwrap();
    runner.release().unwrap();
    chaos.set(Mischief { lie: ALWAYS, ..Mischief::default() });
    let web = service("web", &[1], &[1, 2, 3]);
    assert!(change(&mut runner, vec![to(&web)]).is_empty());
    assert_ne!(kernel.objects(), rendered([&web]));
    chaos.set(Mischief::default());
    assert_ne!(runner.check().unwrap(), []);
    runner.repair();
    assert_eq!(kernel.objects(), rendered([&web]));
}

#[test]
fn a_service_that_cannot_be_repaired_does_not_hold_up_the_others() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    let all: Vec<_> = (1..=9).map(|n| service(&format!("s{n}"), &[n], &[n])).collect();
    change(&mut runner, all.iter().map(to).collect());
    kernel.remove_behind_us(|_| true);
    kernel.refuse("nftables frontend 10.96.0.4 . tcp . 80");
    runner.check().unwrap();
    assert_eq!(failures(&runner.repair()), ["s4"]);
    assert_eq!(kernel.objects(), rendered(all.iter().filter(|s| s.key != key("s4"))));
}

#[test]
fn a_view_shows_what_the_kernel_has_and_where_it_disagrees() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    change(&mut runner, vec![to(&service("web", &[1], &[1, 2])), to(&service("other", &[2], &[1]))]);
    let seen = |runner: &mut Runner<FakeEngine>| runner.view(&key("web"), None).unwrap();
    assert_eq!(seen(&mut runner).len(), 3);
    assert!(seen(&mut runner).iter().all(|one| one.wrong.is_none()));
    kernel.remove_behind_us(|name| name.ends_with("10.1.0.2:8080"));
    kernel.write_behind_us("nftables endpoint ops/web all4 10.1.0.1:8080", "tcp weight 9");
    let wrong: Vec<_> = seen(&mut runner).into_iter().filter_map(|one| one.wrong).collect();
    assert_eq!(wrong, ["programmed was tcp weight 1", "is not in the kernel; programmed was tcp weight 1"]);
}
