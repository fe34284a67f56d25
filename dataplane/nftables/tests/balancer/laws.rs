//! Laws, on the real kernel: whatever services come and go, the kernel has what is rendered, nothing more, and another way
//! to the same state ends in the same.

use std::collections::BTreeMap;

use proptest::{prelude::*, test_runner::Config};
use vipd_engine::{Runner, Steps as _};
use vipd_model::{
    Algorithm, Drain, Endpoint, EndpointState, Frontend, Millis, OnExpiry, Policy, PortRange, Scope, SourceNat,
};
use vipd_netlink::testing::in_namespace;
use vipd_nftables::{
    Nftables,
    balancer::{Key, Value},
};

use crate::{lab::Lab, service::*};

fn endpoint() -> impl Strategy<Value = Endpoint> {
    let state = prop_oneof![
        4 => Just(EndpointState::Ready),
        1 => Just(EndpointState::Draining),
        1 => Just(EndpointState::NotReady)
    ];
    (0..12u8, any::<bool>(), 0..5u16, state, any::<bool>(), prop_oneof![3 => Just(0u32), 1 => 1..9u32]).prop_map(
        |(n, v6, weight, state, local, max_connections)| {
            let address = if v6 { ip(&format!("fd02::1:{n}")) } else { ip(&format!("10.2.{}.{n}", n % 3)) };
            let left_at = (state != EndpointState::Ready).then_some(Millis(4_000_000_000_000));
            Endpoint { weight, state, local, max_connections, left_at, ..Endpoint::new(address, 8080) }
        },
    )
}

/// Frontends of a service: none is another service's.
fn frontend(service: u8) -> impl Strategy<Value = Frontend> {
    let ranges = prop_oneof![
        3 => Just(vec![]),
        1 => Just(vec!["10.1.0.0/24", "fd01::/64"]),
        1 => Just(vec!["10.1.0.0/24", "10.1.0.0/25", "192.0.2.1/32"])
    ];
    let nat = prop_oneof![Just(SourceNat::Auto), Just(SourceNat::Always), Just(SourceNat::Never)];
    (0..3u8, 0..6u8, any::<bool>(), any::<bool>(), ranges, nat, 1..4u16).prop_map(
        move |(n, kind, external, local, ranges, source_nat, width)| {
            let first = 1000 + u16::from(n) * 10;
            let (name, addresses): (_, &[&str]) = match kind {
                0 => ("", &[]),
                1 => ("", &["10.1.0.0/16"]),
                2 | 3 => ("v4", &[]),
                _ => ("v6", &[]),
            };
            let mut frontend = match name {
                "v4" => Frontend::vip(ip(&format!("10.96.{service}.{n}")), first),
                "v6" => Frontend::vip(ip(&format!("fd96::{service}:{n}")), first),
                _ => tcp("")
                    .node_port(20_000 + u16::from(service) * 100 + u16::from(n) * 10, addresses)
                    .definition
                    .frontends
                    .remove(0),
            };
            frontend.ports = PortRange { first: frontend.ports.first, last: frontend.ports.first + width - 1 };
            frontend.scope = if external { Scope::External } else { Scope::Internal };
            frontend.policy = if local { Policy::Local } else { Policy::All };
            frontend.source_ranges = ranges.into_iter().map(|range| range.parse().unwrap()).collect();
            Frontend { source_nat, ..frontend }
        },
    )
}

fn service(n: u8) -> impl Strategy<Value = Made> {
    let algorithm = prop_oneof![
        3 => Just(Algorithm::Random),
        1 => Just(Algorithm::Rr),
        1 => Just(Algorithm::Sh),
        1 => Just(Algorithm::Mh)
    ];
    let parts = (
        any::<bool>(),
        algorithm,
        prop::option::weighted(0.3, 1..3u64),
        prop::collection::vec(frontend(n), 0..4),
        prop::collection::vec(endpoint(), 0..6),
        any::<bool>(),
    );
    parts.prop_map(move |(is_udp, algorithm, affinity, frontends, endpoints, resets)| {
        let name = format!("service-{n}");
        let mut made = if is_udp { udp(&name) } else { tcp(&name) };
        made = made.by(algorithm);
        if let Some(seconds) = affinity {
            made = made.affinity(seconds * 1000, 24);
        }
        if resets {
            let timeout = Some(std::time::Duration::from_secs(60));
            made.definition.drain = Drain { timeout, on_expiry: OnExpiry::Reset };
        }
        let mut taken = BTreeMap::new();
        for frontend in frontends {
            taken.entry((frontend.at.clone(), frontend.ports.first)).or_insert(frontend);
        }
        let mut distinct: BTreeMap<_, Endpoint> = BTreeMap::new();
        for endpoint in endpoints {
            distinct.entry(endpoint.key).or_insert(endpoint);
        }
        made.definition.frontends = taken.into_values().collect();
        made.endpoints(distinct.into_values().collect())
    })
}

