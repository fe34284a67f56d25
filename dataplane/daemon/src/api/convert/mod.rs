//! Messages of `vipd.v1` into values of the model, and back: one file per topic, each with `parse` (message → value,
//! checked) and `message` (value → message, every default filled in).
//!
//! `parse` refuses what is no value at all: text that is no address, numbers that are no port, unknown enum numbers.
//! Whether a value is acceptable, and fits the state, is for the model. It collects every problem with its field path instead of stopping at the first. No I/O, no clock.

pub mod endpoint;
pub mod engine;
pub mod frontend;
pub mod operation;
pub mod owner;
pub mod path;
pub mod problem;
pub mod scalar;
pub mod scheduler;
pub mod service;
pub mod sync;

pub use path::{Path, Problems};

#[cfg(test)]
mod tests;
