//! UDP flows that a change has made stale. Pure.
//!
//! Connection tracking judges a flow once, at its first packet. A client that keeps its socket keeps the old judgement
//! for as long as it sends: past the refusal or the proxy that has come since. Established TCP flows end by drain.

use std::collections::BTreeSet;

use vipd_engine::{FlowFilter, Operation};
use vipd_model::{Family, Protocol};

use super::{
    element::ElementKey,
    names::{Prefix, Role, SetName},
    object::{Key, Object, Value},
};

/// What to forget once these operations are in force.
pub(crate) fn stale(operations: &[Operation<Key, Value>]) -> Vec<FlowFilter> {
    let filters: BTreeSet<_> = operations.iter().filter_map(stale_of).collect();
    filters.into_iter().collect()
}

fn stale_of(operation: &Operation<Key, Value>) -> Option<FlowFilter> {
    let Object::Element(set, key) = &operation.key().object else { return None };
    let appears = operation.before().is_none();
    match set {
        // A new frontend: flows that went past untranslated, answered by the address itself.
        SetName::Spots { role: Role::Capture | Role::Reject | Role::Drop, family, .. } if appears => {
            let (_, port) = key.port?;
            filter(key, *family, key.address.map(|address| (address, port)))
        }
        // Gone, or at another port of the proxy: flows to the old one.
        SetName::Spots { role: Role::Capture, family, .. } => filter(key, *family, None),
        // Fewer may come: let each client be judged again.
        SetName::Spots { role: Role::Ranged, family, .. } if appears => filter(key, *family, None),
        SetName::Prefix(Prefix::Allow { family, .. }) if !appears => filter(key, *family, None),
        SetName::Spots { .. } | SetName::Prefix(_) | SetName::ProxyPorts => None,
    }
}

fn filter(key: &ElementKey, family: Family, reply_source: Option<(std::net::IpAddr, u16)>) -> Option<FlowFilter> {
    let (protocol, port) = key.port?;
    (protocol == Protocol::Udp.number()).then_some(FlowFilter {
        family,
        protocol: Protocol::Udp,
        destination: key.address,
        port,
        reply_source,
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::names::Reach;
    use super::*;

    fn spot(role: Role, protocol: u8) -> Key {
        let set = SetName::Spots { role, reach: Reach::Address, family: Family::V4 };
        let address = Some(IpAddr::from([10, 96, 0, 1]));
        Key::element(set, ElementKey { address, port: Some((protocol, 53)), source: None })
    }

    #[test]
    fn udp_flows_are_judged_again_where_the_judgement_changed() {
        let add = |role, protocol| Operation::Add { key: spot(role, protocol), value: Value::Present };
        let remove = |role| Operation::Remove { key: spot(role, 17), before: Value::Present };
        let itself = Some(([10, 96, 0, 1].into(), 53));
        let of = |operation| stale(&[operation]).pop();
        assert_eq!(of(add(Role::Capture, 6)), None);
        assert_eq!(of(add(Role::Capture, 17)).unwrap().reply_source, itself);
        assert_eq!(of(add(Role::Reject, 17)).unwrap().reply_source, itself);
        assert_eq!(of(add(Role::Ranged, 17)).unwrap().reply_source, None);
        assert_eq!(of(remove(Role::Capture)).unwrap().destination, itself.map(|(address, _)| address));
        assert_eq!(of(remove(Role::Reject)), None);
        assert_eq!(of(remove(Role::Ranged)), None);
    }
}
