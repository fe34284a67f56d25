//! Addresses and prefixes: what may stand as a VIP, as an endpoint, as a range.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// Why an address can be neither a VIP nor an endpoint, and what to write instead.
fn not_unicast(address: IpAddr) -> Option<String> {
    if let IpAddr::V6(v6) = address
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        return Some(format!("{address} is an IPv4 address in IPv6 clothes; write {v4}"));
    }
    let what = match address {
        _ if address.is_unspecified() => "the unspecified address",
        _ if address.is_multicast() => "a multicast address",
        IpAddr::V4(Ipv4Addr::BROADCAST) => "the broadcast address",
        _ => return None,
    };
    Some(format!("{address} is {what}; write the unicast address of one host"))
}

/// Why an address cannot be a VIP. Loopback, link-local and the node's own addresses are a matter of who asks, and are
/// judged where identities are known.
pub(crate) fn not_a_vip(address: IpAddr) -> Option<String> {
    not_unicast(address)
}

/// Why an address cannot be an endpoint.
pub(crate) fn not_an_endpoint(address: IpAddr) -> Option<String> {
    not_unicast(address).or_else(|| match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some(format!(
            "{address} is link-local: without an interface nothing can be sent there; write a routable address"
        )),
        _ => None,
    })
}

/// Why a prefix is not one.
pub(crate) fn not_a_prefix(net: &IpNet) -> Option<String> {
    if let IpNet::V6(v6) = net
        && v6.addr().to_ipv4_mapped().is_some()
    {
        return Some(format!("{net} holds IPv4 addresses in IPv6 clothes; write an IPv4 prefix"));
    }
    (net.trunc() != *net).then(|| format!("{net} has bits set behind its prefix length; write {}", net.trunc()))
}
