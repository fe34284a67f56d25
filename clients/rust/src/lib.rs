//! Calls vipd from Rust: a connection, the generated clients of the two services, and errors that name the field.
//!
//! ```no_run
//! use vipd_client::{CallError, Client, Target, v1};
//!
//! # async fn declare() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(&Target::default()).await?;
//!
//! let frontend = v1::Frontend {
//!     at: Some(v1::frontend::At::Address("10.96.0.10".to_owned())),
//!     port: 80,
//!     ..Default::default()
//! };
//! let service = v1::Service { name: "web".to_owned(), frontends: vec![frontend], ..Default::default() };
//! let request = v1::UpsertServiceRequest { service: Some(service), ..Default::default() };
//! client.dataplane().upsert_service(request).await.map_err(CallError::from)?;
//!
//! let endpoint = v1::Endpoint { address: "10.1.0.2".to_owned(), port: 8080, ..Default::default() };
//! let request =
//!     v1::SetEndpointsRequest { name: "web".to_owned(), endpoints: vec![endpoint], ..Default::default() };
//! match client.dataplane().set_endpoints(request).await.map_err(CallError::from) {
//!     Ok(_) => println!("the next connection to 10.96.0.10:80 goes there"),
//!     Err(error) if error.is_accepted() => println!("stored, and vipd keeps trying: {error}"),
//!     Err(error) => error.problems().iter().for_each(|p| println!("{}: {}", p.field, p.message)),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What OK means, every call, the limits and the recipes for `Watch` and `Sync` are in `docs/api.md`; the messages
//! themselves are [`v1`]. Nothing here retries or reconnects by itself beyond what a [`tonic`] channel does: repeating
//! a call of vipd is always safe, and when to do so is the caller's to know ([`CallError::may_repeat`]).

/// The examples of `docs/api.md`, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/api.md")]
struct Guide;

mod connect;
mod error;
mod paths;
mod target;

pub use connect::{Client, ConnectError};
pub use error::CallError;
pub use paths::{SYSTEM_SOCKET, default_socket};
pub use target::{Target, TargetError, Tls};
pub use tonic;
pub use vipd_proto::v1;
