//! Processor time and memory, read from `/proc` (the sandbox's own: it lists nothing but what the bench started).

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// What something took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// By the clock.
    pub wall: Duration,
    /// Of the processors: the process and its children, those that ended and were waited for included.
    pub cpu: Duration,
}

/// What a process holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Now, in MiB (`VmRSS`).
    pub resident: f64,
    /// At most until now, in MiB (`VmHWM`).
    pub peak: f64,
}

/// One line of `/proc/PID/stat`: the parent, and hundredths of a second (own and waited-for children's).
fn stat(pid: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; fields 4, and 14 to 17, of proc_pid_stat(5) follow it.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Some((fields.get(1)?.parse().ok()?, ticks))
}

/// Processor time of a process and everything below it.
///
/// # Errors
/// When there is no such process.
pub fn cpu(root: u32) -> Result<Duration> {
    let mut ticks = stat(root).with_context(|| format!("process {root} is gone"))?.1;
    let all: BTreeMap<u32, (u32, u64)> = fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .collect();
    let mut above = vec![root];
    while let Some(parent) = above.pop() {
        for (pid, (_, own)) in all.iter().filter(|(_, (of, _))| *of == parent) {
            ticks += own;
            above.push(*pid);
        }
    }
    Ok(Duration::from_millis(ticks * 10))
}

/// Waits until a process has had nothing to do for a second and a half; its processor time then.
///
/// # Errors
/// When it ends.
pub fn when_quiet(root: u32) -> Result<Duration> {
    let (mut since, mut before) = (Instant::now(), cpu(root)?);
    while since.elapsed() < Duration::from_millis(1500) {
        thread::sleep(Duration::from_millis(100));
        let now = cpu(root)?;
        // What a garbage collector or a timer does now and then is no work.
        if now > before + Duration::from_millis(30) {
            (since, before) = (Instant::now(), now);
        }
    }
    cpu(root)
}

/// Memory of a process.
///
/// # Errors
/// When there is no such process.
pub fn memory(pid: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> Option<f64> {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
    };
    Ok(Memory { resident: field("VmRSS:").context("no VmRSS")?, peak: field("VmHWM:").context("no VmHWM")? })
}
