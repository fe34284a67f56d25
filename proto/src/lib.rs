//! The vipd API, version 1. The `.proto` files under `proto/vipd/v1` are the contract; this crate holds what is
//! generated from them at build time: messages, client and server, JSON, and the descriptor for reflection.

/// Package `vipd.v1`.
#[expect(missing_docs, clippy::all, clippy::clone_on_ref_ptr, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("vipd.v1");
    include!(concat!(env!("OUT_DIR"), "/vipd.v1.serde.rs"));
}

/// The encoded `FileDescriptorSet` of `vipd.v1` and everything it imports, for gRPC reflection.
pub const DESCRIPTOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vipd_descriptor.bin"));
