//! Topology hints → tiers: 0 hinted to this node, 1 to its zone, 2 the rest.
//!
//! A level holds only if every READY endpoint of the family has a hint for it: one without means that the controller has
//! not finished, or that somebody else writes slices, and then hints say nothing about how much traffic an endpoint can
//! bear. vipd takes the lowest tier that has a READY endpoint.

use vipd_proto::v1::endpoint::State;

use super::endpoints::Merged;
use crate::facts::Remark;

/// The tier of each endpoint, in the order given.
#[derive(Debug, Default)]
pub(super) struct Tiers {
    /// One for each.
    pub(super) of: Vec<u32>,
    /// Why hints that are there are not followed.
    pub(super) ignored: Vec<Remark>,
}

pub(super) fn tiers(endpoints: &[Merged<'_>], zone: Option<&str>) -> Tiers {
    let levels = [Level::of(endpoints, false, zone), Level::of(endpoints, true, zone)];
    let tier = |merged: &Merged<'_>| {
        let level = &levels[usize::from(merged.endpoint.address.is_ipv6())];
        if merged.state() == State::Ready { level.tier(merged, zone) } else { 0 }
    };
    let of = endpoints.iter().map(tier).collect();
    let mut ignored: Vec<Remark> = levels.into_iter().filter_map(|level| level.ignored).collect();
    ignored.dedup();
    Tiers { of, ignored }
}

/// What holds in one family.
struct Level {
    node: bool,
    zone: bool,
    ignored: Option<Remark>,
}

impl Level {
    fn of(endpoints: &[Merged<'_>], v6: bool, zone: Option<&str>) -> Self {
        let in_family = endpoints.iter().filter(|merged| merged.endpoint.address.is_ipv6() == v6);
        let ready: Vec<_> = in_family.filter(|merged| merged.state() == State::Ready).map(|m| m.endpoint).collect();
        let without_node = ready.iter().filter(|endpoint| endpoint.node_hint.is_none()).count();
        let without_zone = ready.iter().filter(|endpoint| endpoint.zone_hints.is_empty()).count();
        let any = without_node < ready.len() || without_zone < ready.len();
        let partly = |without: usize| (without > 0 && without < ready.len()).then_some(without);
        let why = match (partly(without_zone).or(partly(without_node)), zone) {
            (Some(without), _) => Some(format!("{without} of {} ready endpoints have no hint", ready.len())),
            (None, None) if without_zone == 0 && any => {
                Some("this node has no label topology.kubernetes.io/zone".to_owned())
            }
            _ => None,
        };
        let remark = |why| Remark::new("TopologyHintsIgnored", format!("topology hints are not followed: {why}"));
        Self {
            node: any && without_node == 0,
            zone: any && without_zone == 0 && zone.is_some(),
            ignored: why.filter(|_| any).map(remark),
        }
    }

    fn tier(&self, merged: &Merged<'_>, zone: Option<&str>) -> u32 {
        let here = |hints: &[Box<str>]| zone.is_some_and(|zone| hints.iter().any(|hint| &**hint == zone));
        match merged.endpoint {
            endpoint if self.node && endpoint.node_hint == Some(true) => 0,
            endpoint if self.zone && here(&endpoint.zone_hints) => 1,
            _ => 2,
        }
    }
}
