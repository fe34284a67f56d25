//! Choosing among endpoints: the model's pickers over a service's sets, fed with live gauges, turns and chance.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vipd_model::pick::{Draw, Load, Picker};
use vipd_model::select::Serve;
use vipd_model::{EndpointSet, Family, Selected};

use crate::served::Target;

/// The two ends of a new flow, as its client sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) client: SocketAddr,
    pub(crate) destination: SocketAddr,
}

/// The pickers of a service: one for each set.
pub(crate) struct Pickers {
    all: [Picker; 2],
    local: [Picker; 2],
    /// How many flows each set has seen. Outlives a change of the endpoints, so that a change does not send everybody to
    /// the first one; one for each set, or clients that use two families in turn would see every other endpoint only.
    turns: Arc<[AtomicU64; 4]>,
}

impl Pickers {
    pub(crate) fn new(value: &Selected, before: Option<&Self>) -> Self {
        let of = |sets: &[EndpointSet; 2]| [Picker::of(value, &sets[0]), Picker::of(value, &sets[1])];
        Self {
            all: of(&value.all),
            local: of(&value.local),
            turns: before.map_or_else(Arc::default, |before| Arc::clone(&before.turns)),
        }
    }

    /// One flow's picker: asked again after a failure it answers by the same draw.
    pub(crate) fn draw(&self, serve: Serve, family: Family) -> Option<OneDraw<'_>> {
        let (pickers, first_turn) = match serve {
            Serve::All => (&self.all, 0),
            Serve::Local => (&self.local, 2),
            Serve::Refuse(_) => return None,
        };
        let turn = self.turns[first_turn + family as usize].fetch_add(1, Ordering::Relaxed);
        Some(OneDraw { picker: &pickers[family as usize], turn, random: random() })
    }
}

/// See [`Pickers::draw`].
pub(crate) struct OneDraw<'a> {
    picker: &'a Picker,
    turn: u64,
    random: u64,
}

impl OneDraw<'_> {
    /// An endpoint among `members` for which `eligible` holds, as its index in the service's endpoints.
    pub(crate) fn pick(
        &self,
        members: &[u32],
        targets: &[Arc<Target>],
        flow: &Flow,
        eligible: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let load = Live { members, targets, eligible };
        let draw = Draw {
            turn: self.turn,
            random: self.random,
            source: flow.client,
            destination: flow.destination.ip(),
            load: &load,
        };
        self.picker.pick(&draw).and_then(|member| members.get(member)).copied()
    }
}

struct Live<'a, F> {
    members: &'a [u32],
    targets: &'a [Arc<Target>],
    eligible: F,
}

impl<F: Fn(u32) -> bool> Load for Live<'_, F> {
    fn active(&self, member: usize) -> u32 {
        self.targets[self.members[member] as usize].active.load(Ordering::Relaxed)
    }

    fn excluded(&self, member: usize) -> bool {
        !(self.eligible)(self.members[member])
    }
}

/// Uniform numbers, a sequence for each thread: xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift
/// generators, scrambled", 2016). Nobody's secret hangs on it.
fn random() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish() | 1);
    }
    STATE.with(|state| {
        let mut x = state.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        state.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    })
}
