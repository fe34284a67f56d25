//! nf_tables against the real kernel: what is written is read back equal, refusals name the object, dumps are whole.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use proptest::prelude::*;

use super::*;
use crate::{Error, testing};

const TABLE: &str = "room";

fn v4(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(n))
}

fn map() -> Set {
    let key = vec![Field::Ipv4, Field::Protocol, Field::Port];
    Set {
        name: "frontends".into(),
        key,
        data: Some(Data::Fields(vec![Field::Port])),
        interval: false,
        traits: Traits::default(),
    }
}

fn pair(n: u32, data: u16) -> Element {
    let key = KeyBytes::new().address(v4(0x0a60_0000 + n)).protocol(6).port(443);
    Element::pair(key, KeyBytes::new().port(data))
}

/// A table with one map in it.
fn with_map() -> Nft {
    let mut nft = Nft::open().unwrap();
    let mut batch = Batch::new(TABLE);
    batch.add_table(TableFlags::default());
    batch.add_set(&map());
    nft.commit(&mut batch).unwrap();
    nft
}

/// Every expression that we can write, in a rule that the kernel takes.
fn everything() -> Vec<(&'static str, Vec<Expr>)> {
    let tcp =
        || [Expr::Meta { key: MetaKey::Protocol, to: Reg(0) }, Expr::Cmp { op: Cmp::Eq, from: Reg(0), value: vec![6] }];
    let key = || {
        [
            Expr::Meta { key: MetaKey::Family, to: Reg(5) },
            Expr::Cmp { op: Cmp::Eq, from: Reg(5), value: vec![2] },
            Expr::Payload { header: Header::Network, offset: 16, length: 4, to: Reg(0) },
            Expr::Meta { key: MetaKey::Protocol, to: Reg(1) },
            Expr::Payload { header: Header::Transport, offset: 2, length: 2, to: Reg(2) },
        ]
    };
    let lookup = |data, inverted| Expr::Lookup { set: "frontends".into(), key: Reg(0), data, inverted };
    let mut redirect = key().to_vec();
    redirect.extend([lookup(Some(Reg(0)), false), Expr::Redirect { port: Some(Reg(0)) }]);
    let mut absent = key().to_vec();
    absent.extend([lookup(None, true), Expr::Counter, Expr::Verdict(Verdict::Goto("other".into()))]);
    let mut reset = tcp().to_vec();
    reset.push(Expr::Reject(RejectWith::TcpReset));
    let mut state = vec![
        Expr::Ct { key: CtKey::State, direction: None, to: Reg(3) },
        Expr::Bitwise { from: Reg(3), to: Reg(3), mask: 8u32.to_ne_bytes().into(), xor: vec![0; 4] },
        Expr::Cmp { op: Cmp::Ne, from: Reg(3), value: vec![0; 4] },
        Expr::Ct { key: CtKey::Status, direction: None, to: Reg(4) },
        Expr::FibAddressType { flags: FIB_DADDR, to: Reg(0) },
        Expr::Cmp { op: Cmp::Eq, from: Reg(0), value: 2u32.to_ne_bytes().into() },
    ];
    state.push(Expr::Verdict(Verdict::Jump("other".into())));
    vec![
        ("nat-pre", redirect),
        ("nat-pre", vec![Expr::Redirect { port: None }]),
        (
            "nat-pre",
            vec![Expr::Immediate { to: Reg(1), value: vec![0x1f, 0x90] }, Expr::Redirect { port: Some(Reg(1)) }],
        ),
        ("nat-pre", picks(&key())),
        ("nat-pre", hashes()),
        ("nat-post", vec![Expr::Masquerade { fully_random: false }]),
        ("nat-post", original()),
        ("filter-pre", [remembers(SetChange::Update), remembers(SetChange::Delete)].concat()),
        ("filter-pre", absent),
        ("filter-pre", reset),
        ("filter-pre", vec![Expr::Reject(RejectWith::PortUnreachable)]),
        ("filter-pre", state),
        ("filter-pre", vec![Expr::Meta { key: MetaKey::InputInterfaceName, to: Reg(8) }, Expr::Verdict(Verdict::Drop)]),
        ("other", vec![Expr::Verdict(Verdict::Return)]),
        ("other", vec![Expr::Verdict(Verdict::Accept)]),
    ]
}

