//! The real gRPC server over the real reconciler on an engine that programs a fake kernel: what callers meet, good and bad.

mod bounds;
mod calls;
mod rig;
mod streams;
mod syncs;
