//! The store's own figures: commits, and a start. `cargo bench -p vipd --bench store [-- services]`.
//!
//! Nothing is asserted: a machine's figures are its own. docs/decisions/0001-store.md has some, beside those of the
//! libraries that were not chosen.

use std::env;
use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

use vipd::store::encode::restore;
use vipd::store::record::{Record, RecordKey, StoredDefinition, StoredEndpoints, StoredScheduler, Table};
use vipd::store::{Batch, Store};
use vipd_proto::v1;

const ENDPOINTS: u64 = 10;

fn key(table: Table, number: u64) -> RecordKey {
    RecordKey::service(table, "k8s", &format!("namespace-{}/service-{number}:http", number % 200))
}

fn endpoints(number: u64, revision: u64) -> Record {
    let endpoint = |i| v1::Endpoint {
        address: format!("10.{}.{}.{}", number >> 8 & 0xff, number & 0xff, i + 1),
        port: 8080,
        weight: Some(1),
        state: v1::endpoint::State::Ready.into(),
        target: format!("pod namespace-{}/service-{number}-{i:05x}", number % 200),
        ..Default::default()
    };
    Record::Endpoints(StoredEndpoints {
        endpoints: (0..ENDPOINTS).map(endpoint).collect(),
        revision,
        ..Default::default()
    })
}

fn definition(number: u64) -> Record {
    let frontend = v1::Frontend {
        at: Some(v1::frontend::At::Address(format!(
            "10.{}.{}.{}",
            96 + (number >> 16),
            number >> 8 & 0xff,
            number & 0xff
        ))),
        port: 80,
        ..Default::default()
    };
    let service = v1::Service {
        frontends: vec![frontend],
        group: format!("namespace-{}/service-{number}", number % 200),
        ..Default::default()
    };
    Record::Definition(StoredDefinition { service: Some(service), revision: 1, created: 1 })
}

fn memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("unknown").trim().to_owned()
}

/// Batches of so many services' endpoints, for so long.
fn commits(store: &mut Store, services: u64, size: u64, time: Duration) -> Result<(), Box<dyn Error>> {
    let mut taken = Vec::new();
    let (mut next, started) = (1u64, Instant::now());
    while started.elapsed() < time {
        let mut batch = Batch::new();
        for _ in 0..size {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (next >> 33) % services;
            batch.put(key(Table::Endpoints, number), &endpoints(number, next >> 40));
        }
        batch.set_revision(store.revision() + 1);
        let before = Instant::now();
        store.commit(&batch)?;
        taken.push(before.elapsed());
    }
    taken.sort();
    let at = |share: usize| taken[(taken.len() - 1) * share / 1000].as_micros();
    let total: Duration = taken.iter().sum();
    println!(
        "commit of {size:2}: p50 {} us, p99 {} us, p99.9 {} us, most {} us; {:.0} records/s",
        at(500),
        at(990),
        at(999),
        at(1000),
        taken.len() as f64 * size as f64 / total.as_secs_f64()
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let services = env::args().find_map(|argument| argument.parse().ok()).unwrap_or(50_000);
    let directory = tempfile::tempdir()?;
    let mut store = Store::open(directory.path())?.store;
    for first in (0..services).step_by(500) {
        let mut batch = Batch::new();
        for number in first..services.min(first + 500) {
            batch.put(key(Table::Definition, number), &definition(number));
            batch.put(key(Table::Endpoints, number), &endpoints(number, 1));
            let scheduler = StoredScheduler { scheduler: Some(v1::Scheduler::default()), revision: 1 };
            batch.put(key(Table::Scheduler, number), &Record::Scheduler(scheduler));
        }
        store.commit(&batch)?;
    }
    println!("{services} services with {ENDPOINTS} endpoints each");
    for size in [1, 16] {
        commits(&mut store, services, size, Duration::from_secs(4))?;
    }
    let journal = fs::metadata(directory.path().join("store.db-wal"))?.len();
    println!("journal after writing without a pause: {} KiB", journal / 1024);
    // Ended as by a kill, with what the last commits left in the journal.
    drop(store);
    for what in ["after a kill", "after a clean stop"] {
        let before = Instant::now();
        let opened = Store::open(directory.path())?;
        let open = before.elapsed();
        let restored = restore(opened.store.revision(), &opened.records);
        println!(
            "start {what}: file and checksums {open:.1?}, with {} services as values {:.1?}; {} of memory",
            restored.stored.services.len(),
            before.elapsed(),
            memory()
        );
        opened.store.close()?;
    }
    println!("on disk: {} KiB", fs::metadata(directory.path().join("store.db"))?.len() / 1024);
    Ok(())
}
