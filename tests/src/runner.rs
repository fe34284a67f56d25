//! Runs the trials of a lab target: filtered by name, some at a time, each in a thread of its own.
//!
//! The lab's targets cannot use Rust's own harness (it starts threads before the sandbox can be entered). The last line
//! is written as that harness writes it, so that what counts results need not care.

use std::collections::VecDeque;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};

/// How many trials run at once; unset: as many as there are processors.
const JOBS: &str = "VIPD_LAB_JOBS";

/// One thing to try.
pub struct Trial {
    /// Printed, and matched by the command line's filters.
    pub name: String,
    /// Does it.
    pub run: Box<dyn Fn() -> Result<Verdict> + Send + Sync>,
}

impl Trial {
    /// A trial that passes unless it fails.
    pub fn new(name: &str, run: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self { name: name.to_owned(), run: Box::new(move || run().map(|()| Verdict::Passed)) }
    }
}

/// How a trial that did not fail ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it must be.
    Passed,
    /// The engine says that it lacks what the trial is about: which Features.
    Excused(String),
}

/// What became of one trial.
#[derive(Debug)]
pub struct Finished {
    /// The trial's name.
    pub name: String,
    /// Its end.
    pub result: Result<Verdict>,
    /// How long it took.
    pub took: Duration,
}

/// What the command line asks for. Flags of Rust's own harness are accepted and mean nothing.
#[derive(Debug, Default)]
pub struct Selection {
    filters: Vec<String>,
    list: bool,
}

impl Selection {
    /// From the program's arguments.
    #[must_use]
    pub fn from_args() -> Self {
        Self::from_words(env::args().skip(1))
    }

    /// From what is left of the arguments.
    pub fn from_words(words: impl IntoIterator<Item = String>) -> Self {
        let (flags, filters): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| word.starts_with('-'));
        Self { filters, list: flags.iter().any(|flag| flag == "--list") }
    }

    fn takes(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }
}

/// Runs what is selected, printing each end as it comes.
#[must_use]
pub fn run(trials: Vec<Trial>, selection: &Selection) -> Vec<Finished> {
    let jobs = env::var(JOBS).ok().and_then(|text| text.parse().ok());
    let jobs = jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).max(1);
    run_some_at_a_time(jobs, trials, selection)
}

/// The same for trials that would disturb each other.
#[must_use]
pub fn run_in_turn(trials: Vec<Trial>, selection: &Selection) -> Vec<Finished> {
    run_some_at_a_time(1, trials, selection)
}

fn run_some_at_a_time(jobs: usize, trials: Vec<Trial>, selection: &Selection) -> Vec<Finished> {
    let chosen: VecDeque<Trial> = trials.into_iter().filter(|trial| selection.takes(&trial.name)).collect();
    if selection.list {
        for trial in &chosen {
            println!("{}: test", trial.name);
        }
        return Vec::new();
    }
    let (waiting, finished) = (Mutex::new(chosen), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(trial) = next else { return };
                    let end = attempt(&trial);
                    report(&end);
                    finished.lock().unwrap_or_else(PoisonError::into_inner).push(end);
                }
            });
        }
    });
    finished.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn attempt(trial: &Trial) -> Finished {
    let begin = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| (trial.run)())).unwrap_or_else(|panic| Err(from_panic(&*panic)));
    Finished { name: trial.name.clone(), result, took: begin.elapsed() }
}

fn from_panic(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    anyhow!("panicked: {}", text.unwrap_or("(no message)"))
}

fn report(end: &Finished) {
    let seconds = end.took.as_secs_f64();
    match &end.result {
        Ok(Verdict::Passed) => println!("test {} ... ok ({seconds:.2} s)", end.name),
        Ok(Verdict::Excused(features)) => println!("test {} ... excused: no {features}", end.name),
        Err(error) => println!("test {} ... FAILED ({seconds:.2} s)\n    {error:#}", end.name),
    }
}

/// The last line, and the exit code. Nothing selected and nothing run is no failure, as with Rust's harness.
#[must_use]
pub fn conclude(finished: &[Finished]) -> ExitCode {
    let failed: Vec<&str> = finished.iter().filter(|end| end.result.is_err()).map(|end| end.name.as_str()).collect();
    for name in &failed {
        println!("FAILED {name}");
    }
    let excused = finished.iter().filter(|end| matches!(end.result, Ok(Verdict::Excused(_)))).count();
    let passed = finished.len() - failed.len() - excused;
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {} failed; {excused} excused", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
