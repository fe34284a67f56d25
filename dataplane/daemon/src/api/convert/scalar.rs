//! Single fields: addresses, prefixes, ports, durations, times, texts, enum numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use vipd_model::name::NAME_MAX;
use vipd_model::{Millis, OwnerName, ProblemCode, ServiceKey, ServiceName};

use super::path::{Path, Problems};

/// A text from a caller as an answer may quote it: in quotes, escaped, cut after 60 characters, so that no answer, log
/// line or terminal carries what a stranger sent at length.
#[must_use]
pub fn quoted(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}… ({} bytes)", &text[..end], text.len()),
    }
}

/// A name from a caller for a report of what was refused: as sent, but no longer than a name may be.
#[must_use]
pub fn cut(text: &str) -> String {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= NAME_MAX).last();
    text[..end.unwrap_or_default()].to_owned()
}

/// An address, strictly: one form for IPv4, no mapped addresses, no zones. The reason says what to write instead.
///
/// # Errors
/// A sentence.
pub fn address(text: &str) -> Result<IpAddr, String> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) => match v6.to_ipv4_mapped() {
            Some(v4) => Err(format!("{} is an IPv4 address in IPv6 form; write {v4}", quoted(text))),
            None => Ok(IpAddr::V6(v6)),
        },
        Ok(v4) => Ok(v4),
        Err(_) => Err(why_no_address(text)),
    }
}

fn why_no_address(text: &str) -> String {
    let shown = quoted(text);
    if text.is_empty() {
        return "is empty; give an IPv4 or IPv6 address".to_owned();
    }
    if let Some((address, _zone)) = text.split_once('%') {
        return match address.parse::<Ipv6Addr>() {
            Ok(v6) => format!("{shown} has a zone id, which means something on one host only; write {v6}"),
            Err(_) => format!("{shown} has a zone id and is no address; give an IPv4 or IPv6 address"),
        };
    }
    if let Some(v4) = without_leading_zeros(text) {
        return format!("{shown} has leading zeros, which some programs read as octal; write {v4}");
    }
    if let Ok(socket) = text.parse::<std::net::SocketAddr>() {
        return format!("{shown} has a port; write {} here and {} into the port", socket.ip(), socket.port());
    }
    if let Ok(net) = text.parse::<IpNet>() {
        return format!("{shown} is a prefix; a single address such as {} is wanted", net.addr());
    }
    if let Some(v6) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).and_then(|t| t.parse::<Ipv6Addr>().ok())
    {
        return format!("{shown} has brackets; write {v6}");
    }
    if text.trim() != text && text.trim().parse::<IpAddr>().is_ok() {
        return format!("{shown} has spaces around it; write {}", text.trim());
    }
    format!("{shown} is not an IPv4 or IPv6 address (vipd resolves no host names)")
}

/// `010.0.0.1` as it was perhaps meant.
fn without_leading_zeros(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let digits = part.trim_start_matches('0');
        let digits = if digits.is_empty() && !part.is_empty() { "0" } else { digits };
        *octet = digits.parse().ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

/// A prefix, strictly: with a length, without bits behind it.
///
/// # Errors
/// A sentence.
pub fn prefix(text: &str) -> Result<IpNet, String> {
    let shown = quoted(text);
    let Some((host, length)) = text.split_once('/') else {
        return Err(match address(text) {
            Ok(host) => format!("{shown} has no prefix length; write {host}/{}", if host.is_ipv4() { 32 } else { 128 }),
            Err(_) => format!("{shown} is not a prefix; write one such as 10.0.0.0/8 or fd00::/8"),
        });
    };
    let host = address(host).map_err(|why| format!("{shown}: {why}"))?;
    let most = if host.is_ipv4() { 32 } else { 128 };
    let plain = !length.is_empty() && length.len() <= 3 && length.bytes().all(|b| b.is_ascii_digit());
    let length = length.parse::<u8>().ok().filter(|&length| plain && length <= most);
    let Some(net) = length.and_then(|length| IpNet::new(host, length).ok()) else {
        return Err(format!("{shown}: the prefix length must be a number from 0 to {most}"));
    };
    if net.addr() != net.network() {
        return Err(format!(
            "{shown} has bits set behind its prefix; write {}, or {host}/{most} for one host",
            net.trunc()
        ));
    }
    Ok(net)
}

/// A list of prefixes: sorted, without duplicates.
pub fn prefixes(texts: &[String], at: &Path<'_>, problems: &mut Problems) -> Option<Vec<IpNet>> {
    let mut nets = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        match prefix(text) {
            Ok(net) => nets.push(net),
            Err(why) => problems.add(ProblemCode::Invalid, &at.index(index), why),
        }
    }
    let all_good = nets.len() == texts.len();
    nets.sort_unstable();
    nets.dedup();
    all_good.then_some(nets)
}

