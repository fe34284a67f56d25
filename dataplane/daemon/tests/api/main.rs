//! The real gRPC server over the real reconciler on an engine that programs a fake kernel: what callers meet, good and bad.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bounds;
mod calls;
mod rig;
mod streams;
mod syncs;
mod tls;
