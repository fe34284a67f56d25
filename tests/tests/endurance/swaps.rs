//! Connections without end while the endpoints of their service are swapped without end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use vipd_tests::conformance::Subject;
use vipd_tests::lab::Lab;
use vipd_tests::traffic::{Client, Outcome, Proto};

use crate::{front, number, put, servers, spec, verify};

/// Clients at a time.
const CLIENTS: u64 = 4;

pub(crate) fn run(subject: &Subject) -> Result<()> {
    let (connections, swaps) = (number("VIPD_CONNECTIONS", 10_000), number("VIPD_SWAPS", 500));
    let lab = Lab::new()?;
    let _servers = servers(&lab, Proto::Tcp)?;
    let daemon = subject.variant.start(&lab)?;
    let api = daemon.api()?;
    put(&api, &spec(&lab, Proto::Tcp, &[0, 1]))?;
    let (made, failed, begin) = (AtomicU64::new(0), AtomicU64::new(0), Instant::now());
    let first_failure = std::sync::OnceLock::new();
    let (made, failed, first_failure) = (&made, &failed, &first_failure);

    let swapped = thread::scope(|scope| -> Result<u64> {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let client = Client::new(&lab.client, Proto::Tcp).abortive();
                scope.spawn(move || -> Result<()> {
                    while made.fetch_add(1, Ordering::Relaxed) < connections {
                        match client.ask(front())? {
                            Outcome::Answered { .. } => {}
                            other => {
                                failed.fetch_add(1, Ordering::Relaxed);
                                let _ = first_failure.set(other);
                            }
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        // Both go on until both have had enough.
        let mut swapped = 0;
        while swapped < swaps || made.load(Ordering::Relaxed) < connections {
            let pairs = [[1, 2], [2, 0], [0, 1]];
            let spec = spec(&lab, Proto::Tcp, &pairs[usize::try_from(swapped % 3)?]);
            api.set_endpoints(crate::NAME, spec.endpoints).map_err(|status| anyhow!("{status}"))?;
            swapped += 1;
        }
        clients.into_iter().try_for_each(|client| client.join().map_err(|_| anyhow!("a client panicked"))?)?;
        Ok(swapped)
    })?;
    let (failed, seconds) = (failed.load(Ordering::Relaxed), begin.elapsed().as_secs());
    println!("    {connections} connections, {swapped} swaps in {seconds} s: {failed} failed");
    ensure!(failed == 0, "{failed} of {connections} connections failed, first: {:?}", first_failure.get());
    verify(&api)
}
