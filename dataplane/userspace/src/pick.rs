//! Choosing among endpoints: the model's pickers, fed with the live gauges.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vipd_model::Selected;

use crate::served::Target;

/// The two ends of a new flow, as its client sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) client: SocketAddr,
    pub(crate) destination: SocketAddr,
}

/// Picks by the service's algorithm. Its place in the rotation outlives a change of the endpoints.
pub(crate) struct Picker {
    cursor: Arc<AtomicUsize>,
}

impl Picker {
    pub(crate) fn new(_value: &Selected, before: Option<&Self>) -> Self {
        Self { cursor: before.map_or_else(Arc::default, |before| Arc::clone(&before.cursor)) }
    }

    /// An endpoint among `members` for which `eligible` holds.
    pub(crate) fn pick(
        &self,
        members: &[u32],
        _targets: &[Arc<Target>],
        _flow: &Flow,
        eligible: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let start = self.cursor.fetch_add(1, Ordering::Relaxed);
        (0..members.len()).map(|step| members[(start + step) % members.len()]).find(|index| eligible(*index))
    }
}
