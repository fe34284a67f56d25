//! Values of the model for the property tests, within what the API can say.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use vipd_model::{
    Algorithm, At, ClientAffinity, Contest, Definition, Drain, Endpoint, EndpointKey, EndpointState, EngineKind,
    Fallback, Frontend, HealthCheck, Lease, LeaseExpiry, Network, NoEndpoints, NodePort, OnExpiry, Owner, OwnerName,
    Policy, PortRange, Probe, Protocol, ProxyProtocol, Restart, Scheduler, Scope, SourceNat,
};

fn one_of<T: Clone + std::fmt::Debug + 'static>(values: &[T]) -> impl Strategy<Value = T> + use<T> {
    proptest::sample::select(values.to_vec())
}

/// Between a second and a day, to the nanosecond.
fn duration() -> impl Strategy<Value = Duration> {
    (1_000_000_000u64..86_400_000_000_000).prop_map(Duration::from_nanos)
}

/// Unicast; never an IPv4 address in IPv6 form.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (1u8..=223, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| IpAddr::from([a, b, c, d])),
        any::<[u8; 14]>().prop_map(|tail| {
            let mut octets = [0x20; 16];
            octets[2..].copy_from_slice(&tail);
            IpAddr::from(octets)
        }),
    ]
}

fn prefixes() -> impl Strategy<Value = Vec<IpNet>> {
    let prefix = (address(), 0u8..=128).prop_map(|(address, length)| {
        let most = if address.is_ipv4() { 32 } else { 128 };
        IpNet::new(address, length.min(most)).unwrap().trunc()
    });
    // `::ffff:…` cannot come up: the addresses begin with 20, and a shorter prefix is not mapped either.
    btree_set(prefix, 0..4).prop_map(|set| set.into_iter().collect())
}

fn text() -> impl Strategy<Value = String> {
    "[a-z0-9/:é ]{0,20}"
}

fn drain() -> impl Strategy<Value = Drain> {
    (option::of(duration()), one_of(&[OnExpiry::Leave, OnExpiry::Reset]))
        .prop_map(|(timeout, on_expiry)| Drain { timeout, on_expiry })
}

pub(super) fn endpoint() -> impl Strategy<Value = Endpoint> {
    let states = [EndpointState::Ready, EndpointState::Draining, EndpointState::NotReady];
    let target = option::of("[a-z]{1,20}").prop_map(|target| target.map(Into::into));
    let key = (address(), any::<u16>()).prop_map(|(address, port)| EndpointKey { address, port });
    (key, any::<u16>(), one_of(&states), any::<bool>(), any::<u32>(), target, option::of(drain()), any::<u32>())
        .prop_map(|(key, weight, state, local, tier, target, drain, max_connections)| Endpoint {
            key,
            weight,
            state,
            local,
            tier,
            target,
            drain,
            max_connections,
            left_at: None,
        })
}

pub(super) fn scheduler() -> impl Strategy<Value = Scheduler> {
    (one_of(&Algorithm::ALL), any::<bool>(), one_of(&[Fallback::Refused, Fallback::Nearest])).prop_map(
        |(algorithm, hash, fallback)| Scheduler {
            algorithm,
            hash_source_port: hash && matches!(algorithm, Algorithm::Sh | Algorithm::Mh),
            fallback,
        },
    )
}

fn frontend() -> impl Strategy<Value = Frontend> {
    let node_port = (one_of(&[(true, true), (true, false), (false, true)]), prefixes())
        .prop_map(|((v4, v6), addresses)| At::NodePort(NodePort { v4, v6, addresses }));
    let at = prop_oneof![address().prop_map(At::Address), node_port];
    let ports = (1u16.., any::<u16>()).prop_map(|(a, b)| PortRange { first: a, last: a.max(b) });
    let scope = one_of(&[Scope::Internal, Scope::External]);
    let nat = one_of(&[SourceNat::Auto, SourceNat::Always, SourceNat::Never]);
    (at, ports, scope, one_of(&[Policy::All, Policy::Local]), prefixes(), nat).prop_map(
        |(at, ports, scope, policy, source_ranges, source_nat)| Frontend {
            at,
            ports,
            scope,
            policy,
            source_ranges,
            source_nat,
        },
    )
}

fn health_check() -> impl Strategy<Value = HealthCheck> {
    let http =
        ("/[a-z/]{0,10}", "[a-z.]{0,10}", any::<u16>()).prop_map(|(path, host, port)| Probe::Http { path, host, port });
    let span = || (100u64..3_600_000).prop_map(Duration::from_millis);
    (prop_oneof![Just(Probe::Tcp), http], span(), span(), 1u32..=100, 1u32..=100, any::<bool>()).prop_map(
        |(probe, interval, timeout, rise, fall, remote_too)| HealthCheck {
            probe,
            interval,
            timeout,
            rise,
            fall,
            remote_too,
        },
    )
}

pub(super) fn definition() -> impl Strategy<Value = Definition> {
    let affinity = (duration(), 0u8..=32, 0u8..=128).prop_map(|(timeout, prefix_v4, prefix_v6)| ClientAffinity {
        timeout,
        prefix_v4,
        prefix_v6,
    });
    let refusal = || one_of(&[NoEndpoints::Reject, NoEndpoints::Drop]);
    let first = (
        one_of(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]),
        vec(frontend(), 0..5),
        option::of(affinity),
        text(),
        btree_map("[a-z]{1,9}", text(), 0..4),
        refusal(),
        refusal(),
        drain(),
    );
    let second = (
        one_of(&[Contest::Refuse, Contest::Wait]),
        any::<u64>(),
        any::<u16>(),
        option::of(health_check()),
        option::of(one_of(&EngineKind::ALL)),
        option::of(duration()),
        one_of(&[ProxyProtocol::None, ProxyProtocol::V1, ProxyProtocol::V2]),
    );
    (first, second).prop_map(|(first, second)| {
        let (protocol, frontends, client_affinity, group, labels, on_no_endpoints, on_no_local_endpoints, drain) =
            first;
        let (on_contest, precedence, health_port, health_check, engine, idle_timeout, proxy_protocol) = second;
        Definition {
            protocol,
            frontends,
            client_affinity,
            group,
            labels,
            on_no_endpoints,
            on_no_local_endpoints,
            drain,
            on_contest,
            precedence,
            health_port,
            health_check,
            engine,
            idle_timeout,
            proxy_protocol,
        }
    })
}

pub(super) fn owner() -> impl Strategy<Value = Owner> {
    let lease = (duration(), one_of(&[LeaseExpiry::Report, LeaseExpiry::Withdraw]))
        .prop_map(|(ttl, on_expiry)| Lease { ttl, on_expiry });
    let interfaces = btree_set("[a-z]{1,10}\\*?", 0..4).prop_map(|set| set.into_iter().collect());
    let network = (prefixes(), interfaces, prefixes(), any::<bool>()).prop_map(
        |(local_sources, local_source_interfaces, virtual_ranges, source_nat_all)| Network {
            local_sources,
            local_source_interfaces,
            virtual_ranges,
            source_nat_all,
        },
    );
    let restart = one_of(&[Restart::Restore, Restart::AwaitSync]);
    ("[a-z]{1,20}", option::of(lease), network, restart, option::of(duration()), any::<bool>()).prop_map(
        |(name, lease, network, on_restart, restore_max_age, node_draining)| Owner {
            name: OwnerName::new(&name).unwrap(),
            lease,
            network,
            on_restart,
            restore_max_age,
            node_draining,
        },
    )
}
