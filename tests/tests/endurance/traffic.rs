//! Clients that never stop asking while something is done to vipd, and what became of each request.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use vipd_tests::lab::Host;
use vipd_tests::traffic::{Client, Flow, Outcome, Proto};

/// How often at most; two cores also run the servers and vipd.
const PAUSE: Duration = Duration::from_micros(300);

/// The clients.
#[derive(Default)]
pub(crate) struct Traffic {
    over: AtomicBool,
    served: AtomicU64,
    /// What became of those that were not answered.
    failures: Mutex<Vec<String>>,
}

/// Does `work` while `clients` clients of `host` ask, each request a connection of its own.
pub(crate) fn during<T>(
    host: &Host,
    to: (IpAddr, u16),
    clients: usize,
    work: impl FnOnce(&Traffic) -> Result<T>,
) -> Result<T> {
    let traffic = Traffic::default();
    thread::scope(|scope| {
        let asking: Vec<_> = (0..clients).map(|_| scope.spawn(|| traffic.ask(host, to))).collect();
        let done = work(&traffic);
        traffic.over.store(true, Ordering::Relaxed);
        for client in asking {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        done
    })
}

impl Traffic {
    fn ask(&self, host: &Host, to: (IpAddr, u16)) -> Result<()> {
        let client = Client::new(host, Proto::Tcp).abortive();
        while !self.over.load(Ordering::Relaxed) {
            match client.ask(to)? {
                Outcome::Answered { .. } => drop(self.served.fetch_add(1, Ordering::Relaxed)),
                other => self.note(&other),
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn note(&self, outcome: &Outcome) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(outcome.word().to_owned());
    }

    /// Requests that were answered so far.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Requests that were not.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// None failed, and there were some.
    pub(crate) fn was_served(&self) -> Result<()> {
        let failures = self.failures();
        let first = &failures[..failures.len().min(10)];
        ensure!(failures.is_empty(), "{} of {} requests failed: {first:?}", failures.len(), self.served());
        ensure!(self.served() > 0, "nobody was served: this run showed nothing");
        Ok(())
    }

    /// Waits until so many more were answered.
    pub(crate) fn wait_for(&self, more: u64) -> Result<()> {
        let (goal, begin) = (self.served() + more, Instant::now());
        while self.served() < goal {
            ensure!(begin.elapsed() < Duration::from_secs(20), "no {more} requests were served in 20 s");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// A connection that must live through everything.
pub(crate) struct Lasting {
    flow: Flow,
    by: String,
}

impl Lasting {
    pub(crate) fn open(host: &Host, to: (IpAddr, u16)) -> Result<Self> {
        let flow = Client::new(host, Proto::Tcp).open(to)?.map_err(|end| anyhow!("opening: {}", end.word()))?;
        let first = flow.ask();
        let by = first.by().ok_or_else(|| anyhow!("a fresh connection: {}", first.word()))?.to_owned();
        Ok(Self { flow, by })
    }

    /// It still leads where it led.
    pub(crate) fn holds(&self) -> Result<()> {
        let outcome = self.flow.ask();
        ensure!(outcome.by() == Some(self.by.as_str()), "an established connection to {}: {outcome:?}", self.by);
        Ok(())
    }
}
