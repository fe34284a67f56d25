//! Laws, over random sequences.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::chaos::{Chaos, ChaosEngine, Mischief};
use crate::plan::Plan;

/// The services that a sequence is about. Each has VIPs of its own, so that no two want one.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A batch: for some services, how many VIPs and which endpoints, or removal.
fn batch() -> impl Strategy<Value = BTreeMap<usize, Option<(u8, Vec<u8>)>>> {
    let to = proptest::option::weighted(0.75, (0u8..4, proptest::collection::vec(1u8..6, 0..4)));
    proptest::collection::btree_map(0..NAMES.len(), to, 1..5)
}

fn build(index: usize, vips: u8, endpoints: &[u8]) -> Arc<Service> {
    let vips: Vec<_> = (0..vips).map(|n| u8::try_from(index).unwrap() * 10 + n + 1).collect();
    service(NAMES[index], &vips, endpoints)
}

fn changes(batch: &BTreeMap<usize, Option<(u8, Vec<u8>)>>) -> Vec<(ServiceKey, Option<Arc<Service>>)> {
    let one = |(index, to): (&usize, &Option<(u8, Vec<u8>)>)| {
        (key(NAMES[*index]), to.as_ref().map(|(vips, endpoints)| build(*index, *vips, endpoints)))
    };
    batch.iter().map(one).collect()
}

fn selected(changes: &[(ServiceKey, Option<Arc<Service>>)]) -> Vec<Change<Selected>> {
    changes.iter().map(|(key, s)| (key.clone(), s.as_ref().map(|s| select(s, KIND, Algorithm::Rr)))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Invariant 2: after an apply, what is observed is what is rendered, and the next plan is empty.
    #[test]
    fn observed_is_rendered_and_nothing_is_left_to_plan(batches in proptest::collection::vec(batch(), 1..12)) {
        let kernel = FakeKernel::default();
        let mut runner = runner(&kernel);
        let mut reference: BTreeMap<ServiceKey, Arc<Service>> = BTreeMap::new();
        for batch in &batches {
            let changes = changes(batch);
            let (plan, _) = runner.dry_run(selected(&changes));
            let before = kernel.objects();
            let messages = kernel.messages();
            prop_assert!(change(&mut runner, selected(&changes)).is_empty());
            // A dry run tells what then happens, message by message.
            prop_assert_eq!(Plan::difference(&before, &kernel.objects()), plan.clone());
            prop_assert_eq!(kernel.messages() - messages, (plan.make.len() + plan.finish.len()) as u64);
            for (key, service) in changes {
                match service {
                    Some(service) => drop(reference.insert(key, service)),
                    None => drop(reference.remove(&key)),
                }
            }
            prop_assert_eq!(kernel.objects(), rendered(reference.values()));
            prop_assert_eq!(runner.wanted(), kernel.objects());
            prop_assert!(runner.is_settled());
            let again: Vec<_> = reference.values().map(to).collect();
            prop_assert!(runner.dry_run(again).0.is_empty());
        }
    }

    /// Invariant 3: whatever prefix of a plan is in the kernel, an unchanged service is as it was, and of a changed one
    /// no frontend is without the endpoints that it has both before and after.
    #[test]
    fn every_prefix_of_a_plan_leaves_unchanged_services_alone(first in batch(), second in batch()) {
        let kernel = FakeKernel::default();
        let mut runner = runner(&kernel);
        change(&mut runner, selected(&changes(&first)));
        let before = kernel.objects();
        let (plan, _) = runner.dry_run(selected(&changes(&second)));
        let touched: Vec<_> = second.keys().map(|index| key(NAMES[*index]).to_string()).collect();
        let unchanged = |objects: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            let of_touched = |text: &str| touched.iter().any(|key| text.split(' ').any(|word| word == key));
            objects.iter().filter(|(name, value)| !of_touched(name) && !of_touched(value))
                .map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        let mut after = before.clone();
        for operation in plan.make.iter().chain(&plan.finish) {
            match operation.after() {
                Some(value) => drop(after.insert(operation.key().clone(), value.clone())),
                None => drop(after.remove(operation.key())),
            }
        }
        let mut now = before.clone();
        for operation in plan.make.iter().chain(&plan.finish) {
            match operation.after() {
                Some(value) => drop(now.insert(operation.key().clone(), value.clone())),
                None => drop(now.remove(operation.key())),
            }
            prop_assert_eq!(unchanged(&now), unchanged(&before));
            for name in before.keys().filter(|name| after.contains_key(*name)) {
                prop_assert!(now.contains_key(name), "{} went in between", name);
            }
        }
    }

    /// Whatever fails, lies or hides on the way: once there is peace, one check and one retry bring the kernel to what
    /// was asked for last, and what failed meanwhile never touched anybody else.
    #[test]
    fn peace_brings_the_last_state(batches in proptest::collection::vec(batch(), 1..12), seed in 1u64..) {
        let kernel = FakeKernel::default();
        let chaos = Chaos::new(seed, Mischief::default());
        let engine = ChaosEngine::new(FakeEngine::new(KIND, kernel.clone()), chaos.clone());
        let mut runner = Runner::start(engine).unwrap();
        runner.release().unwrap();
        let mut reference: BTreeMap<ServiceKey, Arc<Service>> = BTreeMap::new();
        let mut touched: BTreeMap<ServiceKey, Option<Arc<Service>>> = BTreeMap::new();
        chaos.set(Mischief { fail: 150, half: 150, deny: 100, lie: 50, blind: 200, hang: 0 });
        for batch in &batches {
            let changes = changes(batch);
            change(&mut runner, selected(&changes));
            for (key, service) in changes {
                match &service {
                    Some(service) => drop(reference.insert(key.clone(), Arc::clone(service))),
                    None => drop(reference.remove(&key)),
                }
                touched.insert(key, service);
            }
        }
        chaos.set(Mischief::default());
        runner.check().unwrap();
        runner.repair();
        let again: Vec<_> = touched.into_iter().collect();
        prop_assert!(change(&mut runner, selected(&again)).is_empty());
        prop_assert_eq!(kernel.objects(), rendered(reference.values()));
        prop_assert_eq!(runner.check().unwrap(), vec![]);
        prop_assert!(runner.is_settled());
    }
}
