//! Endpoint lists: merging what was sent twice, and remembering since when an endpoint takes no new flows.
//!
//! A list that was sent becomes the kept one in two steps: [`merge`] (a function of the list alone), then [`settle`]
//! (which carries `left_at` and the leaving over from before).

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use crate::Millis;
use crate::endpoint::{Drain, Endpoint, EndpointKey, EndpointState, Leaving};
use crate::service::Service;

/// Sorts by (address, port) and keeps the best of each: READY before DRAINING before NOT_READY, local first, then the
/// higher weight. The remaining fields decide last, so that the order sent never matters. Returns how many were dropped.
pub(crate) fn merge(mut sent: Vec<Endpoint>) -> (Vec<Endpoint>, usize) {
    fn preference(a: &Endpoint, b: &Endpoint) -> Ordering {
        let rank = |e: &Endpoint| (e.key, e.state, Reverse(e.local), Reverse(e.weight));
        rank(a).cmp(&rank(b)).then_with(|| a.cmp(b))
    }
    let before = sent.len();
    sent.sort_unstable_by(preference);
    sent.dedup_by_key(|e| e.key);
    let dropped = before - sent.len();
    (sent, dropped)
}

/// The list that a patch of a kept list makes, in key order. `upsert` is merged already.
pub(crate) fn patch(kept: &[Endpoint], upsert: &[Endpoint], remove: &[EndpointKey]) -> Vec<Endpoint> {
    let mut gone: Vec<EndpointKey> = remove.to_vec();
    gone.sort_unstable();
    let mut list = Vec::with_capacity(kept.len() + upsert.len());
    difference(kept, upsert, Visit::All, |old, new| match (old, new) {
        (_, Some(new)) => list.push(new.clone()),
        (Some(old), None) if gone.binary_search(&old.key).is_err() => list.push(old.clone()),
        _ => {}
    });
    list
}

/// What is kept of a service's endpoints.
pub(crate) struct Settled {
    pub(crate) endpoints: Arc<[Endpoint]>,
    pub(crate) leaving: Arc<[Leaving]>,
    pub(crate) changed: bool,
}

/// Carries over from `before` when each endpoint began to leave, and keeps those removed whose drain still has a deadline
/// ahead. `list` is in key order; `drain` is the service's, for endpoints without their own. A list that says what is so
/// already gives back the very values of `before`.
pub(crate) fn settle(before: Option<&Service>, mut list: Vec<Endpoint>, drain: Drain, at: Millis) -> Settled {
    let kept: &[Endpoint] = before.map_or(&[], |s| &s.endpoints);
    let leaving: &[Leaving] = before.map_or(&[], |s| &s.leaving);
    for endpoint in &mut list {
        endpoint.left_at =
            (endpoint.state != EndpointState::Ready).then(|| left_before(kept, leaving, endpoint.key).unwrap_or(at));
    }
    if let Some(before) = before.filter(|s| *s.endpoints == *list) {
        let (endpoints, leaving) = (Arc::clone(&before.endpoints), Arc::clone(&before.leaving));
        return Settled { endpoints, leaving, changed: false };
    }
    let ahead = |l: &Leaving| l.drain.deadline(l.since).is_some_and(|deadline| deadline > at);
    let declared = |key: &EndpointKey| list.binary_search_by_key(key, |e| e.key).is_ok();
    let mut still: Vec<Leaving> = leaving.iter().filter(|l| ahead(l) && !declared(&l.key)).copied().collect();
    let removed = kept.iter().filter(|e| !declared(&e.key)).map(|e| Leaving {
        key: e.key,
        since: e.left_at.unwrap_or(at),
        drain: e.drain.unwrap_or(drain),
    });
    still.extend(removed.filter(ahead));
    still.sort_unstable();
    Settled { endpoints: list.into(), leaving: still.into(), changed: true }
}

/// When vipd first saw an endpoint leave, if it is leaving already.
fn left_before(kept: &[Endpoint], leaving: &[Leaving], key: EndpointKey) -> Option<Millis> {
    match kept.binary_search_by_key(&key, |e| e.key) {
        Ok(index) => kept[index].left_at,
        Err(_) => leaving.binary_search_by_key(&key, |l| l.key).ok().map(|index| leaving[index].since),
    }
}

/// Whether to visit endpoints that are equal on both sides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visit {
    All,
    Changed,
}

/// Walks two lists in key order side by side; each key is visited once.
pub(crate) fn difference<'a>(
    before: &'a [Endpoint],
    after: &'a [Endpoint],
    visit: Visit,
    mut each: impl FnMut(Option<&'a Endpoint>, Option<&'a Endpoint>),
) {
    let (mut old, mut new) = (before.iter().peekable(), after.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.key.cmp(&b.key),
        };
        let a = if order.is_le() { old.next() } else { None };
        let b = if order.is_ge() { new.next() } else { None };
        if visit == Visit::All || a != b {
            each(a, b);
        }
    }
}
