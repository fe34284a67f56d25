use proptest::prelude::*;

use super::*;

fn door(address: IpAddr, port: u16) -> Door {
    Door { place: Place::Vip(address), protocol: Protocol::Tcp, ports: PortRange::one(port) }
}

fn leaf(n: u16) -> Arc<Leaf> {
    Arc::new(Leaf {
        service: format!("ID{n}").into(),
        name: format!("k8s/web-{n}").into(),
        goal: Goal::Chain(format!("VIPD-S-ID{n}").into()),
        inside: n.is_multiple_of(7).then_some(Goal::Reject),
        nat: Some(SourceNatClass::Internal),
    })
}

fn vip(n: u32) -> IpAddr {
    IpAddr::from((0x0a60_0000 + n).to_be_bytes())
}

fn all(entries: &BTreeMap<Door, Arc<Leaf>>) -> Chains {
    compose(Role::Balancer, Family::V4, entries, &Chains::new(), None).made
}

fn place() -> impl Strategy<Value = Place> {
    let address = prop_oneof![0u32..40, (0u32..16).prop_map(|n| n << 20), any::<u32>()].prop_map(vip_of);
    prop_oneof![
        6 => address.clone().prop_map(Place::Vip),
        1 => address.prop_map(Place::Own),
        2 => Just(Place::Node(Family::V4)),
    ]
}

fn vip_of(n: u32) -> IpAddr {
    IpAddr::from(0x0a60_0000u32.wrapping_add(n).to_be_bytes())
}

fn change() -> impl Strategy<Value = (Door, Option<Arc<Leaf>>)> {
    let port = prop_oneof![Just(80u16), 30_000u16..30_040, any::<u16>()];
    (place(), port, prop::option::weighted(0.7, 0u16..50)).prop_map(|(place, port, n)| {
        let door = Door { place, protocol: Protocol::Tcp, ports: PortRange::one(port) };
        (door, n.map(leaf))
    })
}

proptest! {
    /// Composing what changed is composing everything; so the shape knows no history.
    #[test]
    fn a_change_ends_where_composing_everything_does(
        batches in prop::collection::vec(prop::collection::vec(change(), 0..40), 1..8)
    ) {
        let (mut entries, mut chains) = (BTreeMap::new(), Chains::new());
        for batch in batches {
            let mut touched = BTreeSet::new();
            for (door, leaf) in batch {
                match leaf {
                    Some(leaf) => entries.insert(door, leaf),
                    None => entries.remove(&door),
                };
                touched.insert(door);
            }
            let changes = compose(Role::Balancer, Family::V4, &entries, &chains, Some(&touched));
            chains.extend(changes.made);
            chains.retain(|chain, _| !changes.gone.contains(chain));
            prop_assert_eq!(&chains, &all(&entries));
        }
    }
}

/// What a packet meets: each rule on its way is one step.
fn walk(chains: &Chains, chain: &str, to: IpAddr, steps: &mut usize) -> Option<String> {
    let rules = &chains[&(Table::Nat, chain.to_owned())];
    for line in rules.lines() {
        *steps += 1;
        let rule = Rule::parse(&crate::rule::words(line)).unwrap();
        if rule.destination.is_some_and(|(not, net)| net.contains(&to) == not) {
            continue;
        }
        match rule.target.unwrap() {
            Target::Goto(next) | Target::Jump(next) if chains.contains_key(&(Table::Nat, next.clone())) => {
                return walk(chains, &next, to, steps);
            }
            Target::Goto(next) => return Some(next),
            Target::Jump(_) => {}
            other => panic!("{other:?}"),
        }
    }
    None
}

#[test]
fn a_packet_passes_few_rules_however_many_services_there_are() {
    let entries: BTreeMap<Door, Arc<Leaf>> = (0..10_000).map(|n| (door(vip(n), 80), leaf(1 + n as u16 % 5))).collect();
    let chains = all(&entries);
    for n in [0, 5_000, 9_999] {
        let mut steps = 0;
        let goal = walk(&chains, "VIPD-SERVICES", vip(n), &mut steps);
        assert_eq!(goal, Some(format!("VIPD-S-ID{}", 1 + n % 5)));
        assert!(steps <= 50, "{steps} rules for service {n}");
    }
    let mut steps = 0;
    assert_eq!(walk(&chains, "VIPD-SERVICES", IpAddr::from([192, 0, 2, 1]), &mut steps), None);
    assert_eq!(steps, 1, "a packet that is no service's");
}

#[test]
fn a_small_tree_reads_well() {
    let mut entries: BTreeMap<Door, Arc<Leaf>> = (1..3).map(|n| (door(vip(n), 80), leaf(n as u16))).collect();
    let node = Door {
        place: Place::Node(Family::V4),
        protocol: Protocol::Udp,
        ports: PortRange { first: 30000, last: 30009 },
    };
    entries.insert(node, leaf(3));
    let printed: Vec<String> =
        all(&entries).iter().map(|((table, chain), rules)| format!("{table} {chain}\n{rules}\n")).collect();
    let expected = include_str!("golden.txt");
    assert_eq!(printed.join("\n"), expected, "src/tree/golden.txt");
}
