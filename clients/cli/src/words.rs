//! Words on the command line that stand for values of the API. Whether a value is acceptable is vipd's to say; here is
//! only how it is written.

use std::time::Duration;

use vipd_client::v1::{self, Endpoint, endpoint, scheduler};

use crate::text;

/// `30s`, `5m`, `2h`, `1d`, `500ms`, or `0`.
pub(crate) fn duration(word: &str) -> Result<Duration, String> {
    let split = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = word.split_at(split);
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" if number == "0" => 1,
        _ => return Err("write a number with ms, s, m, h or d, such as 30s".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "write a number with a unit, such as 30s".to_owned())?;
    number.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(|| "is too long".to_owned())
}

/// A duration as messages have it.
pub(crate) fn message_of(duration: Duration) -> pbjson_types::Duration {
    // A duration of more than i64::MAX seconds cannot be written.
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    pbjson_types::Duration { seconds, nanos: duration.subsec_nanos().cast_signed() }
}

/// `KEY=VALUE`.
pub(crate) fn label(word: &str) -> Result<(String, String), String> {
    let (key, value) = word.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// An engine by name, in either case; `auto` for what the configuration says.
pub(crate) fn engine(word: &str) -> Result<v1::Engine, String> {
    let upper = word.to_uppercase();
    match v1::Engine::from_str_name(&upper) {
        Some(engine) if engine != v1::Engine::Unspecified => Ok(engine),
        _ if upper == "AUTO" => Ok(v1::Engine::Unspecified),
        _ => Err("write userspace, iptables, nftables, ipvs or auto".to_owned()),
    }
}

/// A scheduling algorithm by name, in either case.
pub(crate) fn algorithm(word: &str) -> Result<scheduler::Algorithm, String> {
    let upper = word.to_uppercase();
    if matches!(upper.as_str(), "DEFAULT" | "ALGORITHM_UNSPECIFIED") {
        return Ok(scheduler::Algorithm::Unspecified);
    }
    scheduler::Algorithm::from_str_name(&upper).ok_or_else(|| {
        let known = (1..).map_while(|number| scheduler::Algorithm::try_from(number).ok());
        let names: Vec<&str> = known.map(|algorithm| algorithm.as_str_name()).collect();
        format!("there is no such algorithm{}", text::did_you_mean(&upper, names))
    })
}

/// `ADDRESS:PORT` where a client connects to.
pub(crate) fn destination(word: &str) -> Result<(String, u32), String> {
    match address_and_port(word)? {
        (_, 0) => Err("write ADDRESS:PORT, an IPv6 address in brackets: [fd96::10]:80".to_owned()),
        (address, port) => Ok((address, port)),
    }
}

/// `10.1.1.2:8080,weight=4,state=DRAINING,local,tier=1,target=…`.
pub(crate) fn endpoint(word: &str) -> Result<Endpoint, String> {
    let mut parts = word.split(',');
    let (address, port) = address_and_port(parts.next().unwrap_or_default())?;
    let mut endpoint = Endpoint { address, port, ..Default::default() };
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        set(&mut endpoint, key, value).map_err(|why| format!("{part:?}: {why}"))?;
    }
    Ok(endpoint)
}

/// The keys that may follow an endpoint's address.
const KEYS: [&str; 8] = ["weight", "state", "local", "tier", "target", "max-connections", "drain", "drain-then"];

fn set(endpoint: &mut Endpoint, key: &str, value: &str) -> Result<(), String> {
    let number = || value.parse::<u32>().map_err(|_| "is no number".to_owned());
    match key {
        "weight" => endpoint.weight = Some(number()?),
        "state" => endpoint.set_state(state(value)?),
        "local" => endpoint.local = truth(value)?,
        "tier" => endpoint.tier = number()?,
        "target" => endpoint.target = value.to_owned(),
        "max-connections" => endpoint.max_connections = number()?,
        "drain" => endpoint.drain.get_or_insert_default().timeout = Some(message_of(duration(value)?)),
        "drain-then" => endpoint.drain.get_or_insert_default().set_on_expiry(on_expiry(value)?),
        _ => return Err(format!("there is no such key{}", text::did_you_mean(key, KEYS.to_vec()))),
    }
    Ok(())
}

/// `local` alone is `local=true`.
fn truth(word: &str) -> Result<bool, String> {
    match word {
        "" | "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("write local, local=true or local=false".to_owned()),
    }
}

fn state(word: &str) -> Result<endpoint::State, String> {
    match word.to_uppercase().replace('-', "_").as_str() {
        "READY" => Ok(endpoint::State::Ready),
        "DRAINING" => Ok(endpoint::State::Draining),
        "NOT_READY" => Ok(endpoint::State::NotReady),
        _ => Err("write READY, DRAINING or NOT_READY".to_owned()),
    }
}

