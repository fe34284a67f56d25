//! What holds for every algorithm.

use super::*;

fn any_weights() -> impl Strategy<Value = Vec<u16>> {
    prop_oneof![
        prop::collection::vec(1u16..4, 1..12),
        prop::collection::vec(1u16..=u16::MAX, 1..12),
        (1usize..40).prop_map(|n| vec![1; n]),
    ]
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(Algorithm::ALL.as_slice())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Whatever is excluded: a member that is not is picked, if there is one; and asking again gives the same.
    #[test]
    fn none_only_if_all_are_excluded(
        algorithm in any_algorithm(),
        port: bool,
        weights in any_weights(),
        excluded in prop::collection::vec(any::<bool>(), 40),
        active in prop::collection::vec(0u32..6, 40),
        n: u64,
    ) {
        let picker = Picker::new(algorithm, port, &members(&weights));
        let load = (|m: usize| active[m], |m: usize| excluded[m]);
        let picked = picker.pick(&draw(n, &load));
        prop_assert_eq!(picked, picker.pick(&draw(n, &load)));
        match picked {
            Some(member) => prop_assert!(member < weights.len() && !excluded[member]),
            None => prop_assert!(excluded[..weights.len()].iter().all(|&e| e)),
        }
    }

    /// A client that is tried on one member after the other meets every one.
    #[test]
    fn excluding_what_failed_tries_every_member(algorithm in any_algorithm(), weights in any_weights(), n: u64) {
        let picker = picker(algorithm, &weights);
        let mut failed = vec![false; weights.len()];
        for _ in 0..weights.len() {
            let load = (|_| 0, |m: usize| failed[m]);
            let member = picker.pick(&draw(n, &load)).unwrap();
            failed[member] = true;
        }
        let load = (|_| 0, |m: usize| failed[m]);
        prop_assert_eq!(picker.pick(&draw(n, &load)), None);
    }

    #[test]
    fn shares_sum_to_one(algorithm in any_algorithm(), weights in any_weights()) {
        let shares = picker(algorithm, &weights).shares(destination());
        prop_assert_eq!(shares.len(), weights.len());
        prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
    }

    /// What is pinned is what is picked, whatever turn, chance and load say.
    #[test]
    fn pinned_is_picked(
        algorithm in any_algorithm(), port: bool, weights in any_weights(), n: u64, turn: u64, random: u64, busy in 0u32..9,
    ) {
        let picker = Picker::new(algorithm, port, &members(&weights));
        let load = (|m: usize| busy + m as u32, |_| false);
        let draw = Draw { turn, random, ..draw(n, &load) };
        let pinned = picker.pinned(draw.source.ip(), Some(draw.source.port()), destination());
        prop_assert_eq!(pinned.is_some(), algorithm.is_hash());
        if pinned.is_some() {
            prop_assert_eq!(pinned, picker.pick(&draw));
        }
        let without_port = picker.pinned(draw.source.ip(), None, destination());
        let takes_port = port && matches!(algorithm, Algorithm::Sh | Algorithm::Mh);
        prop_assert_eq!(without_port, if takes_port { None } else { pinned });
    }
}

#[test]
fn nobody_is_picked_from_nothing() {
    for algorithm in Algorithm::ALL {
        let picker = picker(algorithm, &[]);
        assert_eq!(picker.pick(&draw(0, &Idle)), None, "{algorithm:?}");
        assert_eq!(picker.shares(destination()), Vec::<f64>::new());
    }
}

#[test]
fn idle_members_are_picked_in_their_shares() {
    for weights in [&[1, 1, 1, 1, 1][..], &[1, 2, 3, 10], &[7], &[65_535, 1, 30_000]] {
        for algorithm in Algorithm::ALL {
            let picker = picker(algorithm, weights);
            let counts = counts(&picker, weights.len(), 60_000);
            if let Err(why) = fits(&counts, &picker.shares(destination())) {
                panic!("{algorithm:?} {weights:?}: {why}");
            }
        }
    }
}

/// The shares themselves: by weight, but where the algorithm's definition says otherwise.
#[test]
fn shares_are_by_weight_unless_the_algorithm_says_otherwise() {
    let weights = [1, 2, 3, 10];
    for algorithm in Algorithm::ALL {
        let shares = picker(algorithm, &weights).shares(destination());
        let expected: Option<[f64; 4]> = match algorithm {
            Algorithm::Lc => Some([0.25; 4]),
            Algorithm::Sed | Algorithm::Fo | Algorithm::Ovf => Some([0.0, 0.0, 0.0, 1.0]),
            Algorithm::Dh | Algorithm::Lblc | Algorithm::Lblcr => None,
            _ => Some([1.0 / 16.0, 2.0 / 16.0, 3.0 / 16.0, 10.0 / 16.0]),
        };
        match expected {
            // MH rounds to its slots.
            Some(expected) => {
                for (share, expected) in shares.iter().zip(expected) {
                    assert!((share - expected).abs() < 2.0 / 8_191.0, "{algorithm:?}: {shares:?}");
                }
            }
            None => assert_eq!(shares.iter().filter(|&&share| share == 1.0).count(), 1, "{algorithm:?}"),
        }
    }
}
