//! What is measured: something that programs services into a node's kernel.

use anyhow::Result;

use super::gauge::{Cost, Memory};
use super::scene::Scene;

/// A change of one thing among many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// One endpoint more.
    Endpoint,
    /// One service more, with one endpoint.
    Service,
}

/// Measurements of one kind, in milliseconds or microseconds.
#[derive(Clone, Debug, Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// From the values, in any order.
    #[must_use]
    pub fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// Not more than this in half of the cases.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Not more than this in 99 of 100 cases; with fewer values, the worst.
    #[must_use]
    pub fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    fn quantile(&self, share: f64) -> f64 {
        // The nearest rank; an index of some thousands is exact in f64.
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }
}

/// What a subject itself costs.
#[derive(Clone, Debug)]
pub struct Figures {
    /// From an empty kernel to all services.
    pub load: Cost,
    /// One endpoint more, from the answer or the call to the kernel, in ms.
    pub endpoint: Sample,
    /// One service more.
    pub service: Sample,
    /// A new process over a kernel that is right.
    pub restart: Cost,
    /// Of the process, after the changes.
    pub memory: Memory,
}

/// One of them.
pub trait Subject {
    /// For the table.
    fn name(&self) -> String;

    /// Where it runs.
    fn scene(&self) -> &Scene;

    /// All services, into an empty kernel.
    ///
    /// # Errors
    /// When it does not get there.
    fn load(&mut self) -> Result<Cost>;

    /// One change after the other; how long each took until it was in force, in milliseconds.
    ///
    /// # Errors
    /// When one does not get there.
    fn change(&mut self, what: What) -> Result<Sample>;

    /// What it holds now.
    ///
    /// # Errors
    /// When the process is gone.
    fn memory(&self) -> Result<Memory>;

    /// Stops the process and starts another.
    ///
    /// # Errors
    /// When it does not come back.
    fn restart(&mut self) -> Result<Cost>;

    /// Stops it, and leaves what it put into the kernel; what lives in its process keeps running.
    ///
    /// # Errors
    /// When it does not stop.
    fn stop(&mut self) -> Result<()>;
}
