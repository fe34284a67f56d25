//! What the proxy really serves: its table's services and its open sockets, never what it was told.

use vipd_engine::{Assignments, Objects, Observed};

use crate::objects::{Key, Value};
use crate::proxy::Proxy;
use crate::render::PORTS;

/// Everything.
pub(crate) fn observe(proxy: &Proxy) -> Observed<Key, Value> {
    let mut observed = Observed::default();
    if let Some(sources) = proxy.sources() {
        observed.objects.insert(Key::Sources, Value::Sources(sources));
    }
    for value in proxy.served() {
        observed.objects.insert(Key::Service(value.service.key.clone()), Value::Service(value));
    }
    for (door, admission, port) in proxy.open_doors() {
        observed.objects.insert(Key::Door(door), Value::Door(admission));
        note_port(&mut observed.numbers, door, port);
    }
    observed
}

/// Some of it.
pub(crate) fn look(proxy: &Proxy, keys: &[Key]) -> Objects<Key, Value> {
    let one = |key: &Key| match key {
        Key::Sources => proxy.sources().map(Value::Sources),
        Key::Service(service) => proxy.service(service).map(Value::Service),
        Key::Door(door) => proxy.admission(door).map(Value::Door),
    };
    keys.iter().filter_map(|key| Some((key.clone(), one(key)?))).collect()
}

/// Keeps the number that a door got.
pub(crate) fn note_port(numbers: &mut Assignments, door: crate::Door, port: u16) {
    numbers.set(PORTS, door.to_string(), port.into());
}
