//! When the engine iptables is opened: it starts programs, so only if it is wanted, or if rules of ours may be there.

use std::path::{Path, PathBuf};

use vipd_iptables::{Backend, Choice, Iptables, Options, Programs};
use vipd_model::feature::{Ability, Feature, designed};
use vipd_model::{EngineKind, Family};
use vipd_netlink::nft::Nft;

use super::lazy::Lazy;
use crate::config::Config;
use crate::config::value::{EngineChoice, IptablesBackend};
use crate::store;

/// With what the names of our chains begin, whoever of us made them.
const CHAINS: &str = "VIPD-";
/// In the state directory: this state's daemon has written iptables rules.
const MARK: &str = "iptables-used";

/// The engine, not opened yet unless it must be. `unprivileged` says why rules cannot be written at all.
///
/// # Errors
/// Why it cannot run here, in words.
pub(super) fn engine(config: &Config, unprivileged: Option<&str>) -> Result<Lazy<Iptables>, String> {
    if let Some(why) = unprivileged {
        return Err(format!("iptables needs what the guard needs: {why}"));
    }
    let options = options(config);
    Iptables::probe(&options).map_err(|unusable| unusable.to_string())?;
    let ability = ability(&options);
    let open = {
        let options = options.clone();
        Box::new(move || Iptables::open(&options).map_err(|unusable| unusable.to_string()))
    };
    let mark = mark(config);
    let wanted = config.engine == EngineChoice::Iptables || left_something(&config.state_dir, &mark);
    let engine = Lazy::new(EngineKind::Iptables, ability, mark, open);
    if wanted { engine.opened() } else { Ok(engine) }
}

/// As the configuration says.
pub(super) fn options(config: &Config) -> Options {
    let backend = match config.iptables_backend {
        IptablesBackend::Auto => Choice::Auto,
        IptablesBackend::Legacy => Choice::Only(Backend::Legacy),
        IptablesBackend::Nft => Choice::Only(Backend::Nft),
    };
    Options { backend, ..Options::default() }
}

/// Where the mark is.
pub(super) fn mark(config: &Config) -> PathBuf {
    config.state_dir.join(MARK)
}

/// What can be said without starting a program.
fn ability(options: &Options) -> Ability {
    let backends = Backend::ALL.into_iter().filter(|backend| match options.backend {
        Choice::Auto => true,
        Choice::Only(only) => only == *backend,
    });
    let mut programs = backends.filter_map(|backend| Programs::find(backend, &options.folders));
    let v6 = Path::new("/proc/net/if_inet6").exists() && programs.any(|programs| programs.has(Family::V6));
    let reason = "not opened yet: no service has needed it".to_owned();
    let mut ability = Ability { usable: true, reason, ..designed(EngineKind::Iptables) };
    if !v6 {
        ability.features.remove(&Feature::Ipv6);
    }
    ability
}

/// Whether the kernel may have rules of ours: by the mark; where the state is lost, by what can be seen of the kernel
/// without starting a program. The legacy tables do not show their chains, so that any of them will do.
fn left_something(state_dir: &Path, mark: &Path) -> bool {
    if mark.exists() {
        return true;
    }
    if store::exists(state_dir) {
        return false;
    }
    let legacy = ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];
    let legacy = legacy.iter().any(|file| std::fs::read_to_string(file).is_ok_and(|names| !names.trim().is_empty()));
    legacy || Nft::open().and_then(|mut nft| nft.has_chains(CHAINS)).unwrap_or(false)
}
