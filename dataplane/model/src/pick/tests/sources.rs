//! SH, MH and DH: consistency and disruption.

use super::*;

const CLIENTS: u64 = 20_000;

fn client(n: u64, port: u16) -> Draw<'static, Idle> {
    Draw { source: SocketAddr::new(draw(n, &Idle).source.ip(), port), turn: mix(n), ..draw(n, &Idle) }
}

#[test]
fn a_client_meets_one_member() {
    for algorithm in [Algorithm::Sh, Algorithm::Mh] {
        let plain = picker(algorithm, &[1, 2, 3, 1, 1]);
        let with_port = Picker::new(algorithm, true, &members(&[1, 2, 3, 1, 1]));
        let mut moved = 0;
        for n in 0..1_000 {
            let random = mix(n);
            let (a, b) = (client(n, 1_000), Draw { turn: 7, random, ..client(n, 2_000) });
            assert_eq!(plain.pick(&a), plain.pick(&b), "whatever its port");
            assert_eq!(with_port.pick(&a), with_port.pick(&Draw { turn: 9, random, ..a }));
            moved += u32::from(with_port.pick(&a) != with_port.pick(&b));
        }
        assert!(moved > 500, "{algorithm:?}: another port is another client ({moved} of 1,000)");
    }
}

#[test]
fn a_destination_meets_one_member() {
    let picker = picker(Algorithm::Dh, &[1, 2, 3, 1, 1]);
    let mut counts = vec![0; 5];
    for vip in 0..20_000u32 {
        let to = Ipv4Addr::from_bits(0x0a60_0000 + vip).into();
        let picked = picker.pick(&Draw { destination: to, ..draw(1, &Idle) });
        assert_eq!(picked, picker.pick(&Draw { destination: to, ..draw(vip.into(), &Idle) }));
        counts[picked.unwrap()] += 1;
    }
    fits(&counts, &[0.125, 0.25, 0.375, 0.125, 0.125]).unwrap();
}

/// When a member is excluded its own clients move, over all others by weight; nobody else's do.
#[test]
fn excluding_a_member_moves_its_own_clients_only() {
    for algorithm in [Algorithm::Sh, Algorithm::Mh] {
        let picker = picker(algorithm, &[1, 2, 3, 1, 1]);
        let without = (|_| 0, |member: usize| member == 2);
        let mut heirs = vec![0; 5];
        for n in 0..CLIENTS {
            let before = picker.pick(&client(n, 1)).unwrap();
            let c = client(n, 1);
            let after =
                picker.pick(&Draw { turn: 0, random: 0, source: c.source, destination: c.destination, load: &without });
            if before == 2 {
                heirs[after.unwrap()] += 1;
            } else {
                assert_eq!(after, Some(before), "{algorithm:?}");
            }
        }
        fits(&heirs, &[0.2, 0.4, 0.0, 0.2, 0.2]).unwrap();
    }
}

/// The clients that moved though their member is in both sets, of all.
fn disruption(before: &[Member], after: &[Member]) -> f64 {
    let (old, new) = (Picker::new(Algorithm::Mh, false, before), Picker::new(Algorithm::Mh, false, after));
    let mut moved = 0;
    for n in 0..CLIENTS {
        let was = before[old.pick(&client(n, 1)).unwrap()].key;
        let is = after[new.pick(&client(n, 1)).unwrap()].key;
        let stays = |set: &[Member], key| set.iter().any(|m| m.key == key);
        moved += u32::from(was != is && stays(after, was) && stays(before, is));
    }
    f64::from(moved) / CLIENTS as f64
}

#[test]
fn maglev_disturbs_few_when_the_set_changes() {
    for n in [5usize, 20, 80, 300] {
        let all = members(&vec![1; n]);
        let mut less = all.clone();
        less.remove(n / 3);
        let moved = disruption(&all, &less);
        // SH by comparison moves about half.
        assert!(moved < 0.02, "one of {n} leaves: {moved} of the clients of others move");
        let mut heavier = all.clone();
        heavier[n / 2].weight = NonZeroU16::new(3).unwrap();
        // A member that triples takes 2/n of all from the others; beyond those, few move.
        assert!(disruption(&all, &heavier) < 2.0 / n as f64 + 0.03, "one of {n} gains weight");
    }
}

#[test]
fn maglev_tables_are_prime_and_give_slots_by_weight() {
    for (size, _) in maglev::SIZES {
        assert!((2..).take_while(|d| d * d <= size).all(|d| size % d != 0), "{size} is not prime");
    }
    for weights in [&[1u16, 1, 1][..], &[1, 2, 3, 10], &[65_535, 1], &[5; 100], &[9; 700]] {
        let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
        let shares = picker(Algorithm::Mh, weights).shares(destination());
        for (share, &weight) in shares.iter().zip(weights) {
            assert!((share - f64::from(weight) / total).abs() <= 1.5 / 8_191.0, "{weights:?}: {shares:?}");
            assert!(*share > 0.0, "nobody with a weight goes without");
        }
    }
}

/// Numbers that a client and an operator may have seen before a restart or an upgrade: they must not change.
#[test]
fn seeds_are_fixed() {
    let source: SocketAddr = "192.0.2.77:40000".parse().unwrap();
    let load = &Idle;
    let draw = Draw { turn: 0, random: 0, source, destination: destination(), load };
    let pick = |algorithm| picker(algorithm, &[1; 10]).pick(&draw).unwrap();
    assert_eq!([Algorithm::Sh, Algorithm::Mh, Algorithm::Dh].map(pick), [2, 9, 4]);
}

#[test]
fn address_families_hash_apart_and_in_all_bits() {
    let picker = picker(Algorithm::Sh, &[1; 16]);
    let mut counts = vec![0; 16];
    for n in 0..16_000u128 {
        // Clients that differ in their upper half only, as hosts of one provider with privacy addresses off do.
        let source = IpAddr::from((0x2001_0db8u128 << 96 | n << 64 | 1).to_be_bytes());
        counts[picker.pick(&Draw { source: SocketAddr::new(source, 0), ..draw(0, &Idle) }).unwrap()] += 1;
    }
    fits(&counts, &[1.0 / 16.0; 16]).unwrap();
}
