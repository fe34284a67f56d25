//! The proxy beside HAProxy (TCP mode) and nginx stream: same run, same machine, same back ends, same clients.
//!
//! Each is a process of its own with two workers; back ends and clients are this process. Rounds alternate between the
//! proxies, and the median round is printed. Processor time of the proxy for each unit of work is printed beside the
//! rates, because on a machine where everybody shares the cores it is the steadier figure. A peer that is not installed
//! is left out, and said to be.
//!
//! `cargo bench -p vipd-userspace --bench proxy [-- seconds rounds load]`

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench stops where it cannot go on")]

mod load;
mod peers;

use std::time::Duration;

use load::{Load, Measured};
use peers::{Peer, Running};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [role, place] = &arguments[..]
        && role == "serve"
    {
        return peers::serve(place);
    }
    let number = |index: usize, default| arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (seconds, rounds) = (number(0, 3), number(1, 3));
    let only = arguments.get(2).map_or("", String::as_str);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let peers: Vec<Peer> = Peer::ALL.into_iter().filter(|peer| peer.is_installed()).collect();
    println!("{seconds} s a round, median of {rounds}; {} cores\n", std::thread::available_parallelism().unwrap());
    println!("{:<34} {:<16} {:>12} {:>10} {:>10} {:>14}", "load", "proxy", "rate", "p50", "p99", "CPU");
    for load in Load::ALL.into_iter().filter(|load| load.name().contains(only)) {
        let mut measured: Vec<(Peer, Vec<Measured>)> = Vec::new();
        for _ in 0..rounds {
            for peer in peers.iter().copied().filter(|peer| peer.carries(load)) {
                let place = runtime.block_on(load.start_backends());
                let running = Running::start(peer, load, &place);
                let one = runtime.block_on(load.run(running.address, Duration::from_secs(seconds), running.id()));
                match measured.iter_mut().find(|(other, _)| *other == peer) {
                    Some((_, rounds)) => rounds.push(one),
                    None => measured.push((peer, vec![one])),
                }
            }
        }
        for (peer, mut rounds) in measured {
            rounds.sort_by(|a, b| a.rate.total_cmp(&b.rate));
            println!("{:<34} {:<16} {}", load.name(), peer.name(), load.show(&rounds[rounds.len() / 2]));
        }
        println!();
    }
}
