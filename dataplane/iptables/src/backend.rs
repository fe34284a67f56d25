//! Which iptables: legacy tables or nf_tables, and where its programs are. Nothing is executed here.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use vipd_model::Family;

use crate::names::program;

/// The two kernels of iptables. Rules of one are invisible to the other, and both see the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// `ip_tables`: a commit copies the whole table.
    Legacy,
    /// `nf_tables`.
    Nft,
}

impl Backend {
    /// Both; the first is preferred where the host has not chosen.
    pub const ALL: [Self; 2] = [Self::Nft, Self::Legacy];

    /// As it stands in the programs' names.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Nft => "nft",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where programs are looked for beside `PATH`: a service's path seldom has these.
const SBIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The programs of a back end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// Theirs.
    pub backend: Backend,
    families: [Option<[PathBuf; 2]>; 2],
}

impl Programs {
    /// Looks for the programs of a back end, in these folders or, if there are none, in the usual ones. Absent: not even
    /// those of IPv4 are there.
    #[must_use]
    pub fn find(backend: Backend, folders: &[PathBuf]) -> Option<Self> {
        let folders = &folders_or_usual(folders);
        let families = Family::ALL.map(|family| {
            Some([named(backend, family, "restore", folders)?, named(backend, family, "save", folders)?])
        });
        families[0].is_some().then_some(Self { backend, families })
    }

    /// Whether there are programs for this family.
    #[must_use]
    pub fn has(&self, family: Family) -> bool {
        self.families[family as usize].is_some()
    }

    pub(crate) fn restore(&self, family: Family) -> Option<&Path> {
        self.families[family as usize].as_ref().map(|[restore, _]| restore.as_path())
    }

    pub(crate) fn save(&self, family: Family) -> Option<&Path> {
        self.families[family as usize].as_ref().map(|[_, save]| save.as_path())
    }

    /// The back end behind the plain names (`iptables-restore`), as the host's administrator chose it.
    #[must_use]
    pub fn chosen_by_host(folders: &[PathBuf]) -> Option<Backend> {
        let plain = first(&folders_or_usual(folders), "iptables-restore")?;
        Backend::ALL.into_iter().find(|backend| is_of(*backend, &plain))
    }
}

fn folders_or_usual(folders: &[PathBuf]) -> Vec<PathBuf> {
    if !folders.is_empty() {
        return folders.to_vec();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain(SBIN.iter().map(PathBuf::from)).collect()
}

/// By its own name, or by the plain one where that leads to this back end.
fn named(backend: Backend, family: Family, verb: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let own = format!("{}-{backend}-{verb}", program(family));
    first(folders, &own).or_else(|| {
        let plain = first(folders, &format!("{}-{verb}", program(family)))?;
        is_of(backend, &plain).then_some(plain)
    })
}

fn first(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// What a plain name stands for is seen by the file that it leads to; one from before there were two is legacy.
fn is_of(backend: Backend, program: &Path) -> bool {
    let real = fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
    let nft = real.file_name().is_some_and(|name| name.to_string_lossy().contains("nft"));
    nft == (backend == Backend::Nft)
}

/// The legacy tables that this network namespace has, whoever made them: the kernel makes one when somebody first asks
/// for it.
#[must_use]
pub(crate) fn legacy_tables(family: Family) -> Vec<String> {
    let file = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}