/// Pool and slot in a word, then destination NAT to what a map has for them.
fn picks(key: &[Expr]) -> Vec<Expr> {
    let lookup = Expr::Lookup { set: "targets".into(), key: Reg(0), data: Some(Reg(8)), inverted: false };
    let mut picks = key[..2].to_vec();
    picks.extend([
        Expr::Meta { key: MetaKey::Priority, to: Reg(0) },
        Expr::Number { numbers: Numbers::Random, modulus: 7, offset: 3, to: Reg(1) },
        lookup,
        Expr::Immediate { to: Reg(0), value: vec![0; 4] },
        Expr::MetaSet { key: MetaKey::Priority, from: Reg(0) },
        Expr::DestinationNat { family: 2, address: Reg(8), port: Some(Reg(9)) },
    ]);
    picks
}

fn hashes() -> Vec<Expr> {
    vec![
        Expr::Payload { header: Header::Network, offset: 12, length: 4, to: Reg(2) },
        Expr::Hash { from: Reg(2), length: 4, modulus: 251, seed: 7, to: Reg(1) },
        Expr::Number { numbers: Numbers::Increasing, modulus: 5, offset: 0, to: Reg(3) },
        Expr::Immediate { to: Reg(8), value: vec![10, 0, 0, 1] },
        Expr::DestinationNat { family: 2, address: Reg(8), port: None },
    ]
}

/// The tuples of the flow, and source NAT with a port at random.
fn original() -> Vec<Expr> {
    let (original, reply) = (Some(Direction::Original), Some(Direction::Reply));
    vec![
        Expr::Ct { key: CtKey::DestinationIpv4, direction: original, to: Reg(0) },
        Expr::Ct { key: CtKey::DestinationPort, direction: original, to: Reg(1) },
        Expr::Ct { key: CtKey::SourceIpv6, direction: reply, to: Reg(4) },
        Expr::Ct { key: CtKey::SourcePort, direction: reply, to: Reg(8) },
        Expr::FibAddressType { flags: FIB_SADDR, to: Reg(9) },
        Expr::Masquerade { fully_random: true },
    ]
}

fn remembers(change: SetChange) -> Vec<Expr> {
    let timeout = (change == SetChange::Update).then_some(Duration::from_millis(1500));
    vec![
        Expr::Meta { key: MetaKey::Priority, to: Reg(0) },
        Expr::Payload { header: Header::Network, offset: 12, length: 4, to: Reg(1) },
        Expr::Meta { key: MetaKey::Priority, to: Reg(2) },
        Expr::ChangeSet { set: "clients".into(), change, key: Reg(0), data: Some(Reg(2)), timeout },
    ]
}

/// Maps that rules pick from and remember in.
fn active_maps() -> [Set; 2] {
    let traits = Traits { dynamic: true, timeout: true, size: 1000, ..Traits::default() };
    let word = || Some(Data::Fields(vec![Field::Word]));
    let targets = Some(Data::Fields(vec![Field::Ipv4, Field::Port]));
    let (counter, interval) = (Traits { counter: true, ..Traits::default() }, false);
    [
        Set { name: "clients".into(), key: vec![Field::Word, Field::Ipv4], data: word(), interval, traits },
        Set { name: "targets".into(), key: vec![Field::Word, Field::Mark], data: targets, interval, traits: counter },
    ]
}

