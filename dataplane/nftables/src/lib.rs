//! The guard by nftables: capture of frontends for the proxy, refusals, source ranges, virtual ranges, the anchor.
//!
//! One table of ours, `inet vipd`, with a constant number of rules: what a frontend is lives in elements of maps and
//! sets, so a change costs messages in proportion to the change. `inet vipd-anchor` keeps established flows alive.
//! Foreign tables are neither touched nor parsed. Read [`table`] for the layout, then [`render`](crate::render) →
//! [`Guard`]. The nftables balancer is to stand in the same table; it is not here yet.

mod apply;
mod element;
mod flows;
mod generation;
mod guard;
pub mod names;
mod object;
mod observe;
mod plan;
mod probe;
mod render;
mod rule;
pub mod table;

pub use element::ElementKey;
pub use guard::Guard;
pub use object::{Key, Object, Value};
pub use probe::Unusable;
pub use render::MAX_ELEMENTS;
pub use rule::Rule;
