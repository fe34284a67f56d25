//! Where things are by default: the system's places for root, the user's own (XDG) for everybody else.

use std::env;
use std::path::PathBuf;

/// The configuration file that is read if it is there and none is named.
pub const SYSTEM_FILE: &str = "/etc/vipd/vipd.toml";

/// The socket of a vipd that root runs.
pub const SYSTEM_SOCKET: &str = "/run/vipd/vipd.sock";
/// Its store.
pub const SYSTEM_STATE_DIR: &str = "/var/lib/vipd";

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// An absolute directory from the environment; the XDG rules say to ignore a relative one.
fn directory(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The unix socket.
#[must_use]
pub fn default_socket() -> PathBuf {
    if is_root() {
        return PathBuf::from(SYSTEM_SOCKET);
    }
    directory("XDG_RUNTIME_DIR").map_or_else(|| default_state_dir().join("vipd.sock"), |dir| dir.join("vipd/vipd.sock"))
}

/// The store's directory.
#[must_use]
pub fn default_state_dir() -> PathBuf {
    if is_root() {
        return PathBuf::from(SYSTEM_STATE_DIR);
    }
    let home = || directory("HOME").map(|home| home.join(".local/state"));
    let fallback = || PathBuf::from(format!("/tmp/vipd-{}", nix::unistd::geteuid()));
    directory("XDG_STATE_HOME").or_else(home).map_or_else(fallback, |dir| dir.join("vipd"))
}
