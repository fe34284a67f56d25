//! Counters and rates of services and destinations.

use crate::attr::{Attribute, Attributes};
use crate::error::Malformed;

/// How wide the kernel's counters were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Width {
    /// 64 bits (since Linux 4.1): they do not overflow.
    #[default]
    Bits64,
    /// An older kernel's 32 bits, but for the byte counters: they start again from 0.
    Bits32,
}

/// What went through a service or a destination since it was made or zeroed. The kernel sums up every two seconds, so it
/// is what was so long ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stats {
    /// Connections scheduled; for one-packet scheduling, datagrams.
    pub connections: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Packets from destinations; 0 where replies do not come back this way (tunnel, direct route).
    pub packets_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes from destinations.
    pub bytes_out: u64,
    /// What the kernel estimates of the last seconds.
    pub rates: Rates,
    /// Whether the counts may have overflowed.
    pub width: Width,
}

/// Rates that the kernel estimates, a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rates {
    /// Connections.
    pub connections: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Packets from destinations.
    pub packets_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes from destinations.
    pub bytes_out: u64,
}

impl Stats {
    /// Reads the payload of an `IPVS_*_ATTR_STATS64` or, counters being narrower, of an `IPVS_*_ATTR_STATS`.
    ///
    /// # Errors
    /// [`Malformed`] if an attribute is broken. One that is missing counts 0, unknown ones are passed over.
    pub fn decode(attributes: Attributes<'_>, width: Width) -> Result<Self, Malformed> {
        let mut stats = Self { width, ..Self::default() };
        for attribute in attributes {
            let attribute = attribute?;
            // `IPVS_STATS_ATTR_*`.
            let field = match attribute.kind {
                1 => &mut stats.connections,
                2 => &mut stats.packets_in,
                3 => &mut stats.packets_out,
                4 => &mut stats.bytes_in,
                5 => &mut stats.bytes_out,
                6 => &mut stats.rates.connections,
                7 => &mut stats.rates.packets_in,
                8 => &mut stats.rates.packets_out,
                9 => &mut stats.rates.bytes_in,
                10 => &mut stats.rates.bytes_out,
                _ => continue,
            };
            *field = count(&attribute)?;
        }
        Ok(stats)
    }

    /// The wide counters where the kernel sent them, else the narrow ones.
    pub(crate) fn prefer(wide: Option<Attribute<'_>>, narrow: Option<Attribute<'_>>) -> Result<Self, Malformed> {
        match (wide, narrow) {
            (Some(wide), _) => Self::decode(wide.nested(), Width::Bits64),
            (None, Some(narrow)) => Self::decode(narrow.nested(), Width::Bits32),
            (None, None) => Ok(Self::default()),
        }
    }
}

/// Byte counters have 64 bits even among the narrow ones: an attribute is as wide as it is.
fn count(attribute: &Attribute<'_>) -> Result<u64, Malformed> {
    if attribute.payload.len() < 8 { attribute.u32().map(u64::from) } else { attribute.u64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Encoder;

    #[test]
    fn narrow_counters_serve_where_there_are_no_wide_ones() {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes);
        encoder.put_u32(1, 7);
        encoder.put(11, &[]);
        encoder.put(4, &u64::MAX.to_ne_bytes());
        encoder.put_u32(99, 1);
        let narrow = Attribute { kind: 10, payload: &bytes };
        let read = Stats::prefer(None, Some(narrow)).unwrap();
        assert_eq!((read.connections, read.bytes_in, read.width), (7, u64::MAX, Width::Bits32));
        assert_eq!(Stats::prefer(Some(narrow), None).unwrap().width, Width::Bits64);
        assert_eq!(Stats::prefer(None, None), Ok(Stats::default()));
    }
}
