//! Keys of set elements as values, as the kernel's bytes, and as `nft` prints them.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use vipd_netlink::nft::{Element, Field, KeyBytes, Set};

/// One key: the fields that its set has, in this order; the others are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElementKey {
    /// Destination, of sets that find frontends by address, and of virtual ranges.
    pub address: Option<IpAddr>,
    /// Protocol number and destination port.
    pub port: Option<(u8, u16)>,
    /// First address of a source prefix.
    pub source: Option<IpAddr>,
}

impl ElementKey {
    /// For the kernel, with a map's data.
    #[must_use]
    pub fn element(&self, data: Option<u16>) -> Element {
        let mut key = KeyBytes::new();
        if let Some(address) = self.address {
            key = key.address(address);
        }
        if let Some((protocol, port)) = self.port {
            key = key.protocol(protocol).port(port);
        }
        if let Some(source) = self.source {
            key = key.address(source);
        }
        match data {
            Some(port) => Element::pair(key, KeyBytes::new().port(port)),
            None => Element::key(key),
        }
    }

    /// Reads an element of a set of this type back; none if the bytes are not of that type.
    #[must_use]
    pub fn parse(set: &Set, element: &Element) -> Option<(Self, Option<u16>)> {
        let mut key = Self::default();
        let mut protocol = None;
        let mut rest = element.key.as_slice();
        for field in &set.key {
            let value = rest.get(..field.width())?;
            rest = rest.get(field.padded()..).unwrap_or_default();
            match field {
                Field::Ipv4 | Field::Ipv6 => {
                    let place = if protocol.is_none() { &mut key.address } else { &mut key.source };
                    *place = Some(parse_address(value)?);
                }
                Field::Protocol => protocol = value.first().copied(),
                Field::Port => key.port = Some((protocol?, parse_port(value)?)),
                Field::Word | Field::Mark | Field::Other(_) => return None,
            }
        }
        let data = match &element.data {
            Some(bytes) => Some(parse_port(bytes.get(..2)?)?),
            None => None,
        };
        Some((key, data))
    }
}

fn parse_address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
    }
}

fn parse_port(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

impl fmt::Display for ElementKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(address) = self.address {
            write!(f, "{address}")?;
            separator = " . ";
        }
        if let Some((protocol, port)) = self.port {
            let name = match protocol {
                6 => "tcp",
                17 => "udp",
                132 => "sctp",
                _ => return write!(f, "{separator}{protocol} . {port}"),
            };
            write!(f, "{separator}{name} . {port}")?;
            separator = " . ";
        }
        match self.source {
            Some(source) => write!(f, "{separator}{source}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{names::SetName, table};
    use super::*;

    fn addresses(v6: bool) -> impl Strategy<Value = IpAddr> {
        any::<u128>().prop_map(move |bits| {
            if v6 { Ipv6Addr::from_bits(bits).into() } else { Ipv4Addr::from_bits(bits as u32).into() }
        })
    }

    proptest! {
        #[test]
        fn keys_are_read_back(
            (address, source) in any::<bool>().prop_flat_map(|v6| (addresses(v6), addresses(v6))),
            protocol in any::<u8>(), port in any::<u16>(), data in any::<u16>(), which in 0..5usize,
        ) {
            let spot = if address.is_ipv4() { "capture4" } else { "capture6" };
            let allow = if address.is_ipv4() { "allow4-24" } else { "allow6-64" };
            let range = if address.is_ipv4() { "virtual4-16" } else { "virtual6-48" };
            let name = [spot, allow, range, "reject-node4", "proxy-ports"][which];
            let key = ElementKey {
                address: (which < 3).then_some(address),
                port: (which != 2).then_some((protocol, port)),
                source: (which == 1).then_some(source),
            };
            let data = (which == 0).then_some(data);
            let set = table::set(SetName::parse(name).unwrap());
            prop_assert_eq!(ElementKey::parse(&set, &key.element(data)), Some((key, data)));
        }

        #[test]
        fn foreign_bytes_are_no_key_or_some_key(bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
            for name in SetName::constant() {
                let _ = ElementKey::parse(&table::set(name), &Element::key(bytes.clone()));
            }
        }
    }
}
