//! What an engine is: four steps from a declared service to packets that move, two of them pure.
//!
//! ```text
//! render(service) → objects      pure; typed kernel objects, ordered
//! plan(have, want) → operations  pure; make before break
//! observe() → objects            reads the kernel
//! apply(operations)              writes it
//! ```
//! The guard has the same four steps over [`GuardEntry`] values, so one [`Runner`] drives both. `fake` is an engine on
//! a kernel in memory that has the real one's manners; `chaos` wraps any engine and fails on purpose. No threads, no
//! async: the daemon gives each engine a thread. Read [`steps`], then [`runner`].

pub mod assignments;
pub mod chaos;
pub mod fake;
pub mod flow;
pub mod guard;
pub mod node;
pub mod plan;
pub mod runner;
pub mod steps;

pub use assignments::Assignments;
pub use flow::{Answerers, FlowFilter, Judge, Places};
pub use guard::{GuardEntry, GuardInput, InvalidPackets, Place};
pub use node::Node;
pub use plan::{Objects, Operation, Plan};
pub use runner::{Outcome, Runner};
pub use steps::{
    Applied, ApplyError, Counters, Engine, EngineError, Hashed, Observed, RenderError, ServiceCounters, Steps, Sysctl,
};
