#![doc = include_str!("../README.md")]

mod address;
pub mod attr;
pub mod batch;
mod config;
mod connection;
mod controller;
mod daemon;
mod destination;
mod error;
mod exchange;
mod info;
pub mod message;
mod name;
mod netmask;
pub mod proc;
mod refusal;
mod report;
mod request;
mod service;
mod socket;
mod stats;
pub mod table;

pub use address::Family;
pub use batch::Batch;
pub use config::Timeouts;
pub use connection::Ipvs;
pub use daemon::{Daemon, DaemonEntry, DaemonRole};
pub use destination::{
    Connections, Destination, DestinationEntry, DestinationKey, Forwarding, Tunnel, TunnelFlags, TunnelKind,
};
pub use error::{Error, Invalid, Malformed};
pub use info::{Info, Version};
pub use name::{Name, PersistenceEngine, Scheduler};
pub use netmask::Netmask;
pub use refusal::{Reason, Refusal};
pub use report::{Report, Unanswered};
pub use request::Request;
pub use service::{Protocol, Service, ServiceEntry, ServiceFlags, ServiceKey};
pub use stats::{Rates, Stats, Width};
pub use table::TableEntry;