#[derive(Clone, Debug)]
enum Command {
    Put(Box<Made>),
    Remove(u8),
}

fn commands() -> impl Strategy<Value = Vec<Command>> {
    let command = (0..5u8).prop_flat_map(
        |n| prop_oneof![4 => service(n).prop_map(|made| Command::Put(Box::new(made))), 1 => Just(Command::Remove(n))],
    );
    prop::collection::vec(command, 1..14)
}

/// What must be equal whatever the numbers are: names instead of ids.
fn without_numbers(objects: &vipd_engine::Objects<Key, Value>) -> Vec<String> {
    let mut texts: Vec<String> = objects
        .iter()
        .map(|(key, value)| match (key, value) {
            (Key::Pool(_), Value::Pool(pool)) => format!(
                "{} {:?} {:?} {:?} {:?} {}",
                pool.label,
                pool.direct,
                pool.slots,
                pool.members,
                pool.lingering,
                pool.outside_of.is_some()
            ),
            (Key::Frontend(frontend), Value::Word(word)) => format!("{frontend} {:x}", word.low()),
            (Key::Allowed { list, .. }, value) => format!("allowed {list} {value}"),
            (Key::Ending { endpoint, .. }, value) => format!("ending {endpoint} {value}"),
            (Key::Chain(chain), _) => {
                let name = chain.to_string();
                // A pool's own chain is called by its id.
                name.split("-p").next().unwrap().to_owned()
            }
            _ => format!("{key}"),
        })
        .collect();
    texts.sort();
    texts
}

fn runner() -> Runner<Nftables> {
    started(Nftables::open_without_owner().unwrap(), Lab::node())
}

#[test]
fn the_kernel_has_what_is_rendered_after_every_command_and_on_every_way() {
    let cases = std::env::var("VIPD_NFT_CASES").map_or(12, |text| text.parse().unwrap());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    proptest!(config, |(commands in commands())| {
        in_namespace(|| {
            let mut kernel = runner();
            let mut last = BTreeMap::new();
            for command in &commands {
                match command {
                    Command::Put(made) => {
                        put(&mut kernel, (**made).clone());
                        last.insert(made.key(), made);
                    }
                    Command::Remove(n) => {
                        remove(&mut kernel, &format!("service-{n}"));
                        last.remove(&key(&format!("service-{n}")));
                    }
                }
                wanted_is_in_kernel(&mut kernel);
                assert!(kernel.check().unwrap().is_empty());
                if let Command::Put(made) = command {
                    let (plan, _) = kernel.dry_run(vec![(made.key(), Some(made.as_ref().clone().selected()))]);
                    assert!(plan.is_empty(), "{plan:?}");
                }
            }
            let one_way = without_numbers(&kernel.steps_mut().observe().unwrap().objects);
            // A process that starts anew finds everything right.
            drop(kernel);
            let mut again = Runner::start(Nftables::open_without_owner().unwrap()).unwrap();
            again.set_node(Lab::node()).unwrap();
            for made in last.values() {
                let batch = || vec![(made.key(), Some(made.as_ref().clone().selected()))];
                let (plan, _) = again.dry_run(batch());
                assert!(plan.is_empty(), "after a start: {plan:?}");
                change(&mut again, batch()).unwrap();
            }
            again.release().unwrap();
            assert_eq!(without_numbers(&again.steps_mut().observe().unwrap().objects), one_way);
            again.steps_mut().cleanup().unwrap();
            drop(again);
            // And all at once, from nothing.
            let mut other = runner();
            let batch = last.values().rev().map(|made| (made.key(), Some(made.as_ref().clone().selected()))).collect();
            change(&mut other, batch).unwrap();
            assert_eq!(without_numbers(&other.steps_mut().observe().unwrap().objects), one_way);
        });
    });
}
