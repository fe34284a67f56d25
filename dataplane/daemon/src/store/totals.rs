//! What was counted, over restarts: a small file beside the store, written now and then and when the daemon stops.
//!
//! It is no declared state: if it is lost or damaged, counting begins anew, and `since` says so. Counts that the kernel
//! keeps by itself are not in it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vipd_engine::{Counters, ServiceCounters};
use vipd_model::{EndpointKey, Millis, ServiceKey};

use super::lock::boot_id;

const FILE: &str = "totals.json";

/// Counts to be kept, and since when they count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// By service.
    pub services: Vec<ServiceCounters>,
    /// Counters have not gone back since.
    pub since: Millis,
    /// Nothing was counted after it was written: the daemon stopped.
    pub whole: bool,
}

#[derive(Serialize, Deserialize)]
struct Written {
    since: u64,
    whole: bool,
    /// With another boot the kernel's counts began anew.
    boot: String,
    services: Vec<Service>,
}

/// Counts in the order of [`numbers`].
type Numbers = [Option<u64>; 6];

#[derive(Serialize, Deserialize)]
struct Service {
    owner: String,
    name: String,
    total: Numbers,
    endpoints: BTreeMap<String, Numbers>,
}

/// Without what is active: nothing outlives the daemon that is not counted by somebody else.
fn numbers(counters: &Counters) -> Numbers {
    let Counters { connections, packets_in, packets_out, bytes_in, bytes_out, refused, active: _ } = *counters;
    [connections, packets_in, packets_out, bytes_in, bytes_out, refused]
}

fn counters(numbers: Numbers) -> Counters {
    let [connections, packets_in, packets_out, bytes_in, bytes_out, refused] = numbers;
    Counters { connections, packets_in, packets_out, bytes_in, bytes_out, refused, active: None }
}

fn socket(key: &EndpointKey) -> SocketAddr {
    SocketAddr::new(key.address, key.port)
}

fn file(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Writes the counts, in place of those that were there.
pub(super) fn save(directory: &Path, kept: &Kept) -> io::Result<()> {
    let service = |one: &ServiceCounters| Service {
        owner: one.key.owner.to_string(),
        name: one.key.name.to_string(),
        total: numbers(&one.total),
        endpoints: one.endpoints.iter().map(|(key, counted)| (socket(key).to_string(), numbers(counted))).collect(),
    };
    let written = Written {
        since: kept.since.0,
        whole: kept.whole,
        boot: boot_id(),
        services: kept.services.iter().map(service).collect(),
    };
    let unfinished = directory.join(format!("{FILE}.new"));
    fs::write(&unfinished, serde_json::to_vec(&written)?)?;
    fs::rename(unfinished, file(directory))
}

/// What was counted before this start, which is at `now`. Absent or damaged: nothing was.
#[must_use]
pub fn load(directory: &Path, now: Millis) -> Kept {
    let nothing = Kept { services: Vec::new(), since: now, whole: false };
    let Ok(bytes) = fs::read(file(directory)) else { return nothing };
    let Ok(written) = serde_json::from_slice::<Written>(&bytes) else {
        tracing::warn!("{} cannot be read; counting begins anew", file(directory).display());
        return nothing;
    };
    // After a kill some counts are missing, after another boot those of the kernel: they may have gone back.
    let unbroken = written.whole && written.boot == boot_id() && !written.boot.is_empty();
    let service = |one: Service| {
        let endpoint = |(key, counted): (String, Numbers)| {
            let at: SocketAddr = key.parse().ok()?;
            Some((EndpointKey { address: at.ip(), port: at.port() }, counters(counted)))
        };
        Some(ServiceCounters {
            key: ServiceKey::new(&one.owner, &one.name).ok()?,
            total: counters(one.total),
            endpoints: one.endpoints.into_iter().filter_map(endpoint).collect(),
        })
    };
    Kept {
        services: written.services.into_iter().filter_map(service).collect(),
        since: if unbroken { Millis(written.since) } else { now },
        whole: unbroken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(whole: bool) -> Kept {
        let total = Counters { connections: Some(7), bytes_in: Some(9), active: Some(1), ..Counters::default() };
        let ended = total.ended();
        let endpoints = ["[fd00::1]:80", "10.1.0.1:0"].map(|at| {
            let at: SocketAddr = at.parse().unwrap();
            (EndpointKey { address: at.ip(), port: at.port() }, ended)
        });
        let mut endpoints = endpoints.to_vec();
        endpoints.sort_by_key(|(key, _)| key.to_string());
        let key = ServiceKey::new("ops", "shop/web:http").unwrap();
        Kept { services: vec![ServiceCounters { key, total: ended, endpoints }], since: Millis(5), whole }
    }

    #[test]
    fn counts_outlive_a_stop_and_say_since_when_they_are_unbroken() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(load(directory.path(), Millis(9)).since, Millis(9), "nothing yet");
        save(directory.path(), &kept(true)).unwrap();
        let mut loaded = load(directory.path(), Millis(9));
        loaded.services[0].endpoints.sort_by_key(|(key, _)| key.to_string());
        assert_eq!(loaded, kept(true));
        save(directory.path(), &kept(false)).unwrap();
        let killed = load(directory.path(), Millis(9));
        assert_eq!((killed.services.len(), killed.since), (1, Millis(9)), "the last counts before a kill are missing");
        fs::write(file(directory.path()), "{").unwrap();
        assert_eq!(load(directory.path(), Millis(9)).services.len(), 0);
    }
}
