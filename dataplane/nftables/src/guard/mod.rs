//! The guard: capture of frontends for the proxy, refusals, source ranges, virtual ranges, the anchor.
//!
//! One table, `inet vipd`, with a constant number of rules: what a frontend is lives in elements of maps and sets, so a
//! change costs messages in proportion to the change. `inet vipd-anchor` keeps established flows alive. Read [`table`]
//! for the layout, then [`render`](render::service) → [`Guard`].

mod apply;
mod element;
mod flows;
pub mod names;
mod object;
mod observe;
mod plan;
mod probe;
mod render;
mod statements;
mod steps;
pub mod table;

pub use element::ElementKey;
pub use object::{Key, Object, Value};
pub use render::MAX_ELEMENTS;
pub use steps::Guard;
