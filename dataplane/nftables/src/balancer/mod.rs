//! The balancer: picks endpoints in the kernel, for services of the nftables engine.
//!
//! One table, `inet vipd-nft`, of constant chains; what a service is lives in elements of maps, spread over banks. Read
//! [`word`] and `table` for the layout, [`object`] for what is kept of it, then `render` → [`Nftables`]. What the
//! guard does for other engines (source ranges, refusals, INVALID) is done here for the engine's own services.

mod apply;
mod arrange;
mod cell;
mod counters;
mod diff;
mod flows;
mod hash;
pub mod kind;
mod label;
pub mod names;
mod nets;
pub mod object;
mod observe;
pub mod pool;
mod probe;
mod ranges;
mod remembered;
mod render;
mod statements;
mod steps;
mod table;
pub mod word;

pub use object::{Key, Value};
pub use render::{MAX_ELEMENTS, MAX_TURNS};
pub use steps::Nftables;