#[test]
fn items_come_back_with_comment_limit_and_time_and_are_found_by_key() {
    testing::in_namespace(|| {
        let mut nft = with_map();
        let limited = Set { name: "limited".into(), traits: Traits::default(), ..active_maps()[1].clone() };
        let timed = Traits { timeout: true, ..Traits::default() };
        let mortal = Set { name: "mortal".into(), key: vec![Field::Port], data: None, interval: false, traits: timed };
        let mut batch = Batch::new(TABLE);
        active_maps().iter().chain([&limited, &mortal]).for_each(|set| batch.add_set(set));
        let data = [10, 0, 0, 1, 0x1f, 0x90, 0, 0];
        let keys: Vec<[u8; 8]> = (0..200u32).map(|n| [n.to_ne_bytes(), [0; 4]].concat().try_into().unwrap()).collect();
        let item = |key| Item { key, data: Payload::Bytes(&data), comment: Some("k8s/wéb"), ..Item::default() };
        batch.add_items("targets", keys.iter().map(|key| item(key)));
        batch.add_items("limited", [Item { connections: Some(7), ..item(&keys[0]) }].into_iter());
        let hour = Duration::from_secs(3600);
        batch.add_items("mortal", [Item { key: &[0, 80], timeout: Some(hour), ..Item::default() }].into_iter());
        nft.commit(&mut batch).unwrap();

        let sets = nft.sets(TABLE).unwrap();
        assert!(active_maps().iter().chain([&limited, &mortal]).all(|set| sets.contains(set)), "{sets:?}");
        let seen = nft.visit(TABLE, "targets", |seen: &mut Vec<_>, found| {
            assert_eq!((found.data, found.comment, found.packets), (&data[..], Some("k8s/wéb"), Some(0)));
            seen.push(found.key.to_vec());
        });
        assert_eq!(seen.unwrap().len(), keys.len());
        let mut found = Vec::new();
        let absent = [255; 8];
        let wanted = [&keys[3][..], &absent];
        nft.find(TABLE, "targets", wanted.into_iter(), |one| found.push(one.key.to_vec())).unwrap();
        assert_eq!(found, [keys[3].to_vec()]);
        nft.find(TABLE, "limited", [&keys[0][..]].into_iter(), |one| {
            assert_eq!((one.connections, one.packets), (Some(7), Some(0)));
        })
        .unwrap();
        nft.find(TABLE, "mortal", [&[0, 80][..]].into_iter(), |one| {
            assert!(one.timeout == Some(hour) && one.expires.unwrap() <= hour);
        })
        .unwrap();
        let mut batch = Batch::new(TABLE);
        batch.delete_items("targets", keys.iter().map(|key| Item { key, ..Item::default() }));
        nft.commit(&mut batch).unwrap();
        testing::run("nft", &["list", "ruleset"]);
        assert!(nft.elements(TABLE, "targets").unwrap().is_empty());
    });
}

fn chains() -> Vec<Chain> {
    let base =
        |name: &str, kind, point, priority| Chain { name: name.into(), hook: Some(Hook { kind, point, priority }) };
    vec![
        base("nat-pre", ChainKind::Nat, HookPoint::Prerouting, -100),
        base("nat-post", ChainKind::Nat, HookPoint::Postrouting, 100),
        base("filter-pre", ChainKind::Filter, HookPoint::Prerouting, -90),
        Chain { name: "other".into(), hook: None },
    ]
}

#[test]
fn chains_and_rules_come_back_equal() {
    testing::in_namespace(|| {
        let mut nft = with_map();
        let mut batch = Batch::new(TABLE);
        chains().iter().for_each(|chain| batch.add_chain(chain));
        active_maps().iter().for_each(|set| batch.add_set(set));
        for (chain, expressions) in &everything() {
            batch.add_rule(chain, expressions, Some(chain));
        }
        nft.commit(&mut batch).unwrap();

        assert_eq!(nft.chains(TABLE).unwrap(), chains());
        let mut want = everything();
        want.sort_by_key(|(chain, _)| chains().iter().position(|c| c.name == *chain));
        let rules = nft.rules(TABLE).unwrap();
        let have: Vec<_> = rules.iter().map(|rule| (rule.chain.as_str(), rule.expressions.clone())).collect();
        assert_eq!(have, want);
        assert!(rules.iter().all(|rule| rule.comment.as_deref() == Some(&rule.chain)));
        testing::run("nft", &["list", "ruleset"]);
    });
}

