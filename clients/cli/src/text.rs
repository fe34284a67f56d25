//! Values of the API as people read them.

use pbjson_types::{Duration, Timestamp};
use vipd_client::v1::{
    Change, Endpoint, Frontend, Problem, Protocol, Service, frontend, node_port, scheduler::Algorithm,
};

use crate::failure::sentence;

/// The name of an enum value of the API, by its number; a dash for what is not set.
macro_rules! name_of {
    ($enum:ty, $number:expr) => {
        match <$enum>::try_from($number) {
            Ok(value) if value.as_str_name().ends_with("_UNSPECIFIED") => "-".to_owned(),
            Ok(value) => value.as_str_name().to_owned(),
            // A vipd that is newer than this vipctl.
            Err(_) => $number.to_string(),
        }
    };
}
pub(crate) use name_of;

/// `; did you mean X?`, or what there is when nothing is near.
pub(crate) fn did_you_mean(wrong: &str, known: Vec<&str>) -> String {
    let distance = |name: &str| strsim::damerau_levenshtein(&wrong.to_lowercase(), &name.to_lowercase());
    let nearest = known.iter().map(|name| (distance(name), *name)).min();
    match nearest {
        Some((distance, name)) if distance <= 1.max(wrong.chars().count() / 3) => format!("; did you mean {name}?"),
        _ => format!("; there are {}", known.join(", ")),
    }
}

/// UTC, to the second, as RFC 3339 writes it; nothing if it is not set.
pub(crate) fn when(at: Option<&Timestamp>) -> String {
    let Some(at) = at.and_then(|at| serde_json::to_value(at).ok()) else { return String::new() };
    let text = at.as_str().unwrap_or_default();
    text.get(..19).map_or_else(|| text.to_owned(), |seconds| format!("{seconds}Z"))
}

/// `3h`, `90s`, `0.5s`.
pub(crate) fn span(duration: &Duration) -> String {
    let (seconds, nanos) = (duration.seconds, duration.nanos);
    match seconds {
        _ if nanos != 0 => format!("{}s", seconds as f64 + f64::from(nanos) / 1e9),
        s if s >= 86_400 && s % 86_400 == 0 => format!("{}d", s / 86_400),
        s if s >= 3_600 && s % 3_600 == 0 => format!("{}h", s / 3_600),
        s if s >= 300 && s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

/// `10.96.0.10:80`, `[fd96::10]:80-90`, `node:30080`.
pub(crate) fn place(frontend: &Frontend) -> String {
    let at = match &frontend.at {
        Some(frontend::At::Address(address)) => bracketed(address),
        Some(frontend::At::NodePort(node)) => {
            let family = match node.family() {
                node_port::Family::Ipv4 => "-ipv4",
                node_port::Family::Ipv6 => "-ipv6",
                node_port::Family::Unspecified | node_port::Family::Both => "",
            };
            format!("node{family}")
        }
        None => "?".to_owned(),
    };
    let end = if frontend.port_end > frontend.port { format!("-{}", frontend.port_end) } else { String::new() };
    format!("{at}:{}{end}", frontend.port)
}

/// `10.1.1.2:8080`; without a port in a service with a range.
pub(crate) fn address(address: &str, port: u32) -> String {
    if port == 0 { address.to_owned() } else { format!("{}:{port}", bracketed(address)) }
}

/// The address of an endpoint.
pub(crate) fn endpoint(endpoint: &Endpoint) -> String {
    address(&endpoint.address, endpoint.port)
}

fn bracketed(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

/// `owner/name`; of what is about an owner only its name.
pub(crate) fn key(owner: &str, name: &str) -> String {
    [owner, name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

/// The default is TCP.
pub(crate) fn protocol(service: &Service) -> String {
    match service.protocol() {
        Protocol::Unspecified => Protocol::Tcp.as_str_name().to_owned(),
        _ => name_of!(Protocol, service.protocol),
    }
}

/// The algorithm that runs; none is vipd's default.
pub(crate) fn algorithm(algorithm: Algorithm) -> String {
    match algorithm {
        Algorithm::Unspecified => "DEFAULT".to_owned(),
        named => named.as_str_name().to_owned(),
    }
}

/// Problems, each on a line of its own; nothing without any.
pub(crate) fn problems(problems: &[Problem], indent: &str) -> String {
    let line = |problem: &Problem| {
        let since = when(problem.since.as_ref());
        let since = if since.is_empty() { since } else { format!(" (since {since})") };
        format!("{indent}{}: {}{since}\n", problem.code().as_str_name(), sentence(problem))
    };
    problems.iter().map(line).collect()
}

/// What a write did, in a line, and its notes.
pub(crate) fn change(subject: &str, change: Option<&Change>) -> String {
    let Some(change) = change else { return format!("{subject}: done\n") };
    let what = match (change.changed(), change.in_force()) {
        (true, true) => "in force",
        (true, false) => "accepted, not in force yet",
        (false, true) => "unchanged, in force",
        (false, false) => "unchanged, not in force yet",
    };
    format!("{subject}: {what}, revision {}\n{}", change.revision, problems(&change.notes, "  note: "))
}

/// `1 service`, `3 services`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_and_all_where_none_is_near() {
        assert_eq!(did_you_mean("adress", vec!["address", "port"]), "; did you mean address?");
        assert_eq!(did_you_mean("wlc", vec!["WLC", "LC"]), "; did you mean WLC?");
        assert_eq!(did_you_mean("colour", vec!["address", "port"]), "; there are address, port");
    }

    #[test]
    fn frontends_read_as_they_are_reached() {
        let at = |address: &str| Some(frontend::At::Address(address.to_owned()));
        assert_eq!(place(&Frontend { at: at("10.96.0.10"), port: 80, ..Default::default() }), "10.96.0.10:80");
        let range = Frontend { at: at("fd96::10"), port: 80, port_end: 90, ..Default::default() };
        assert_eq!(place(&range), "[fd96::10]:80-90");
        let node = Some(frontend::At::NodePort(v1_node_port()));
        assert_eq!(place(&Frontend { at: node, port: 30_080, ..Default::default() }), "node-ipv6:30080");
    }

    fn v1_node_port() -> vipd_client::v1::NodePort {
        vipd_client::v1::NodePort { family: node_port::Family::Ipv6.into(), addresses: Vec::new() }
    }

    #[test]
    fn times_and_spans() {
        let at = Timestamp { seconds: 1_796_000_000, nanos: 5 };
        assert_eq!(when(Some(&at)), "2026-11-30T00:53:20Z");
        assert_eq!(when(None), "");
        let spans = [(10_800, "3h"), (90, "90s"), (300, "5m"), (86_400, "1d"), (0, "0s")];
        for (seconds, said) in spans {
            assert_eq!(span(&Duration { seconds, nanos: 0 }), said);
        }
        assert_eq!(span(&Duration { seconds: 0, nanos: 500_000_000 }), "0.5s");
    }
}
