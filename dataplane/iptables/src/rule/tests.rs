use proptest::prelude::*;

use super::*;

fn net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (any::<u32>(), 0u8..=32).prop_map(|(a, l)| IpNet::new(IpAddr::from(a.to_be_bytes()), l).unwrap().trunc()),
        (any::<u128>(), 0u8..=128).prop_map(|(a, l)| IpNet::new(IpAddr::from(a.to_be_bytes()), l).unwrap().trunc()),
    ]
}

fn ports() -> impl Strategy<Value = PortRange> {
    (any::<u16>(), any::<u16>()).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) })
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)]
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        Just(Target::Jump("VIPD-X".into())),
        Just(Target::Goto("VIPD-T-10.96.0.0-16".into())),
        Just(Target::Return),
        Just(Target::Masquerade),
        Just(Target::Reset),
        Just(Target::Drop),
        Just(Target::Unreachable(Family::V6)),
        any::<u16>().prop_map(Target::Redirect),
        (any::<IpAddr>(), any::<Option<u16>>()).prop_map(|(address, port)| Target::Dnat(address, port)),
    ]
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let match_ = (
        prop::option::of(net()),
        prop::option::of((any::<bool>(), net())),
        prop::option::of((any::<bool>(), "[a-z]{1,8}[+]?")),
        prop::option::of((protocol(), prop::option::of(ports()))),
        any::<(bool, bool)>(),
        prop::collection::vec(prop_oneof![Just(State::New), Just(State::Dnat), Just(State::NotDnat)], 0..3),
    );
    let rest = (
        (prop::option::of(net()), prop::option::of(ports())),
        any::<Option<u16>>(),
        prop::option::of("[ -~]{1,40}"),
        prop::option::of(prop_oneof![(0..=CERTAIN).prop_map(Chance::Random), (1u32..1000).prop_map(Chance::Nth),]),
        prop::option::of((any::<IpAddr>(), any::<Option<u32>>())),
        prop::option::of(prop_oneof![Just(Family::V4), Just(Family::V6)]),
        prop::option::of(target()),
    );
    (match_, rest).prop_map(|(m, r)| Rule {
        source: m.0,
        destination: m.1,
        interface: m.2,
        protocol: m.3.map(|(protocol, _)| protocol),
        ports: m.3.and_then(|(_, ports)| ports),
        local_source: m.4.0,
        local_destination: m.4.1,
        states: m.5,
        original: Original { destination: r.0.0, ports: r.0.1 },
        reply_port: r.1,
        comment: r.2,
        chance: r.3,
        recent: r.4.map(|(mask, within)| Recent { name: "VIPD-A".into(), mask, within }),
        to_itself: r.5,
        target: r.6,
    })
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(rule in any_rule()) {
        prop_assert_eq!(Rule::parse(&words(&rule.to_string())), Some(rule));
    }

    #[test]
    fn no_line_makes_it_panic(line in "[ -~]{0,80}") {
        let _ = Rule::parse(&words(&line));
    }
}

/// As both back ends of 1.8.9 print them.
#[test]
fn other_spellings_are_the_same_rule() {
    let same = [
        (
            "-p tcp -m conntrack --ctorigdst 10.96.0.1/32 --ctorigdstport 80 -g X",
            "-p 6 -m conntrack --ctorigdst 10.96.0.1 --ctorigdstport 80:80 -g X",
        ),
        ("-d 10.96.0.1/32 -j X", "-d 10.96.0.1 -j X"),
        (
            "-p tcp -m statistic --mode random --probability 0.33333333349 -j X",
            "-p tcp -m statistic --mode random --probability 0.3333333333 -j X",
        ),
        ("-m comment --comment vipd -j X", "-j X -m comment --comment \"vipd\""),
    ];
    for (one, other) in same {
        let (one, other) = (Rule::parse(&words(one)).unwrap(), Rule::parse(&words(other)).unwrap());
        assert_eq!(one, other);
    }
    for foreign in
        ["-m mark --mark 0x1 -j X", "-o eth0 -j MASQUERADE", "-j MARK --set-xmark 0x1/0x1", "-p icmp -j DROP"]
    {
        assert_eq!(Rule::parse(&words(foreign)), None, "{foreign}");
    }
}
