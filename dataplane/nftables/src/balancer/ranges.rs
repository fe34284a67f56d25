//! Address ranges: overlapping prefixes merged, because an interval set holds no two that overlap.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Disjoint ranges, ascending, that cover what the prefixes cover. All of one family.
pub(super) fn merged<'a>(nets: impl Iterator<Item = &'a IpNet>) -> Vec<(IpAddr, IpAddr)> {
    let mut ranges: Vec<(IpAddr, IpAddr)> = nets.map(|net| (net.network(), net.broadcast())).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(IpAddr, IpAddr)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= *end || after(*end) == Some(first) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// The next address; none after the last one.
pub(super) fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_add(1).map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(address) => address.to_bits().checked_add(1).map(|bits| Ipv6Addr::from_bits(bits).into()),
    }
}

/// The address before; none before the first one.
pub(super) fn before(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_sub(1).map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(address) => address.to_bits().checked_sub(1).map(|bits| Ipv6Addr::from_bits(bits).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_and_adjoining_prefixes_are_one_range() {
        let nets: Vec<IpNet> = ["10.0.1.0/24", "10.0.0.0/24", "10.0.1.128/25", "192.0.2.0/24", "255.255.255.0/24"]
            .map(|net| net.parse().unwrap())
            .into();
        let text: Vec<_> = merged(nets.iter()).iter().map(|(first, last)| format!("{first}-{last}")).collect();
        assert_eq!(text, ["10.0.0.0-10.0.1.255", "192.0.2.0-192.0.2.255", "255.255.255.0-255.255.255.255"]);
        assert_eq!(after(merged(nets.iter())[2].1), None);
    }
}
