//! UDP flows that a change has made stale. Pure.
//!
//! Connection tracking judges a flow once, at its first packet. A client that keeps its socket keeps the old judgement
//! for as long as it sends: past the service that has come since, or to an endpoint that is gone. Established TCP flows
//! end by drain.

use std::{collections::BTreeSet, net::IpAddr};

use vipd_engine::{FlowFilter, Operation};
use vipd_model::{EndpointKey, Family, Protocol};

use super::{
    names::Reach,
    object::{FrontendKey, FrontendPlace, Key, Value},
    pool::{Pool, Spot},
};

/// What to forget once these operations are in force.
pub(super) fn stale(operations: &[Operation<Key, Value>]) -> Vec<FlowFilter> {
    let mut filters = BTreeSet::new();
    for operation in operations {
        match (operation.key(), operation.before(), operation.after()) {
            (Key::Frontend(frontend), before, _) if frontend.protocol == Protocol::Udp.number() => {
                filters.insert(of_frontend(frontend, before.is_none()));
            }
            (Key::Pool(_), Some(Value::Pool(before)), Some(Value::Pool(after))) => {
                of_pool(before, after, &mut filters);
            }
            _ => {}
        }
    }
    filters.into_iter().collect()
}

/// A new frontend: flows that went past untranslated, answered by the address itself. One that goes, or has other rules of
/// entry: every flow to it is judged again.
fn of_frontend(frontend: &FrontendKey, is_new: bool) -> FlowFilter {
    let (family, destination) = match frontend.place {
        FrontendPlace::Vip(address) | FrontendPlace::At(address) => (Family::of(address), Some(address)),
        FrontendPlace::Node(family) => (family, None),
    };
    let reply_source = destination.filter(|_| is_new).map(|address| (address, frontend.port));
    FlowFilter { family, protocol: Protocol::Udp, destination, port: frontend.port, reply_source }
}

/// Flows to endpoints that went for good.
fn of_pool(before: &Pool, after: &Pool, filters: &mut BTreeSet<FlowFilter>) {
    if after.spots.is_empty() {
        return;
    }
    let stay = |pool: &Pool| pool.endpoints().chain(pool.lingering.iter().copied()).collect::<BTreeSet<EndpointKey>>();
    let (old, new) = (stay(before), stay(after));
    for endpoint in old.difference(&new) {
        for Spot { reach, address, ports } in &after.spots {
            for port in ports.first..=ports.last {
                debug_assert_eq!(*reach == Reach::Node, address.is_none());
                let answers: (IpAddr, u16) = (endpoint.address, if endpoint.port == 0 { port } else { endpoint.port });
                filters.insert(FlowFilter {
                    family: endpoint.family(),
                    protocol: Protocol::Udp,
                    destination: *address,
                    port,
                    reply_source: Some(answers),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vipd_model::PortRange;

    use super::*;
    use crate::balancer::word::Word;

    fn endpoint(n: u8) -> EndpointKey {
        EndpointKey { address: [10, 0, 0, n].into(), port: 5353 }
    }

    fn pool(members: &[u8], lingering: &[u8]) -> Value {
        let spot = Spot { reach: Reach::Vip, address: Some([10, 96, 0, 1].into()), ports: PortRange::one(53) };
        Value::Pool(Arc::new(Pool {
            direct: (0..).zip(members.iter().map(|n| endpoint(*n))).collect(),
            lingering: lingering.iter().map(|n| endpoint(*n)).collect(),
            spots: [spot].into(),
            ..Pool::default()
        }))
    }

    #[test]
    fn flows_to_what_is_gone_are_forgotten_and_no_others() {
        let of = |before, after| stale(&[Operation::Change { key: Key::Pool(1), before, after }]);
        assert_eq!(of(pool(&[1], &[]), pool(&[1, 2], &[])), []);
        assert_eq!(of(pool(&[1, 2], &[]), pool(&[2], &[1])), [], "draining");
        let [filter] = &of(pool(&[1, 2], &[]), pool(&[2], &[]))[..] else { panic!() };
        assert_eq!(filter.destination, Some([10, 96, 0, 1].into()));
        assert_eq!(filter.reply_source, Some(([10, 0, 0, 1].into(), 5353)));
        assert_eq!(of(pool(&[2], &[1]), pool(&[2], &[])).len(), 1, "drained");
        assert_eq!(of(pool(&[2], &[]), pool(&[], &[])).len(), 1, "the last one");
    }

    #[test]
    fn flows_to_a_frontend_are_judged_again_where_the_judgement_changed() {
        let place = FrontendPlace::Vip([10, 96, 0, 1].into());
        let key = |protocol| Key::Frontend(FrontendKey { place, protocol, port: 53 });
        let word = |n| Value::Word(Word(n));
        let of = |operation| stale(&[operation]).pop();
        assert_eq!(of(Operation::Add { key: key(6), value: word(1) }), None);
        let past = of(Operation::Add { key: key(17), value: word(1) }).unwrap();
        assert_eq!(past.reply_source, Some(([10, 96, 0, 1].into(), 53)));
        let changed = of(Operation::Change { key: key(17), before: word(1), after: word(2) }).unwrap();
        assert_eq!(changed.reply_source, None);
        assert_eq!(of(Operation::Remove { key: key(17), before: word(1) }).unwrap().reply_source, None);
    }
}
