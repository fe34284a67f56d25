//! The gRPC server: requests into commands, answers back. Generated types stop here, and there is no logic: what a call
//! means is decided in the model, when it is in force by the reconciler.
//!
//! Read [`convert`] for the messages, [`limits`] for the sizes.

pub mod convert;
pub mod identity;
pub mod limits;
pub mod status;
