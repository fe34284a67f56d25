//! Operations become calls of the proxy, in their order.

use std::io;
use std::sync::Arc;

use vipd_engine::{Applied, ApplyError, Assignments, Operation};
use vipd_model::ProblemCode;

use crate::objects::{Admission, Door, Key, Value};
use crate::observe::note_port;
use crate::proxy::Proxy;
use crate::render::PORTS;

pub(crate) fn apply(
    proxy: &Proxy,
    operations: &[Operation<Key, Value>],
    numbers: &mut Assignments,
) -> Result<(), ApplyError> {
    for (index, operation) in operations.iter().enumerate() {
        let outcome = match (operation.key(), operation.after()) {
            (Key::Sources, Some(Value::Sources(sources))) => {
                proxy.set_sources(Some(Arc::clone(sources)));
                Ok(())
            }
            (Key::Service(_), Some(Value::Service(selected))) => {
                proxy.set(Arc::clone(selected));
                Ok(())
            }
            (Key::Door(door), Some(Value::Door(admission))) => open(proxy, *door, admission, numbers),
            (Key::Sources, _) => {
                proxy.set_sources(None);
                Ok(())
            }
            (Key::Service(key), _) => {
                proxy.remove(key);
                Ok(())
            }
            (Key::Door(door), _) => {
                proxy.close(door);
                numbers.release(PORTS, &door.to_string());
                Ok(())
            }
        };
        outcome.map_err(|error| ApplyError {
            applied: if index == 0 { Applied::Nothing } else { Applied::Unknown },
            ..error
        })?;
    }
    Ok(())
}

fn open(proxy: &Proxy, door: Door, admission: &Admission, numbers: &mut Assignments) -> Result<(), ApplyError> {
    let port = proxy.open(door, admission).map_err(|error| refusal(door, &error))?;
    note_port(numbers, door, port);
    Ok(())
}

/// Says what the system refused, and what to do about it.
fn refusal(door: Door, error: &io::Error) -> ApplyError {
    let (code, advice) = match error.kind() {
        io::ErrorKind::AddrInUse => {
            (ProblemCode::AddressInUse, "another program has it: stop that, or choose another address or port")
        }
        io::ErrorKind::AddrNotAvailable => (
            ProblemCode::NotProgrammed,
            "it is not an address of this host; without CAP_NET_ADMIN vipd serves only those (loopback: 127.0.0.0/8)",
        ),
        io::ErrorKind::PermissionDenied => (
            ProblemCode::NotProgrammed,
            "ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher port, or grant it",
        ),
        _ => (ProblemCode::NotProgrammed, "vipd tries again"),
    };
    ApplyError { code, ..ApplyError::nothing(format!("{door}: {error}; {advice}")) }
}
