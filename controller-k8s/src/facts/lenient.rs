//! Addresses and ranges as old objects have them: lenient in, canonical out.
//!
//! The API server has become strict (KEP-4858), what it stored before is still served. Leading zeros are decimal, as
//! they were to Go before 1.17; `::ffff:a.b.c.d` is IPv4; padding is trimmed; host bits of a range are cleared.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// An address, or `None` if it is none even so.
#[must_use]
pub fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let address = match text.rsplit_once(':') {
        // The IPv4 part of an IPv6 address may have leading zeros as well.
        Some((head, tail)) if tail.contains('.') => {
            format!("{head}:{}", ipv4(tail)?).parse::<Ipv6Addr>().map(IpAddr::V6).ok()?
        }
        Some(_) => text.parse().map(IpAddr::V6).ok()?,
        None => IpAddr::V4(ipv4(text)?),
    };
    Some(address.to_canonical())
}

/// A range; a lone address is none.
#[must_use]
pub fn range(text: &str) -> Option<IpNet> {
    let (head, length) = text.trim().split_once('/')?;
    let length: u8 = length.parse().ok()?;
    let mapped = head.contains(':');
    let address = address(head)?;
    // "::ffff:10.0.0.0/104" is 10.0.0.0/8.
    let length = if mapped && address.is_ipv4() { length.checked_sub(96)? } else { length };
    Some(IpNet::new(address, length).ok()?.trunc())
}

fn ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        *octet = if digits { part.trim_start_matches('0').parse().or_else(|_| zero(part)).ok()? } else { return None };
    }
    parts.next().is_none().then(|| octets.into())
}

/// "0", "00": what is left after trimming does not parse.
fn zero(part: &str) -> Result<u8, std::num::ParseIntError> {
    if part.bytes().all(|byte| byte == b'0') { Ok(0) } else { part.parse() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn old_spellings_are_understood() {
        for (text, wanted) in [
            ("010.096.000.001", Some("10.96.0.1")),
            ("10.0.0.1", Some("10.0.0.1")),
            (" 10.0.0.1\n", Some("10.0.0.1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("::ffff:010.0.0.08", Some("10.0.0.8")),
            ("2001:DB8:0:0::1", Some("2001:db8::1")),
            ("256.0.0.1", None),
            ("0000256.0.0.1", None),
            ("10.0.0", None),
            ("10.0.0.1.2", None),
            ("10.0.0.0x1", None),
            ("fe80::1%eth0", None),
            ("", None),
            ("None", None),
        ] {
            assert_eq!(address(text).map(|found| found.to_string()).as_deref(), wanted, "{text:?}");
        }
    }

    #[test]
    fn ranges_lose_their_host_bits() {
        for (text, wanted) in [
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            (" 010.0.0.0/8 ", Some("10.0.0.0/8")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("2001:db8::1/32", Some("2001:db8::/32")),
            ("::ffff:10.0.0.0/104", Some("10.0.0.0/8")),
            ("10.0.0.1", None),
            ("10.0.0.0/33", None),
            ("::ffff:10.0.0.0/8", None),
        ] {
            assert_eq!(range(text).map(|found| found.to_string()).as_deref(), wanted, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn canonical_addresses_stay_as_they_are(bits: u32) {
            let address = Ipv4Addr::from(bits);
            prop_assert_eq!(super::address(&address.to_string()), Some(IpAddr::V4(address)));
        }

        #[test]
        fn nothing_panics(text in ".{0,40}") {
            let _ = (address(&text), range(&text));
        }
    }
}
