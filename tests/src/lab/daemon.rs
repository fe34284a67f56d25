//! The real `vipd`, as a process on a host of the lab: started, signalled, killed and started again.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vipd_proto::v1::GetInfoResponse;

use super::{Host, Lab};
use crate::api::Api;

/// How long a start may take before the test gives up. Generous: it is no benchmark, and machines get busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where the program under test is: `VIPD_BIN`, or beside the test binary, where cargo puts it.
///
/// # Errors
/// When it was not built.
pub fn vipd_binary() -> Result<PathBuf> {
    let program = match env::var_os("VIPD_BIN") {
        Some(path) => PathBuf::from(path),
        None => {
            let here = env::current_exe()?;
            // Programs lie beside it, tests one folder further down.
            let folders = here.ancestors().skip(1).take(2).map(|folder| folder.join("vipd"));
            folders.into_iter().find(|path| path.is_file()).context("vipd is not built: run `cargo build -p vipd`")?
        }
    };
    ensure!(program.is_file(), "{} is missing: run `cargo build -p vipd` first, or set VIPD_BIN", program.display());
    Ok(program)
}

/// Takes from a command the variables that tests are told by: `VIPD_…` is configuration to vipd, and what it does not
/// know there is an error.
pub fn without_our_variables(command: &mut Command) {
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("VIPD_")) {
        command.env_remove(name);
    }
}

/// A running `vipd`. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// Starts `vipd --engine ENGINE` on the lab's node with its socket and state in the lab's directory, and waits
    /// until it answers. State of an earlier daemon of the same lab is found again.
    ///
    /// # Errors
    /// When the program is missing, ends, or does not answer in time; its log is in the message.
    pub fn start(lab: &Lab, engine: &str, arguments: &[&str]) -> Result<Self> {
        let mut daemon = Self::launch(&lab.node, lab.dir(), Command::new(vipd_binary()?), engine, arguments)?;
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    /// The same, run by another program that becomes it or stands beside it: `["strace", "-D", …]`.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_under(lab: &Lab, by: &[&str], engine: &str, arguments: &[&str]) -> Result<Self> {
        let (program, words) = by.split_first().context("by nothing")?;
        let mut command = Command::new(program);
        command.args(words).arg(vipd_binary()?);
        let mut daemon = Self::launch(&lab.node, lab.dir(), command, engine, arguments)?;
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    /// The same with at most so many file descriptors.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_with_descriptors(lab: &Lab, engine: &str, most: u32) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -n {most} && exec \"$0\" \"$@\"")]).arg(vipd_binary()?);
        let mut daemon = Self::launch(&lab.node, lab.dir(), shell, engine, &[])?;
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    /// Runs `command` with the arguments of a daemon of this lab, and does not wait.
    fn launch(on: &Host, dir: &Path, mut command: Command, engine: &str, arguments: &[&str]) -> Result<Self> {
        let (socket, log) = (dir.join("vipd.sock"), dir.join("vipd.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        command
            .arg("--socket")
            .arg(&socket)
            .arg("--state-dir")
            .arg(dir.join("state"))
            .args(["--engine", engine])
            .args(arguments)
            .env("HOME", dir)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        without_our_variables(&mut command);
        let child = on.spawn(&mut command)?;
        Ok(Self { child, socket, log })
    }

    /// Waits until it answers `GetInfo` over its socket, and says that what it had stored is in force.
    ///
    /// # Errors
    /// When it ends or does not answer in time; its log is in the message.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("vipd ended while starting ({status}):\n{}", self.log_tail());
            }
            let in_force = |info: &GetInfoResponse| info.programmed_revision >= info.revision;
            if self.socket.exists() && self.api().and_then(|api| api.info()).is_ok_and(|info| in_force(&info)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("vipd does not answer on {}:\n{}", self.socket.display(), self.log_tail());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// A caller of its API.
    ///
    /// # Errors
    /// When the socket cannot be reached.
    pub fn api(&self) -> Result<Api> {
        Api::connect(&self.socket)
    }

    /// The unix socket it serves.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process id, as this sandbox sees it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("{signal} to vipd"))
    }

    /// True while the process lives.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Processor time used so far, from `/proc/PID/stat` (fields 14 and 15, in hundredths of a second).
    ///
    /// # Errors
    /// When there is no such process, or no `/proc` that shows it.
    pub fn processor_time(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, after_name) = stat.rsplit_once(')').context("unexpected /proc/PID/stat")?;
        let ticks = after_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Duration::from_millis(ticks * 10))
    }

    /// `kill -9`, at whatever it is doing.
    ///
    /// # Errors
    /// When the process is gone already.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("vipd did not end on SIGTERM:\n{}", self.log_tail())
    }

    /// `vipd cleanup` on the lab's node, once it has ended.
    ///
    /// # Errors
    /// What it says, when it fails.
    pub fn cleanup(&self, lab: &Lab) -> Result<()> {
        let mut command = Command::new(vipd_binary()?);
        command.arg("cleanup").arg("--state-dir").arg(lab.dir().join("state"));
        without_our_variables(&mut command);
        let output = lab.node.enter(|| command.output())??;
        ensure!(output.status.success(), "vipd cleanup: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// The end of what it logged.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
