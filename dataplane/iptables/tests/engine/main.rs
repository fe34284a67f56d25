//! The engine on the real kernel, in namespaces of the tests' own, on both back ends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod faults;
mod guard;
mod kernel;
mod kit;
mod lab;
mod meaning;
mod traffic;
