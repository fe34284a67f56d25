//! Laws of the world: only what is counts, not how it came to be.

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

use super::*;
use crate::translate::NodePorts;

/// What happens to an object. Few names, so that they meet.
#[derive(Clone, Debug)]
enum Step {
    Service { name: u8, port: u16, hidden: bool },
    NoService { name: u8 },
    Slice { name: u8, of: u8, port: u16, endpoints: Vec<(u8, u8, bool)> },
    NoSlice { name: u8 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let endpoint = (0..4u8, 0..3u8, any::<bool>());
    let step = prop_oneof![
        3 => (0..3u8, 1..4u16, any::<bool>()).prop_map(|(name, port, h)| Step::Service { name, port, hidden: h && port == 3 }),
        1 => (0..3u8).prop_map(|name| Step::NoService { name }),
        5 => (0..4u8, 0..3u8, 1..3u16, prop::collection::vec(endpoint, 0..4))
            .prop_map(|(name, of, port, endpoints)| Step::Slice { name, of, port, endpoints }),
        2 => (0..4u8).prop_map(|name| Step::NoSlice { name }),
    ];
    prop::collection::vec(step, 0..40)
}

fn service_object(port: u16, hidden: bool) -> Option<ServiceFacts> {
    let cluster_ip = if hidden { "None".to_owned() } else { format!("10.96.0.{port}") };
    let object = json!({ "spec": { "clusterIP": cluster_ip, "ports": [{ "name": "p", "port": port }] } });
    ServiceFacts::read(&serde_json::from_value(object).unwrap())
}

fn slice_object(version: u64, of: u8, port: u16, endpoints: &[(u8, u8, bool)]) -> Option<SliceFacts> {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(address, pod, ready)| {
            let target = json!({ "kind": "Pod", "name": format!("p{pod}"), "uid": format!("u{pod}") });
            let conditions = json!({ "ready": ready, "terminating": true });
            json!({ "addresses": [format!("10.1.0.{address}")], "targetRef": target, "conditions": conditions })
        })
        .collect();
    let object = json!({
        "metadata": {
            "namespace": "n", "resourceVersion": version.to_string(),
            "labels": { "kubernetes.io/service-name": format!("s{of}") },
        },
        "addressType": "IPv4", "ports": [{ "name": "p", "port": port }], "endpoints": endpoints,
    });
    SliceFacts::read(&serde_json::from_value(object).unwrap(), "node")
}

fn take(world: &mut World, version: u64, step: &Step) {
    let key = |letter: char, name: u8| Key::new("n", &format!("{letter}{name}"));
    match step {
        Step::Service { name, port, hidden } => {
            let now = Now::Service(service_object(*port, *hidden));
            world.told(Told { key: key('s', *name), version, now });
        }
        Step::NoService { name } => world.deleted(Kind::Service, &key('s', *name), version),
        Step::Slice { name, of, port, endpoints } => {
            let now = Now::Slice(slice_object(version, *of, *port, endpoints));
            world.told(Told { key: key('e', *name), version, now });
        }
        Step::NoSlice { name } => world.deleted(Kind::Slice, &key('e', *name), version),
    }
}

/// What vipd would be told of everything.
fn all(world: &World) -> BTreeMap<Key, Translation> {
    let (node, node_ports) = (NodeFacts::default(), NodePorts::default());
    let context = Context { node: &node, node_ports: &node_ports, scheduler: None };
    world.services().filter_map(|key| Some((key.clone(), world.translate(key, context)?))).collect()
}

fn complete() -> World {
    let mut world = World::default();
    for kind in Kind::ALL {
        world.list_begins(kind);
        world.list_ends(kind);
    }
    world
}

/// Which object a step is about; steps of one object keep their order, as the server sends them.
fn object(step: &Step) -> (bool, u8) {
    match step {
        Step::Service { name, .. } | Step::NoService { name } => (true, *name),
        Step::Slice { name, .. } | Step::NoSlice { name } => (false, *name),
    }
}

