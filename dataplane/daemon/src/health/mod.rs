//! Health ports: plain HTTP that tells a load balancer whether this node has local endpoints for a group of services.
//!
//! [`ports`] keeps the listeners in step with what is in force, before a caller is answered; [`answer`] is computed at
//! each request from the declared state, so that it never lags. Active checks of endpoints come in a later version.

mod answer;
mod ports;

pub use ports::HealthPorts;
