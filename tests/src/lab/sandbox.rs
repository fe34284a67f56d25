//! A process of its own for everything that the lab makes: new network, mount and process-id namespaces, and a user
//! namespace when we are not root.
//!
//! The test binary runs itself again inside. So nothing of the lab can leak: when the outer process dies, by whatever
//! signal, the inner one (process 1 of its pid namespace) is killed by the kernel, every child with it, and with the
//! last process go the network namespaces and the tmpfs that holds sockets and state. Nothing here touches the host.

use std::env;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{getegid, geteuid};

/// Set in the inner process.
const INSIDE: &str = "VIPD_LAB_INSIDE";
/// Asks for a user namespace also when we are root: how the rootless path is tested on a root-only machine.
const ROOTLESS: &str = "VIPD_LAB_ROOTLESS";

/// Where `ip netns` looks for names; on our own tmpfs inside the sandbox.
pub(crate) const NETNS_DIR: &str = "/run/netns";
/// Where labs keep sockets and state; gone with the sandbox.
pub(crate) const LABS_DIR: &str = "/run/labs";

/// Why the lab cannot run here.
#[derive(Debug)]
pub struct Unavailable(pub String);

/// Runs `inside` in the sandbox and returns its exit code.
///
/// Must be called first thing in `main`, before any thread exists: a process with threads cannot enter a user
/// namespace.
///
/// # Errors
/// [`Unavailable`] when this machine allows no such namespaces; nothing has run then.
pub fn run(inside: impl FnOnce() -> Result<ExitCode>) -> Result<ExitCode, Unavailable> {
    if env::var_os(INSIDE).is_some() {
        let outcome = furnish().and_then(|()| inside());
        return Ok(outcome.unwrap_or_else(|error| {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }));
    }
    separate().map_err(|error| Unavailable(format!("{error:#}")))?;
    let status = env::current_exe()
        .and_then(|program| Command::new(program).args(env::args_os().skip(1)).env(INSIDE, "1").status())
        .map_err(|error| Unavailable(format!("cannot run myself in the sandbox: {error}")))?;
    if let Some(signal) = status.signal() {
        eprintln!("lab: the sandbox was killed by signal {signal}");
    }
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Leaves the host's namespaces. The pid namespace holds for the children only, hence the second process.
fn separate() -> Result<()> {
    let spaces = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
    if env::var_os(ROOTLESS).is_none() && geteuid().is_root() && unshare(spaces).is_ok() {
        return Ok(());
    }
    let (uid, gid) = (geteuid(), getegid());
    unshare(spaces | CloneFlags::CLONE_NEWUSER)
        .context("no user namespaces for us (kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor?)")?;
    fs::write("/proc/self/setgroups", "deny").context("/proc/self/setgroups")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1")).context("/proc/self/uid_map")?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1")).context("/proc/self/gid_map")
}

/// The inner process: dies with its parent, has its own `/run` and `/var/lib` (vipd's defaults) and, where allowed, its own `/proc`.
fn furnish() -> Result<()> {
    set_pdeathsig(Signal::SIGKILL).context("parent-death signal")?;
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).context("making mounts private")?;
    for dir in ["/run", "/var/lib"] {
        let fresh = mount(Some("lab"), dir, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"));
        fresh.with_context(|| format!("tmpfs on {dir}"))?;
    }
    // Refused inside some containers (a masked /proc). Only what looks up process ids misses it.
    let _ = mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), nothing);
    for dir in [NETNS_DIR, LABS_DIR] {
        fs::create_dir_all(Path::new(dir)).with_context(|| format!("creating {dir}"))?;
    }
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("raising the file descriptor limit")
}

/// True inside the sandbox; every host asserts it, so that a test that forgot [`run`] cannot touch the host.
pub(crate) fn entered() -> io::Result<()> {
    env::var_os(INSIDE).map(|_| ()).ok_or_else(|| io::Error::other("call lab::sandbox::run first"))
}