#[test]
fn every_kind_of_set_comes_back_equal() {
    testing::in_namespace(|| {
        let sets = [
            map(),
            Set {
                name: "v6".into(),
                key: vec![Field::Ipv6, Field::Port],
                data: None,
                interval: false,
                traits: Traits::default(),
            },
            Set {
                name: "jumps".into(),
                key: vec![Field::Port],
                data: Some(Data::Verdict),
                interval: false,
                traits: Traits::default(),
            },
            Set { name: "nets".into(), key: vec![Field::Ipv4], data: None, interval: true, traits: Traits::default() },
            Set { name: "ranges".into(), data: Some(Data::Fields(vec![Field::Port])), interval: true, ..map() },
        ];
        let range = Element {
            key_end: Some(KeyBytes::new().address(v4(1)).protocol(6).port(2000).into()),
            ..Element::pair(KeyBytes::new().address(v4(1)).protocol(6).port(1000), KeyBytes::new().port(7))
        };
        let net = [
            Element::key(KeyBytes::new().address(v4(0x0a60_0000))),
            Element { interval_end: true, ..Element::key(KeyBytes::new().address(v4(0x0a61_0000))) },
        ];
        let mut nft = Nft::open().unwrap();
        let mut batch = Batch::new(TABLE);
        batch.add_table(TableFlags::default());
        batch.add_chain(&Chain { name: "other".into(), hook: None });
        sets.iter().for_each(|set| batch.add_set(set));
        batch.add_elements("frontends", &[pair(1, 15001), pair(2, 15002)]);
        batch.add_elements("nets", &net);
        batch.add_elements("ranges", std::slice::from_ref(&range));
        batch.add_verdicts("jumps", &[(Element::key(KeyBytes::new().port(1)), Verdict::Goto("other".into()))]);
        nft.commit(&mut batch).unwrap();

        assert_eq!(nft.sets(TABLE).unwrap(), sets);
        let sorted = |mut list: Vec<Element>| {
            list.sort();
            list
        };
        assert_eq!(sorted(nft.elements(TABLE, "frontends").unwrap()), [pair(1, 15001), pair(2, 15002)]);
        assert_eq!(sorted(nft.elements(TABLE, "nets").unwrap()), net);
        assert_eq!(nft.elements(TABLE, "ranges").unwrap(), [range]);
        let listing = testing::run("nft", &["list", "ruleset"]);
        assert!(listing.contains("10.96.0.0/16"), "{listing}");
        assert!(listing.contains("0.0.0.1 . tcp . 1000-2000 : 7"), "{listing}");
    });
}

#[test]
fn a_refusal_names_the_operation_and_the_element() {
    testing::in_namespace(|| {
        let mut nft = with_map();
        let mut elements: Vec<_> = (0..3000).map(|n| pair(n, 1)).collect();
        elements[2437] = pair(3, 99);
        let mut batch = Batch::new(TABLE);
        batch.add_set(&Set { name: "other".into(), ..map() });
        batch.add_elements("frontends", &elements);
        assert!(batch.messages() > 2, "the list does not fit one attribute");
        let Error::Refused(refusal) = nft.commit(&mut batch).unwrap_err() else { panic!("not a refusal") };
        assert_eq!(
            (refusal.errno, refusal.operation_index, refusal.element_index),
            (libc::EEXIST, Some(1), Some(2437))
        );
        assert!(refusal.to_string().contains("add 3000 elements to frontends, element 2437"), "{refusal}");
        assert!(nft.elements(TABLE, "frontends").unwrap().is_empty(), "a refused batch leaves nothing behind");
        assert_eq!(nft.sets(TABLE).unwrap().len(), 1);

        let mut batch = Batch::new(TABLE);
        batch.delete_elements("frontends", &[pair(1, 1)]);
        assert!(nft.commit(&mut batch).unwrap_err().is_not_found());
        let mut batch = Batch::new("absent");
        batch.flush_chain("x");
        assert!(nft.commit(&mut batch).unwrap_err().is_not_found());
    });
}

#[test]
fn a_large_batch_goes_in_one_send_and_is_read_back_whole() {
    testing::in_namespace(|| {
        let mut nft = with_map();
        let elements: Vec<_> = (0..20_000).map(|n| pair(n, n as u16)).collect();
        let mut batch = Batch::new(TABLE);
        batch.add_elements("frontends", &elements);
        nft.commit(&mut batch).unwrap();
        let mut have = nft.elements(TABLE, "frontends").unwrap();
        have.sort();
        assert_eq!(have, elements);
    });
}