/// Prefixes as text.
#[must_use]
pub fn prefixes_message(nets: &[IpNet]) -> Vec<String> {
    nets.iter().map(ToString::to_string).collect()
}

/// A port; whether it may be 0 is for the model.
pub fn port(number: u32, at: &Path<'_>, problems: &mut Problems) -> Option<u16> {
    match u16::try_from(number) {
        Ok(port) => Some(port),
        Err(_) => problems.invalid(at, format!("{number} is no port; give one from 1 to 65535")),
    }
}

/// A whole number within bounds.
pub fn within<T>(number: u32, most: u32, at: &Path<'_>, problems: &mut Problems) -> Option<T>
where
    T: TryFrom<u32>,
{
    match T::try_from(number) {
        Ok(value) if number <= most => Some(value),
        _ => problems.invalid(at, format!("{number} is too large; the most is {most}")),
    }
}

/// A duration; absent stays absent. Whether it is too short or too long is for the model.
pub fn duration(
    message: Option<pbjson_types::Duration>,
    at: &Path<'_>,
    problems: &mut Problems,
) -> Option<Option<Duration>> {
    let Some(message) = message else { return Some(None) };
    match (u64::try_from(message.seconds), u32::try_from(message.nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Some(Some(Duration::new(seconds, nanos))),
        (Ok(_), Ok(nanos)) => problems.invalid(at, format!("has {nanos} nanoseconds; give 0 to 999999999")),
        _ => problems.invalid(at, "is negative; give a time that lies ahead, such as \"30s\""),
    }
}

/// A duration as a message.
#[must_use]
pub fn duration_message(value: Duration) -> pbjson_types::Duration {
    let seconds = i64::try_from(value.as_secs()).unwrap_or(i64::MAX);
    pbjson_types::Duration { seconds, nanos: value.subsec_nanos().cast_signed() }
}

/// A moment as a message.
#[must_use]
pub fn timestamp(at: Millis) -> pbjson_types::Timestamp {
    let seconds = i64::try_from(at.0 / 1_000).unwrap_or(i64::MAX);
    // Below 1,000, so the product is below 10⁹ and fits.
    let nanos = u32::try_from(at.0 % 1_000).unwrap_or_default() * 1_000_000;
    pbjson_types::Timestamp { seconds, nanos: nanos.cast_signed() }
}

/// The value of an enum that stands as a number on the wire.
pub fn known<E: TryFrom<i32>>(number: i32, at: &Path<'_>, problems: &mut Problems) -> Option<E> {
    match E::try_from(number) {
        Ok(value) => Some(value),
        Err(_) => problems.invalid(
            at,
            format!(
                "{number} is no value that this vipd knows; use the names in the .proto of its version (see GetInfo)"
            ),
        ),
    }
}

/// A free text: printable and short.
pub fn text(text: String, most: usize, at: &Path<'_>, problems: &mut Problems) -> Option<String> {
    if text.len() > most {
        return problems.invalid(at, format!("has {} bytes; the most is {most}", text.len()));
    }
    match text.chars().find(|c| c.is_control()) {
        Some(c) => problems.invalid(at, format!("has the control character {c:?}; use printable text")),
        None => Some(text),
    }
}

/// The owner that a request names, or the caller's own when it names none.
pub fn owner(text: &str, default: &OwnerName, at: &Path<'_>, problems: &mut Problems) -> Option<OwnerName> {
    if text.is_empty() {
        return Some(default.clone());
    }
    match OwnerName::new(text) {
        Ok(name) => Some(name),
        Err(why) => problems.invalid(at, why.to_string()),
    }
}

/// The service that a request names by its `owner` and `name`.
pub fn key(
    owner_text: &str,
    name_text: &str,
    default: &OwnerName,
    at: &Path<'_>,
    problems: &mut Problems,
) -> Option<ServiceKey> {
    let owner = owner(owner_text, default, &at.field("owner"), problems);
    let name = match ServiceName::new(name_text) {
        Ok(name) => Some(name),
        Err(why) => problems.invalid(&at.field("name"), why.to_string()),
    };
    Some(ServiceKey { owner: owner?, name: name? })
}