proptest! {
    /// Cases 93, 94 and 97: watches of different objects run into each other in any way.
    #[test]
    fn any_interleaving_ends_in_the_same_state(steps in steps(), picks in prop::collection::vec(any::<Index>(), 40)) {
        let mut in_order = complete();
        let versioned: Vec<(u64, Step)> = (1..).zip(steps).collect();
        for (version, step) in &versioned {
            take(&mut in_order, *version, step);
        }

        let mut queues: BTreeMap<(bool, u8), Vec<(u64, Step)>> = BTreeMap::new();
        for (version, step) in versioned {
            queues.entry(object(&step)).or_default().push((version, step));
        }
        let mut mixed = complete();
        let mut picks = picks.into_iter();
        while !queues.is_empty() {
            let keys: Vec<_> = queues.keys().copied().collect();
            let key = picks.next().unwrap().get(&keys);
            let queue = queues.get_mut(key).unwrap();
            let (version, step) = queue.remove(0);
            if queue.is_empty() {
                queues.remove(key);
            }
            take(&mut mixed, version, &step);
        }
        prop_assert_eq!(all(&in_order), all(&mixed));
    }

    /// What changes is said to have changed: a reader that translates only that has everything.
    #[test]
    fn reading_only_what_changed_is_enough(steps in steps(), reads in prop::collection::vec(any::<bool>(), 40)) {
        let mut world = complete();
        let mut read: BTreeMap<Key, Translation> = BTreeMap::new();
        let (node, node_ports) = (NodeFacts::default(), NodePorts::default());
        let context = Context { node: &node, node_ports: &node_ports, scheduler: None };
        let mut reader = |world: &mut World| {
            for key in world.take_changed().services {
                match world.translate(&key, context) {
                    Some(translation) => drop(read.insert(key, translation)),
                    None => drop(read.remove(&key)),
                }
            }
            read.clone()
        };
        for ((version, step), now) in (1..).zip(&steps).zip(reads) {
            take(&mut world, version, step);
            if now {
                reader(&mut world);
            }
        }
        prop_assert_eq!(reader(&mut world), all(&world));
    }

    /// A list after the fact is the same as having watched, whatever was missed; also from a server whose versions
    /// begin again.
    #[test]
    fn a_new_list_replaces_what_was_known(before in steps(), after in steps()) {
        let mut fresh = complete();
        let mut world = complete();
        for (version, step) in (1_000..).zip(&before) {
            take(&mut world, version, step);
        }
        world.list_begins(Kind::Service);
        world.list_begins(Kind::Slice);
        let mut left: BTreeMap<(bool, u8), (u64, &Step)> = BTreeMap::new();
        for (version, step) in (1..).zip(&after) {
            left.insert(object(step), (version, step));
        }
        for (version, step) in left.into_values() {
            if matches!(step, Step::Service { .. } | Step::Slice { .. }) {
                take(&mut world, version, step);
                take(&mut fresh, version, step);
            }
        }
        world.list_ends(Kind::Service);
        world.list_ends(Kind::Slice);
        prop_assert_eq!(all(&world), all(&fresh));
    }
}

#[test]
fn a_repetition_of_the_past_is_no_news() {
    let mut world = complete();
    take(&mut world, 5, &Step::Service { name: 0, port: 1, hidden: false });
    take(&mut world, 7, &Step::Service { name: 0, port: 2, hidden: false });
    let before = all(&world);
    let _ = world.take_changed();
    take(&mut world, 5, &Step::Service { name: 0, port: 1, hidden: false });
    take(&mut world, 6, &Step::NoService { name: 0 });
    assert!(!world.has_changed() && all(&world) == before);
    take(&mut world, 7, &Step::NoService { name: 0 });
    assert!(all(&world).is_empty());
}

#[test]
fn nothing_is_complete_before_every_kind_has_been_listed() {
    let mut world = World::default();
    for kind in Kind::ALL {
        assert!(!world.is_complete());
        world.list_begins(kind);
        world.list_ends(kind);
    }
    assert!(world.is_complete());
}

#[test]
fn a_node_that_moved_changes_every_service_and_one_that_is_gone_keeps_its_addresses() {
    let mut world = complete();
    assert!(!world.node_is_eligible(), "never seen");
    take(&mut world, 1, &Step::Service { name: 0, port: 1, hidden: false });
    let node = |zone: &str| NodeFacts {
        zone: Some(zone.into()),
        addresses: vec!["10.0.0.1".parse().unwrap()],
        ..NodeFacts::default()
    };
    let tell = |world: &mut World, facts: NodeFacts| {
        let _ = world.take_changed();
        world.told(Told { key: Key::new("", "node"), version: 0, now: Now::Node(Some(facts)) });
        world.take_changed()
    };
    assert_eq!(tell(&mut world, node("a")).services.len(), 1);
    assert!(world.node_is_eligible());
    let same = tell(&mut world, node("a"));
    assert!(same.is_empty(), "{same:?}");
    assert_eq!(tell(&mut world, NodeFacts { going: true, ..node("a") }).services.len(), 0);
    assert!(!world.node_is_eligible());
    world.deleted(Kind::Node, &Key::new("", "node"), 0);
    assert_eq!(world.node_facts().unwrap().addresses, node("a").addresses);
    assert!(!world.node_is_eligible());
}
