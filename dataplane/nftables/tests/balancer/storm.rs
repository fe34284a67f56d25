//! Connections while their service's endpoints are swapped without pause: none may fail.
//!
//! `VIPD_NFT_STORM` swaps (500 by default). The prototype's bar is a million connections over 50,000 swaps.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use vipd_model::Algorithm;
use vipd_netlink::testing::in_namespace;
use vipd_nftables::Nftables;

use crate::{lab::*, service::*};

fn swaps() -> usize {
    env::var("VIPD_NFT_STORM").map_or(500, |text| text.parse().unwrap())
}

/// A SYN that was dropped is sent again after a second.
const RESENT: Duration = Duration::from_millis(990);

/// Two of four endpoints, others each time; and now and then another number of them.
fn endpoints(n: usize) -> Vec<&'static str> {
    const ALL: [&str; 4] = ["10.2.1.1", "10.2.1.2", "10.2.1.3", "10.2.1.4"];
    (0..=n % 3).map(|k| ALL[(n + k) % 4]).collect()
}

/// Clients connect all along; a SYN that falls between two transactions is sent again by its client after a second.
fn storm(service: impl Fn() -> Made + Sync) {
    in_namespace(|| {
        let lab = Lab::new();
        let mut runner = started(Nftables::open().unwrap(), Lab::node());
        put(&mut runner, service().to(&endpoints(0)));
        let done = Arc::new(AtomicBool::new(false));
        let [served, resent] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let (stop, count, late) = (Arc::clone(&done), Arc::clone(&served), Arc::clone(&resent));
        let failures = lab.client.start(move || {
            let one = || {
                let mut failed = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    match connect_patiently((ip("10.96.0.1"), 80).into()) {
                        Ok(_) => {
                            count.fetch_add(1, Ordering::Relaxed);
                            late.fetch_add(usize::from(start.elapsed() > RESENT), Ordering::Relaxed);
                        }
                        Err(error) => failed.push(error.to_string()),
                    }
                }
                failed
            };
            std::thread::scope(|scope| {
                let clients: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
                clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
            })
        });
        for n in 1..=swaps() {
            put(&mut runner, service().to(&endpoints(n)));
        }
        done.store(true, Ordering::Relaxed);
        let failures = failures.recv().unwrap();
        let served = served.load(Ordering::Relaxed);
        let resent = resent.load(Ordering::Relaxed);
        println!("{served} connections over {} swaps, {resent} of them at the second try", swaps());
        assert!(failures.is_empty(), "{} of {served} failed: {:?}", failures.len(), &failures[..failures.len().min(5)]);
        assert!(served > 50, "{served}");
        wanted_is_in_kernel(&mut runner);
    });
}

#[test]
fn no_connection_fails_while_endpoints_are_swapped() {
    storm(|| tcp("web").vip("10.96.0.1", 80));
}

#[test]
fn no_connection_fails_while_endpoints_of_remembered_clients_are_swapped() {
    storm(|| tcp("web").affinity(60_000, 32).vip("10.96.0.1", 80));
}

#[test]
fn no_connection_fails_while_endpoints_in_turn_are_swapped() {
    storm(|| tcp("web").by(Algorithm::Rr).vip("10.96.0.1", 80));
}
