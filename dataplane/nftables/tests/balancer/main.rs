//! The balancer against the real kernel, in network namespaces of the tests' own: its objects, and real traffic.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod kernel;
mod lab;
mod laws;
mod load;
mod service;
mod storm;
mod traffic;
