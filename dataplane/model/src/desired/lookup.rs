//! Who holds a frontend.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Desired;
use crate::frontend::{Place, PortRange, Span};
use crate::problem::Problem;
use crate::service::{Protocol, Service};

impl Desired {
    /// Who holds a port of a place, and by which of its frontends.
    #[must_use]
    pub fn holder(&self, place: Place, protocol: Protocol, port: u16) -> Option<(&Arc<Service>, u32)> {
        let (key, frontend) = self.claims.holder(protocol, place, port)?;
        Some((self.service(key)?, frontend))
    }

    /// The services that hold `10.96.0.10` or `10.96.0.10:80` (IPv6: `fd00::1`, `[fd00::1]:80`), of any protocol, in key
    /// order.
    ///
    /// # Errors
    /// The text is neither.
    pub fn holders(&self, text: &str) -> Result<Vec<&Arc<Service>>, Problem> {
        let everything = PortRange { first: 0, last: u16::MAX };
        let (address, ports) = match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
            (Ok(socket), _) => (socket.ip(), PortRange::one(socket.port())),
            (Err(_), Ok(address)) => (address, everything),
            _ => {
                let message =
                    format!("{text:?} is no frontend; write 10.96.0.10, 10.96.0.10:80, fd00::1 or [fd00::1]:80");
                return Err(Problem::invalid("frontend", message));
            }
        };
        let span = Span { place: Place::Address(address), ports };
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter();
        let found = all.flat_map(|protocol| self.claims.overlapping(protocol, span)).filter(|f| f.held);
        let mut holders: Vec<&Arc<Service>> = found.filter_map(|f| self.service(f.service)).collect();
        holders.sort_by(|a, b| a.key.cmp(&b.key));
        holders.dedup_by(|a, b| a.key == b.key);
        Ok(holders)
    }
}
