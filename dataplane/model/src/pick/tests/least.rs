//! What looks at loads: LC, WLC, SED, NQ, OVF, FO, P2C, LBLC, LBLCR.

use super::*;

/// Who may be picked, over many draws, with these loads.
fn picked(algorithm: Algorithm, weights: &[u16], active: &[u32]) -> Vec<usize> {
    let picker = picker(algorithm, weights);
    let load = (|m: usize| active[m], |_| false);
    let mut seen: Vec<usize> = (0..2_000).map(|n| picker.pick(&draw(n, &load)).unwrap()).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[test]
fn least_connections_by_definition() {
    /// Weights, flows, who may be picked.
    type Row = (Algorithm, &'static [u16], &'static [u32], &'static [usize]);
    let rows: [Row; 12] = [
        (Algorithm::Lc, &[1, 1, 1], &[3, 1, 2], &[1]),
        (Algorithm::Lc, &[1, 100, 1], &[2, 3, 2], &[0, 2]),
        (Algorithm::Wlc, &[1, 100, 1], &[2, 3, 2], &[1]),
        (Algorithm::Wlc, &[1, 2, 3], &[1, 2, 3], &[0, 1, 2]),
        (Algorithm::Wlc, &[1, 2, 3], &[1, 2, 4], &[0, 1]),
        // Expected delay: 1/1, 1/10; 3/3 equals 1/1.
        (Algorithm::Sed, &[1, 10], &[0, 0], &[1]),
        (Algorithm::Sed, &[1, 10], &[0, 9], &[0, 1]),
        (Algorithm::Sed, &[1, 10], &[0, 10], &[0]),
        (Algorithm::Nq, &[1, 10], &[0, 1], &[0]),
        (Algorithm::Nq, &[1, 10], &[0, 0], &[0, 1]),
        (Algorithm::Nq, &[1, 10], &[1, 1], &[1]),
        (Algorithm::Nq, &[1, 10], &[1, 19], &[0, 1]),
    ];
    for (algorithm, weights, active, expected) in rows {
        assert_eq!(picked(algorithm, weights, active), expected, "{algorithm:?} {weights:?} {active:?}");
    }
}

#[test]
fn the_equally_busy_share_by_weight() {
    let picker = picker(Algorithm::Wlc, &[1, 2, 3, 4]);
    let load = (|m: usize| [1, 2, 3, 9][m], |_| false);
    let mut counts = vec![0; 4];
    for n in 0..60_000 {
        counts[picker.pick(&draw(n, &load)).unwrap()] += 1;
    }
    fits(&counts, &[1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0, 0.0]).unwrap();
}

#[test]
fn fail_over_stays_with_the_heaviest() {
    assert_eq!(picked(Algorithm::Fo, &[1, 5, 5, 2], &[0, 1_000, 0, 0]), [1]);
    let picker = picker(Algorithm::Fo, &[1, 5, 5, 2]);
    let after = |failed: &[usize]| picker.pick(&draw(3, &(|_| 0, |m: usize| failed.contains(&m))));
    assert_eq!([after(&[1]), after(&[1, 2]), after(&[1, 2, 3])], [Some(2), Some(3), Some(0)]);
}

#[test]
fn overflow_fills_the_heaviest_first() {
    assert_eq!(picked(Algorithm::Ovf, &[2, 5, 3], &[0, 4, 0]), [1]);
    assert_eq!(picked(Algorithm::Ovf, &[2, 5, 3], &[0, 5, 0]), [2]);
    assert_eq!(picked(Algorithm::Ovf, &[2, 5, 3], &[1, 5, 3]), [0]);
    assert_eq!(picked(Algorithm::Ovf, &[2, 5, 3], &[3, 6, 4]), [1], "all full: fewest for its weight");
}

#[test]
fn two_choices_prefer_the_less_busy() {
    let weights = [1; 10];
    let picker = picker(Algorithm::P2c, &weights);
    let load = (|m: usize| u32::from(m == 0), |_| false);
    let busy = (0..10_000).filter(|&n| picker.pick(&draw(n, &load)) == Some(0)).count();
    assert_eq!(busy, 0, "the busy one never wins a comparison with another");
    // Balls into bins: the fullest of 10,000 bins with 10,000 balls has about ln ln n / ln 2 more than the mean; one
    // random choice would have about 7.
    let mut flows = vec![0u32; 10_000];
    let many = self::picker(Algorithm::P2c, &[1; 10_000]);
    for n in 0..10_000 {
        let chosen = many.pick(&draw(n, &(|m: usize| flows[m], |_| false))).unwrap();
        flows[chosen] += 1;
    }
    assert!(flows.iter().max() <= Some(&4), "{:?}", flows.iter().max());
}

#[test]
fn locality_keeps_a_destination_at_home_until_home_is_full() {
    let weights = [10; 8];
    let to = |picker: &Picker, vip: u8, active: &[u32; 8]| {
        let load = (|m: usize| active[m], |_| false);
        picker.pick(&Draw { destination: IpAddr::from([10, 96, 0, vip]), ..draw(u64::from(vip) * 7, &load) }).unwrap()
    };
    for algorithm in [Algorithm::Lblc, Algorithm::Lblcr] {
        let picker = picker(algorithm, &weights);
        let homes: BTreeMap<u8, usize> = (0..200).map(|vip| (vip, to(&picker, vip, &[0; 8]))).collect();
        let used: std::collections::BTreeSet<_> = homes.values().collect();
        assert_eq!(used.len(), 8, "destinations are spread");
        for (&vip, &home) in &homes {
            let mut active = [3; 8];
            active[home] = 10;
            assert_eq!(to(&picker, vip, &active), home, "at its weight it still has room");
            active[home] = 11;
            assert_ne!(to(&picker, vip, &active), home, "over its weight, and others are below half");
            assert_eq!(to(&picker, vip, &[11; 8]), home, "all are: none is better");
        }
    }
    // LBLC gives what is too much to the least busy; LBLCR to the destination's own next, whoever is least busy.
    let (lblc, lblcr) = (picker(Algorithm::Lblc, &weights), picker(Algorithm::Lblcr, &weights));
    let mut replicas_differ_from_least = 0;
    for vip in 0..200 {
        let home = to(&lblc, vip, &[0; 8]);
        let idle = (home + 1) % 8;
        let mut active = [4; 8];
        (active[home], active[idle]) = (11, 0);
        assert_eq!(to(&lblc, vip, &active), idle);
        replicas_differ_from_least += u32::from(to(&lblcr, vip, &active) != idle);
    }
    assert!(replicas_differ_from_least > 120, "{replicas_differ_from_least}");
}
