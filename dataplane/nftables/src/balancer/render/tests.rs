//! Golden objects, and the order in which they come into force. `VIPD_BLESS=1` writes the golden files anew.

use std::{env, fs, net::IpAddr, path::Path, sync::Arc};

use vipd_engine::{Operation, Plan};
use vipd_model::{
    Definition, EngineKind, Frontend, Revisions, Scheduler, Service, ServiceKey, select, service::ClientAffinity,
};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn of_the_lab() -> Node {
    let mut node = Node::default();
    node.network.local_sources = ["10.244.0.0/16", "10.245.0.0/16", "fd00::/64"].map(|net| net.parse().unwrap()).into();
    node.network.local_source_interfaces = vec!["veth*".into()];
    node.addresses = ["10.1.0.1", "127.0.0.1", "192.0.2.1", "::1"].map(ip).into();
    node
}

/// A service of everything: two families, LOCAL, source ranges, node ports by address, a range.
fn service(algorithm: Algorithm, change: impl FnOnce(&mut Definition), endpoints: &[(&str, u16, bool)]) -> Selected {
    let mut definition = Definition { frontends: vec![Frontend::vip(ip("10.96.0.1"), 80)], ..Definition::default() };
    change(&mut definition);
    let endpoints = endpoints.iter().map(|(address, weight, local)| Endpoint {
        weight: *weight,
        local: *local,
        ..Endpoint::new(ip(address), 8080)
    });
    let service = Service {
        key: ServiceKey::new("k8s", "shop/web").unwrap(),
        definition: Arc::new(definition),
        scheduler: Scheduler::default(),
        endpoints: endpoints.collect(),
        leaving: Arc::from([]),
        revisions: Revisions::default(),
        waiting: Vec::new(),
    };
    select(&Arc::new(service), EngineKind::Nftables, algorithm)
}

fn rendered(selected: &Selected, numbers: &mut Assignments) -> Objects<Key, Value> {
    super::service(&of_the_lab(), selected, numbers).unwrap()
}

fn golden(name: &str, objects: &Objects<Key, Value>) {
    let have: String = objects.iter().map(|(key, value)| format!("{key} {value}\n")).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/balancer/render/golden").join(name);
    if env::var_os("VIPD_BLESS").is_some() {
        fs::write(&path, &have).unwrap();
    }
    let want = fs::read_to_string(&path).unwrap();
    assert_eq!(have, want, "{} differs", path.display());
}

#[test]
fn golden_node() {
    golden("node.txt", &node(&of_the_lab(), TableFlags::OWNED));
}

#[test]
fn golden_services() {
    let mut numbers = Assignments::default();
    let three = [("10.1.0.2", 1, true), ("10.1.0.3", 3, false), ("fd01::2", 1, false)];
    golden("random.txt", &rendered(&service(Algorithm::Random, |_| {}, &three), &mut numbers));
    let external = |definition: &mut Definition| {
        let source_ranges = vec!["10.0.0.0/8".parse().unwrap(), "192.0.2.1/32".parse().unwrap()];
        let frontend = Frontend {
            scope: Scope::External,
            policy: Policy::Local,
            source_ranges,
            ..Frontend::vip(ip("192.0.2.9"), 80)
        };
        definition.frontends.push(frontend);
        let at = At::NodePort(NodePort { v4: true, v6: false, addresses: vec!["10.1.0.0/24".parse().unwrap()] });
        definition.frontends.push(Frontend { at, ..Frontend::vip(ip("0.0.0.0"), 30_080) });
    };
    golden("external.txt", &rendered(&service(Algorithm::Rr, external, &three), &mut numbers));
    let affine = |definition: &mut Definition| {
        let timeout = std::time::Duration::from_secs(10);
        definition.client_affinity = Some(ClientAffinity { timeout, prefix_v4: 24, prefix_v6: 64 });
    };
    golden("affine.txt", &rendered(&service(Algorithm::Sh, affine, &three), &mut numbers));
    golden("empty.txt", &rendered(&service(Algorithm::Random, |_| {}, &[]), &mut numbers));
}

/// At every prefix of a plan what an object refers to is there.
#[test]
fn every_prefix_of_a_plan_is_safe() {
    let mut numbers = Assignments::default();
    let two = [("10.1.0.2", 1, false), ("10.1.0.3", 1, false)];
    let mut states = vec![Objects::new()];
    for endpoints in [&two[..], &two[..1], &[]] {
        states.push(rendered(&service(Algorithm::Random, |_| {}, endpoints), &mut numbers));
    }
    for have in &states {
        for want in &states {
            let plan = Plan::difference(have, want);
            let mut kernel = have.clone();
            for operation in plan.make.iter().chain(&plan.finish) {
                match operation {
                    Operation::Add { key, value } | Operation::Change { key, after: value, .. } => {
                        kernel.insert(key.clone(), value.clone());
                    }
                    Operation::Remove { key, .. } => drop(kernel.remove(key)),
                }
                stands(&kernel);
            }
            assert_eq!(kernel, *want);
        }
    }
}

/// Frontends lead to pools, pools to kinds and to maps that are there.
fn stands(kernel: &Objects<Key, Value>) {
    let kinds: Vec<u32> =
        kernel.values().filter_map(|value| if let Value::Kind(n) = value { Some(*n) } else { None }).collect();
    for (key, value) in kernel {
        match (key, value) {
            (Key::Frontend(_), Value::Word(word)) => {
                assert!(kernel.contains_key(&Key::Pool(word.pool())), "{key} leads nowhere: {kernel:#?}");
            }
            (Key::Pool(_), Value::Pool(pool)) => {
                let kind = pool.word.unwrap().low();
                assert!(kind < table::FIRST_KIND || kinds.contains(&kind), "{key} leads nowhere: {kernel:#?}");
            }
            (Key::Chain(ChainName::Kind(kind)), _) => {
                let set = SetName::Bank { content: Content::Endpoints, family: kind.family, bank: kind.bank };
                assert!(kernel.contains_key(&Key::Set(set)), "{key} has no map: {kernel:#?}");
            }
            _ => {}
        }
    }
}

#[test]
fn what_the_engine_cannot_hold_is_refused_with_its_number() {
    let mut numbers = Assignments::default();
    for n in 0..MAX_TURNS {
        numbers.assign(TURNS, &format!("other {n}"), 0);
    }
    let refused = |selected: &Selected, numbers: &mut Assignments| {
        super::service(&of_the_lab(), selected, numbers).unwrap_err().problem
    };
    let turns = refused(&service(Algorithm::Rr, |_| {}, &[("10.1.0.2", 1, false)]), &mut numbers);
    assert!(turns.message.contains("1000") && turns.field == "scheduler.algorithm", "{turns:?}");
    let wide = |definition: &mut Definition| {
        definition.frontends = (0..3u8)
            .map(|n| {
                let ports = vipd_model::PortRange { first: 1, last: 65_535 };
                Frontend { ports, ..Frontend::vip([10, 96, 0, n].into(), 1) }
            })
            .collect();
    };
    let ranges = refused(&service(Algorithm::Random, wide, &[]), &mut numbers);
    assert!(ranges.message.contains("196605"), "{ranges:?}");
}
