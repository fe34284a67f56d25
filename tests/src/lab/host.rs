//! One host: a network namespace with a name and addresses.
//!
//! A socket belongs for life to the namespace of the thread that created it, so being "on" a host is short: step in,
//! create the socket or start the process, step out. No thread per host is needed.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use super::Family;
use super::sandbox::{self, NETNS_DIR};

/// The network namespace of the calling thread.
const OWN_NETNS: &str = "/proc/thread-self/ns/net";

/// A host of the lab. Dropping it gives its namespace back to the kernel.
#[derive(Debug)]
pub struct Host {
    name: String,
    netns: File,
    mounted: PathBuf,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

impl Host {
    /// Makes a namespace that `ip -n NAME` finds, with nothing in it but loopback, up.
    ///
    /// # Errors
    /// When the kernel refuses the namespace or its name.
    pub(crate) fn new(name: String, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<Self> {
        sandbox::entered()?;
        let mounted = Path::new(NETNS_DIR).join(&name);
        File::create(&mounted)?;
        let make = || -> Result<File> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let nothing = None::<&str>;
            mount(Some(OWN_NETNS), &mounted, nothing, MsFlags::MS_BIND, nothing)?;
            Ok(File::open(OWN_NETNS)?)
        };
        // In a thread of its own, which ends there: the caller never leaves its namespace.
        let netns = thread::scope(|scope| scope.spawn(make).join())
            .map_err(|_| anyhow::anyhow!("thread died"))?
            .with_context(|| format!("network namespace {name}"))?;
        let host = Self { name, netns, mounted, v4, v6 };
        // Duplicate address detection would keep the links mute for a second or two.
        host.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        Ok(host)
    }

    /// Its name in `ip netns`, for people who look inside with `ip -n`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address by which the other hosts know it.
    #[must_use]
    pub fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }

    /// Runs `work` on this host, in the calling thread: sockets and processes made by it live here.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let home = Home(File::open(OWN_NETNS).context("own namespace")?);
        setns(&self.netns, CloneFlags::CLONE_NEWNET).with_context(|| format!("entering {}", self.name))?;
        let result = work();
        drop(home);
        Ok(result)
    }

    /// Starts a process here.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn spawn(&self, command: &mut Command) -> Result<Child> {
        let program = command.get_program().to_owned();
        self.enter(|| command.spawn())?.with_context(|| format!("running {program:?} on {}", self.name))
    }

    /// Runs a program here to its end and returns what it printed.
    ///
    /// # Errors
    /// When it cannot be run or exits with an error; its output is in the message.
    pub fn run(&self, line: &str) -> Result<String> {
        let mut words = line.split_whitespace();
        let program = words.next().context("an empty command line")?;
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null());
        let output = self.enter(|| command.output())?.with_context(|| format!("running {line:?}"))?;
        Self::printed(&output, line)
    }

    /// Feeds lines to `ip -batch`: one process for a whole host.
    ///
    /// # Errors
    /// When a line is refused; `ip` names it.
    pub fn ip(&self, lines: &str) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.spawn(&mut command)?;
        child.stdin.take().context("ip has no stdin")?.write_all(lines.as_bytes())?;
        let output = child.wait_with_output()?;
        // "Command failed -:23" means line 23.
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        let number = complaint.trim_end().rsplit(':').next().and_then(|number| number.parse::<usize>().ok());
        let line = number.and_then(|number| lines.lines().nth(number.checked_sub(1)?)).unwrap_or(lines);
        Self::printed(&output, line).map(|_| ())
    }

    /// Writes a setting below `/proc/sys`, in this host's view: `host.sysctl("net/ipv4/ip_forward", "1")`.
    ///
    /// # Errors
    /// When there is no such setting or it may not be written.
    pub fn sysctl(&self, path: &str, value: &str) -> Result<()> {
        self.enter(|| fs::write(Path::new("/proc/sys").join(path), value))?
            .with_context(|| format!("{path} = {value} on {}", self.name))
    }

    /// Who answers ARP or neighbour discovery for `address` on this host's link: the link-layer address, or none.
    ///
    /// The kernel does the asking: the address is routed as if it were on the link, and one datagram is sent.
    ///
    /// # Errors
    /// When the question cannot be put.
    pub fn who_has(&self, address: IpAddr, device: &str) -> Result<Option<String>> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        self.ip(&format!("route replace {address}/{bits} dev {device}\nneigh flush to {address}"))?;
        let socket = self.enter(|| std::net::UdpSocket::bind(if bits == 32 { "0.0.0.0:0" } else { "[::]:0" }))??;
        let _ = socket.send_to(b"who has", (address, 9));
        for _ in 0..20 {
            thread::sleep(std::time::Duration::from_millis(50));
            let entry = self.run(&format!("ip neigh show to {address} dev {device}"))?;
            if let Some((_, rest)) = entry.split_once("lladdr ") {
                return Ok(rest.split_whitespace().next().map(str::to_owned));
            }
            if entry.contains("FAILED") {
                break;
            }
        }
        Ok(None)
    }

    fn printed(output: &Output, what: &str) -> Result<String> {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{what:?} failed ({}): {out}{err}", output.status);
        Ok(out.into_owned())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = umount2(&self.mounted, MntFlags::MNT_DETACH);
        let _ = fs::remove_file(&self.mounted);
    }
}

/// Brings the thread back, also when the work on the host panicked.
struct Home(File);

impl Drop for Home {
    fn drop(&mut self) {
        if setns(&self.0, CloneFlags::CLONE_NEWNET).is_err() {
            // A thread lost in a foreign namespace would run the following tests on the wrong host.
            std::process::abort();
        }
    }
}

/// Finds a program the way a shell does.
///
/// # Errors
/// When it is not installed.
pub fn installed(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    for dir in std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")]) {
        let candidate = dir.join(program);
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    bail!("{program} is not installed")
}
