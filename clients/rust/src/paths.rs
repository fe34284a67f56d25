//! Where vipd listens when nobody says otherwise. The daemon's own rule is `config/paths.rs` there, and a client may
//! not depend on the daemon; `tests/tests/peers.rs` holds the two together.

use std::env;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// The socket of a vipd that root runs.
pub const SYSTEM_SOCKET: &str = "/run/vipd/vipd.sock";

/// The socket of this user's own vipd if it is there, otherwise the system's if that is there, otherwise where this
/// user's would be.
#[must_use]
pub fn default_socket() -> PathBuf {
    let system = PathBuf::from(SYSTEM_SOCKET);
    if geteuid().is_root() {
        return system;
    }
    let own = own_socket(&|variable| env::var_os(variable).map(PathBuf::from), &geteuid().to_string());
    if !own.exists() && system.exists() { system } else { own }
}

/// Where a vipd without root listens. A relative path in a variable is ignored, as the XDG rules say.
fn own_socket(variable: &dyn Fn(&str) -> Option<PathBuf>, uid: &str) -> PathBuf {
    let directory = |name: &str| variable(name).filter(|path| path.is_absolute());
    if let Some(runtime) = directory("XDG_RUNTIME_DIR") {
        return runtime.join("vipd/vipd.sock");
    }
    let home = || directory("HOME").map(|home| home.join(".local/state"));
    let state = directory("XDG_STATE_HOME").or_else(home).map(|state| state.join("vipd"));
    state.unwrap_or_else(|| Path::new("/tmp").join(format!("vipd-{uid}"))).join("vipd.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(variables: &[(&str, &str)]) -> String {
        let find = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| PathBuf::from(value))
        };
        own_socket(&find, "1000").display().to_string()
    }

    #[test]
    fn the_runtime_directory_comes_first_then_state_then_home() {
        let (runtime, state, home) =
            (("XDG_RUNTIME_DIR", "/run/user/7"), ("XDG_STATE_HOME", "/s"), ("HOME", "/home/u"));
        assert_eq!(own(&[runtime, state, home]), "/run/user/7/vipd/vipd.sock");
        assert_eq!(own(&[state, home]), "/s/vipd/vipd.sock");
        assert_eq!(own(&[home]), "/home/u/.local/state/vipd/vipd.sock");
        assert_eq!(own(&[]), "/tmp/vipd-1000/vipd.sock");
        assert_eq!(own(&[("XDG_RUNTIME_DIR", "relative"), home]), "/home/u/.local/state/vipd/vipd.sock");
    }
}
