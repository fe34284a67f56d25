//! Time-outs of connections, the same for all services of a network namespace.

use std::time::Duration;

use crate::attr::{Attributes, Encoder};
use crate::error::{Invalid, Malformed};

/// `IPVS_CMD_ATTR_TIMEOUT_*`.
mod kind {
    pub(super) const TCP: u16 = 4;
    pub(super) const TCP_FIN: u16 = 5;
    pub(super) const UDP: u16 = 6;
}

/// How long IPVS remembers a connection without packets, in whole seconds. When set, `None` leaves it as it is; when
/// read, `None` is a protocol that the kernel was built without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Timeouts {
    /// An established TCP connection; the kernel begins with 900 s.
    pub tcp: Option<Duration>,
    /// A TCP connection after a FIN; the kernel begins with 120 s.
    pub tcp_fin: Option<Duration>,
    /// Datagrams between two addresses; the kernel begins with 300 s.
    pub udp: Option<Duration>,
}

impl Timeouts {
    pub(crate) fn encode(&self, encoder: &mut Encoder<'_>) -> Result<(), Invalid> {
        let fields = [(kind::TCP, self.tcp), (kind::TCP_FIN, self.tcp_fin), (kind::UDP, self.udp)];
        for (kind, timeout) in fields {
            let Some(timeout) = timeout else { continue };
            match u32::try_from(timeout.as_secs()) {
                // The kernel would leave 0 as it is without a word; what is too long it refuses by itself.
                Ok(0) | Err(_) => return Err(Invalid::Timeout(timeout)),
                Ok(seconds) => encoder.put_u32(kind, seconds),
            }
        }
        Ok(())
    }

    /// Reads the attributes of an `IPVS_CMD_SET_CONFIG`, which is also the kernel's answer.
    ///
    /// # Errors
    /// [`Malformed`] if an attribute is broken.
    pub fn decode(attributes: Attributes<'_>) -> Result<Self, Malformed> {
        let mut timeouts = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            let field = match attribute.kind {
                kind::TCP => &mut timeouts.tcp,
                kind::TCP_FIN => &mut timeouts.tcp_fin,
                kind::UDP => &mut timeouts.udp,
                _ => continue,
            };
            *field = Some(Duration::from_secs(attribute.u32()?.into()));
        }
        Ok(timeouts)
    }
}