#[test]
fn a_reading_during_which_somebody_changed_it_is_repeated() {
    testing::in_namespace(|| {
        let mut nft = with_map();
        let mut other = Nft::open().unwrap();
        let mut reads = 0;
        let have = nft.consistent(|nft| {
            reads += 1;
            let list = nft.elements(TABLE, "frontends");
            if reads < 3 {
                let mut batch = Batch::new(TABLE);
                batch.add_elements("frontends", &[pair(reads, 1)]);
                other.commit(&mut batch).unwrap();
            }
            list
        });
        assert_eq!((reads, have.unwrap().len()), (3, 2));
    });
}

/// Another program that changes its own tables faster than ours can be read must not keep us from reading.
#[test]
fn busy_neighbours_do_not_keep_us_from_reading() {
    testing::in_namespace(|| {
        let mut nft = with_map();
        let elements: Vec<_> = (0..20_000).map(|n| pair(n, n as u16)).collect();
        let mut batch = Batch::new(TABLE);
        batch.add_elements("frontends", &elements);
        nft.commit(&mut batch).unwrap();
        let stop = AtomicBool::new(false);
        let (have, commits) = thread::scope(|scope| {
            scope.spawn(|| commit_without_pause(&stop));
            let before = nft.generation();
            let have = nft.consistent(|nft| nft.elements(TABLE, "frontends"));
            let after = nft.generation();
            stop.store(true, Ordering::Relaxed);
            (have, after.unwrap() - before.unwrap())
        });
        assert!(commits > 10, "the neighbour was not busy: {commits}");
        let mut have = have.unwrap();
        have.sort();
        assert_eq!(have, elements);
    });
}

fn commit_without_pause(stop: &AtomicBool) {
    let mut other = Nft::open().unwrap();
    for n in 0.. {
        let mut batch = Batch::new("busy");
        batch.add_table(TableFlags::default());
        batch.add_chain(&Chain { name: format!("chain-{}", n % 100), hook: None });
        if n % 100 == 99 {
            batch.delete_table();
        }
        other.commit(&mut batch).unwrap();
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
}

#[test]
fn an_owned_table_outlives_its_owner_and_is_taken_over() {
    testing::in_namespace(|| {
        let add = |nft: &mut Nft| {
            let mut batch = Batch::new(TABLE);
            batch.add_table(TableFlags::OWNED);
            batch.add_set(&map());
            nft.commit(&mut batch)
        };
        let mut first = Nft::open().unwrap();
        match add(&mut first) {
            Err(error) if error.is_unsupported() => return testing::skip("this kernel has no table flag persist"),
            other => other.unwrap(),
        }
        assert_eq!(first.table(TABLE).unwrap().unwrap().owner, Some(first.port()));
        testing::run("nft", &["flush", "ruleset"]);
        assert!(first.table(TABLE).unwrap().is_some(), "somebody's flush passes an owned table by");
        let mut second = Nft::open().unwrap();
        assert!(add(&mut second).is_err(), "while its owner lives nobody else may have it");
        drop(first);
        let orphan = second.table(TABLE).unwrap().expect("it persists");
        let ownerless = TableFlags { owner: false, persist: true };
        assert_eq!((orphan.owner, orphan.flags), (None, ownerless), "an orphan is anybody's: a flush takes it now");
        add(&mut second).unwrap();
        assert_eq!(second.table(TABLE).unwrap().unwrap().owner, Some(second.port()));
    });
}

proptest! {
    #[test]
    fn decoders_take_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        use crate::{attr::Attrs, message::parse_messages};
        for message in parse_messages(&bytes) {
            let _ = (message.acknowledgement(), message.resource(), message.attrs(4).count());
        }
        let _ = parse_expressions(&bytes);
        let _ = parse_element(&bytes);
        let _ = parse_found(&bytes);
        let _ = parse_committers(&bytes).count();
        let _ = parse_set(Attrs::new(&bytes));
        let _ = parse_rule(Attrs::new(&bytes));
        let _ = parse_chain(Attrs::new(&bytes));
        let _ = parse_table(Attrs::new(&bytes));
    }
}
