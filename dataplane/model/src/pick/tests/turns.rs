//! RR and WRR.

use super::*;

#[test]
fn a_heavy_member_does_not_answer_in_bursts() {
    let order = |weights: &[u16]| -> Vec<usize> {
        let picker = picker(Algorithm::Wrr, weights);
        let flows = 2 * weights.iter().map(|&weight| u64::from(weight)).sum::<u64>();
        (0..flows).map(|n| picker.pick(&draw(n, &Idle)).unwrap()).collect()
    };
    assert_eq!(order(&[1, 2, 3])[..6], [2, 1, 0, 2, 1, 2]);
    for weights in [[1, 2, 3], [3, 2, 1], [1, 1, 2], [5, 4, 3]] {
        let bursts = order(&weights).windows(3).filter(|three| three.iter().all(|m| *m == three[0])).count();
        assert_eq!(bursts, 0, "{weights:?}: {:?}", order(&weights));
    }
    // Nobody waits much longer than an even spread would have it.
    let heavy_and_light = order(&[100, 1]);
    let light: Vec<usize> = (0..heavy_and_light.len()).filter(|at| heavy_and_light[*at] == 1).collect();
    assert_eq!(light[1] - light[0], 101);
}

#[test]
fn round_robin_of_equals_is_in_order() {
    let picker = picker(Algorithm::Rr, &[1, 1, 1]);
    let picked: Vec<usize> = (0..7).map(|n| picker.pick(&draw(n, &Idle)).unwrap()).collect();
    assert_eq!(picked, [0, 1, 2, 0, 1, 2, 0]);
    let heavy = self::picker(Algorithm::Wrr, &[700, 700, 700]);
    assert_eq!((0..7).map(|n| heavy.pick(&draw(n, &Idle)).unwrap()).collect::<Vec<_>>(), picked);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any `total` turns in a row, wherever they begin, give each member exactly its weight.
    #[test]
    fn a_period_gives_each_member_exactly_its_weight(weights in prop::collection::vec(1u16..60, 1..9), periods in 0u64..1000) {
        let picker = picker(Algorithm::Wrr, &weights);
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        let mut counts = vec![0u64; weights.len()];
        for n in periods * total..(periods + 1) * total {
            counts[picker.pick(&draw(n, &Idle)).unwrap()] += 1;
        }
        prop_assert_eq!(counts, weights.iter().map(|&w| u64::from(w)).collect::<Vec<_>>());
    }

    /// No member is ever more than a few turns ahead of or behind its due: nobody gets its whole weight in a run.
    #[test]
    fn turns_are_spread_over_the_period(
        weights in prop_oneof![prop::collection::vec(1u16..60, 2..9), prop::collection::vec(1u16..=u16::MAX, 2..9)],
    ) {
        let picker = picker(Algorithm::Wrr, &weights);
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        let mut counts = vec![0u64; weights.len()];
        let mut worst: f64 = 0.0;
        for n in 0..total.min(20_000) {
            counts[picker.pick(&draw(n, &Idle)).unwrap()] += 1;
            for (&count, &weight) in counts.iter().zip(&weights) {
                let due = (n + 1) as f64 * f64::from(weight) / total as f64;
                worst = worst.max((count as f64 - due).abs());
            }
        }
        prop_assert!(worst < 5.0, "{worst} turns from its due: {weights:?}");
    }
}

/// A member that is excluded for a while hands its turns to all others alike, not to its neighbour.
#[test]
fn turns_of_an_excluded_member_are_shared_by_weight() {
    let weights = [1, 1, 1, 1, 2];
    for (dead, live) in [(vec![2], 5.0), (vec![0, 1], 4.0), (vec![4], 4.0), (vec![1, 4], 3.0)] {
        let picker = picker(Algorithm::Wrr, &weights);
        let load = (|_| 0, |member: usize| dead.contains(&member));
        let mut counts = vec![0u64; weights.len()];
        for n in 0..60_000 {
            counts[picker.pick(&draw(n, &load)).unwrap()] += 1;
        }
        for (member, &count) in counts.iter().enumerate() {
            let due = if dead.contains(&member) { 0.0 } else { 60_000.0 * f64::from(weights[member]) / live };
            assert!(
                (count as f64 - due).abs() <= due * 0.01,
                "{dead:?} dead: {counts:?}, member {member} is due {due}"
            );
        }
    }
}

#[test]
fn the_largest_set_keeps_to_its_weights() {
    let weights: Vec<u16> = (0..10_000u32).map(|i| if i % 100 == 0 { u16::MAX } else { 1 + (i % 7) as u16 }).collect();
    let picker = picker(Algorithm::Wrr, &weights);
    let counts = counts(&picker, weights.len(), 200_000);
    let heavy: u64 = counts.iter().step_by(100).sum();
    let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
    let due = 200_000.0 * 100.0 * f64::from(u16::MAX) / total as f64;
    assert!((heavy as f64 - due).abs() < 200_000.0 * 0.005, "{heavy} of a due {due}");
    for &count in counts.iter().step_by(100) {
        assert!((count as f64 - due / 100.0).abs() < 5.0, "{count} of a due {}", due / 100.0);
    }
}