fn on_expiry(word: &str) -> Result<v1::drain::OnExpiry, String> {
    match word.to_uppercase().as_str() {
        "LEAVE" => Ok(v1::drain::OnExpiry::Leave),
        "RESET" => Ok(v1::drain::OnExpiry::Reset),
        _ => Err("write LEAVE or RESET".to_owned()),
    }
}

/// Port 0 where there is none. An IPv6 address with a port stands in brackets.
fn address_and_port(word: &str) -> Result<(String, u32), String> {
    const FORM: &str = "write ADDRESS:PORT, an IPv6 address in brackets: [fd20::2]:8080";
    let (address, port) = match word.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']').ok_or(FORM)?;
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or(FORM)?) };
            (address, port)
        }
        None if word.matches(':').count() == 1 => {
            let (address, port) = word.split_once(':').ok_or(FORM)?;
            (address, Some(port))
        }
        None => (word, None),
    };
    if address.is_empty() {
        return Err(FORM.to_owned());
    }
    let port = port.map_or(Ok(0), |port| port.parse::<u16>().map_err(|_| format!("{port:?} is no port")))?;
    Ok((address.to_owned(), port.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_as_operators_write_them() {
        let plain = endpoint("10.1.1.2:8080").unwrap();
        assert_eq!((plain.address.as_str(), plain.port, plain.weight), ("10.1.1.2", 8080, None));
        let six = endpoint("[fd20::2]:8080,state=draining,local,tier=1,target=pod shop/web-7f9").unwrap();
        assert_eq!((six.address.as_str(), six.port, six.state()), ("fd20::2", 8080, endpoint::State::Draining));
        assert!(six.local && six.tier == 1 && six.target == "pod shop/web-7f9");
        let limited = endpoint("10.1.1.2:1,weight=0,max-connections=9,drain=30s,drain-then=RESET").unwrap();
        assert_eq!((limited.weight, limited.max_connections), (Some(0), 9));
        let drain = limited.drain.unwrap();
        assert_eq!((drain.timeout.as_ref().unwrap().seconds, drain.on_expiry()), (30, v1::drain::OnExpiry::Reset));
    }

    #[test]
    fn an_endpoint_of_a_range_has_no_port() {
        for (word, address) in [("10.1.1.2", "10.1.1.2"), ("fd20::2", "fd20::2"), ("[fd20::2],weight=2", "fd20::2")] {
            let endpoint = endpoint(word).unwrap();
            assert_eq!((endpoint.address.as_str(), endpoint.port), (address, 0), "{word}");
        }
    }

    #[test]
    fn what_is_wrong_with_an_endpoint_is_said() {
        for (word, said) in [
            ("10.1.1.2:8080,wieght=4", "did you mean weight?"),
            ("10.1.1.2:8080,weight=many", "is no number"),
            ("10.1.1.2:8080,state=UP", "READY, DRAINING or NOT_READY"),
            ("10.1.1.2:99999", "\"99999\" is no port"),
            (":8080", "write ADDRESS:PORT"),
            ("[fd20::2", "in brackets"),
            ("[fd20::2]8080", "in brackets"),
        ] {
            let error = endpoint(word).unwrap_err();
            assert!(error.contains(said), "{word}: {error}");
        }
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("5m").unwrap(), Duration::from_secs(300));
        assert_eq!(duration("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(duration("0").unwrap(), Duration::ZERO);
        for word in ["30", "s", "", "-1s", "1w", "99999999999999999999d"] {
            assert!(duration(word).is_err(), "{word}");
        }
    }

    #[test]
    fn names_in_either_case() {
        assert_eq!(algorithm("wrr"), Ok(scheduler::Algorithm::Wrr));
        assert_eq!(algorithm("DEFAULT"), Ok(scheduler::Algorithm::Unspecified));
        assert!(algorithm("WLCC").unwrap_err().contains("did you mean WLC?"));
        assert_eq!(engine("ipvs"), Ok(v1::Engine::Ipvs));
        assert_eq!(engine("auto"), Ok(v1::Engine::Unspecified));
        assert!(engine("ENGINE_UNSPECIFIED").is_err());
    }

    #[test]
    fn a_destination_has_a_port() {
        assert_eq!(destination("[fd96::10]:80"), Ok(("fd96::10".to_owned(), 80)));
        assert!(destination("10.96.0.10").is_err());
        assert!(destination("10.96.0.10:0").is_err());
    }
}
