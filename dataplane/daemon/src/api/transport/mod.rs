//! How callers get in: the unix socket, TCP with mutual TLS, loopback without, and in-process. All of them become one
//! kind of [`Connection`] that knows its [`Peer`], so that one gRPC server serves them alike.

pub mod authority;
pub mod connection;
pub mod listen;
pub mod tls;

pub use connection::{Connection, Seats};
pub use listen::{Incoming, ListenError};
