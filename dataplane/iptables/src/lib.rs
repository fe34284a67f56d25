//! The engine by iptables, and a guard by iptables for hosts without nf_tables.
//!
//! Rules are fed to the host's own `iptables-restore --noflush`, of the back end (legacy or nft) that the host uses: one
//! script a family and batch, with the chains that changed. A tree of chains leads from a packet to its service
//! ([`tree`]), so that a first packet costs the same at ten thousand services as at ten; what is refused and what is
//! translated is said in [`layout`]. Read [`object`], then [`render`](crate::render) → [`Iptables`].

mod backend;
mod child;
mod counters;
mod detect;
mod flows;
mod guard;
mod iptables;
mod lane;
pub mod layout;
pub mod names;
pub mod object;
mod remembered;
mod render;
mod rule;
mod save;
mod script;
mod side;
mod tables;
pub mod tree;
mod watch;

pub use backend::{Backend, Programs};
pub use detect::{Choice, Options, Unusable};
pub use guard::Guard;
pub use iptables::Iptables;
pub use object::{Door, Goal, Key, Leaf, Place, SourceNatClass, Value};
pub use render::MAX_RULES;
pub use rule::{Chance, Original, Recent, Rule, State, Target};
pub use tables::Patience;
