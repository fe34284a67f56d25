//! How vipd is tested from outside: real hosts, real packets, a real daemon process.
//!
//! * [`lab`]: hosts as network namespaces, made without root, and the daemon inside one of them.
//! * [`traffic`]: servers that say who they are, clients that say what happened to them, and how even a spread is.
//! * [`api`]: what a caller of vipd sends, in few words.
//! * [`conformance`]: the cases that every engine must pass, and the table that they print.
//! * [`bench`]: the engines beside kube-proxy, measured.
//! * [`demo`]: what `make demo` shows.
//! * [`rings`]: which rings of TESTING.md ran here, and why one did not.
//! * [`runner`]: what runs the trials of a lab target.
//!
//! Nothing in here is part of the product. The test targets under `tests/tests` are the way in.

pub mod api;
pub mod bench;
pub mod conformance;
pub mod demo;
pub mod lab;
pub mod rings;
pub mod runner;
pub mod traffic;
