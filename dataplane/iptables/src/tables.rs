//! The kernel's tables, read and written by the host's own programs: `iptables-save`, `iptables-restore`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vipd_model::Family;
use vipd_netlink::nft::Nft;

use crate::backend::{Backend, Programs, legacy_tables};
use crate::child::{self, ChildError, Said};
use crate::layout;
use crate::names::{Role, Table};
use crate::save::Saved;
use crate::script::Script;
use crate::watch::ip_family;

/// The lock of the legacy programs (`XTABLES_LOCKFILE`).
const LOCK: &str = "/run/xtables.lock";
/// Exit status of a program that did not get the lock (`RESOURCE_PROBLEM`, xtables.h).
const RESOURCE_PROBLEM: i32 = 4;

/// How long we wait for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the lock that all legacy programs of a host share. Up to half as much again is added by chance, so that two
    /// that wait for each other do not do so in step.
    pub lock: Duration,
    /// For a program to end, beside the wait for the lock.
    pub program: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { lock: Duration::from_secs(4), program: Duration::from_secs(60) }
    }
}

/// Why something was not read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TablesError {
    #[error("there is no {0}: install it, or do without frontends of that family")]
    NoProgram(&'static str),
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error(
        "the xtables lock is held by {holder} for more than {waited} s: iptables cannot be changed until it is free"
    )]
    Locked { holder: String, waited: u64 },
    #[error("{program}: {said}")]
    Refused { program: String, said: String, partly: bool },
}

impl TablesError {
    /// Whether the kernel may have been changed all the same.
    pub(crate) fn may_have_acted(&self) -> bool {
        match self {
            Self::NoProgram(_) | Self::Locked { .. } => false,
            Self::Child(error) => error.may_have_acted(),
            Self::Refused { partly, .. } => *partly,
        }
    }
}

/// One back end's programs.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) programs: Programs,
    pub(crate) patience: Patience,
}

impl Tables {
    /// What one role has in one family.
    pub(crate) fn read(&self, role: Role, family: Family) -> Result<Saved, TablesError> {
        let [saved] = self.read_for([role], family)?;
        Ok(saved)
    }

    /// The same for several roles, at one reading.
    pub(crate) fn read_for<const N: usize>(&self, roles: [Role; N], family: Family) -> Result<[Saved; N], TablesError> {
        let Some(program) = self.programs.save(family) else { return Ok(roles.map(|_| Saved::default())) };
        if self.programs.backend == Backend::Legacy && legacy_tables(family).is_empty() {
            // Asking would make the tables.
            return Ok(roles.map(|_| Saved::default()));
        }
        let said = child::run(program, &["-c"], String::new(), self.patience.program)?;
        if said.code == Some(0) {
            let dump = String::from_utf8_lossy(&said.output);
            return Ok(roles.map(|role| Saved::parse(role, &dump)));
        }
        let mut read = Vec::with_capacity(N);
        for role in roles {
            read.push(self.read_chain_by_chain(role, family)?);
        }
        let mut read = read.into_iter();
        Ok(roles.map(|_| read.next().unwrap_or_default()))
    }

    /// Where somebody has put a rule beside ours that this version cannot print, it stops there. The names of chains come
    /// before all rules, and single chains can still be printed.
    fn read_chain_by_chain(&self, role: Role, family: Family) -> Result<Saved, TablesError> {
        let (Some(save), Some(restore)) = (self.programs.save(family), self.programs.restore(family)) else {
            return Ok(Saved::default());
        };
        let mut saved = Saved::default();
        for table in Table::ALL {
            let listed = child::run(save, &["-c", "-t", table.as_str()], String::new(), self.patience.program)?;
            let all = Saved::parse(role, &String::from_utf8_lossy(&listed.output));
            if listed.code == Some(0) {
                saved.merge(all);
                continue;
            }
            let mut lists = String::new();
            all.chains.keys().for_each(|(_, chain)| lists += &format!("-v -S {chain}\n"));
            let said = self.list(restore, table, &lists)?;
            if said.code != Some(0) {
                return Err(refused(restore.display().to_string(), &said, false));
            }
            saved.merge(listed_as_dump(role, table, &said));
            // Our jumps stand before others' rules, so they are printed; where they do not, they count as missing, and
            // are made again.
            let jumps = layout::jumps(role).into_iter().filter(|jump| jump.table == table);
            for chain in jumps.map(|jump| jump.chain).collect::<BTreeSet<_>>() {
                let said = self.list(restore, table, &format!("-v -S {chain}\n"))?;
                saved.merge(listed_as_dump(role, table, &said));
            }
        }
        Ok(saved)
    }

    /// The restoring program obeys listing commands too, many in one run.
    fn list(&self, restore: &Path, table: Table, lists: &str) -> Result<Said, TablesError> {
        let script = format!("*{table}\n{lists}COMMIT\n");
        Ok(child::run(restore, &["--noflush"], script, self.patience.program)?)
    }

    /// Writes a script: each table of it as a whole, or not at all.
    pub(crate) fn write(&self, family: Family, mut script: Script) -> Result<(), TablesError> {
        if self.programs.backend == Backend::Legacy || !script.is_big() {
            return self.restore(family, &script.render(false), script.is_parted());
        }
        let jumps = script.part_jumps();
        if !jumps.is_empty() {
            self.restore(family, &jumps.render(false), jumps.is_parted())?;
        }
        let begun = !jumps.is_empty() || script.is_parted();
        // It cannot read what others have put beside us: then it does without, and takes longer.
        self.restore(family, &script.render(true), begun)
            .or_else(|_| self.restore(family, &script.render(false), begun))
    }

    /// `begun`: a failure may leave something behind.
    fn restore(&self, family: Family, text: &str, begun: bool) -> Result<(), TablesError> {
        let name = match family {
            Family::V4 => "iptables-restore",
            Family::V6 => "ip6tables-restore",
        };
        let program = self.programs.restore(family).ok_or(TablesError::NoProgram(name))?;
        let wait = self.lock_wait();
        let seconds = wait.as_secs().max(1).to_string();
        let mut arguments = vec!["--noflush"];
        if self.programs.backend == Backend::Legacy {
            // nf_tables has no lock, and older versions no such option for it.
            arguments.extend(["-w", &seconds]);
        }
        let said = child::run(program, &arguments, text.to_owned(), self.patience.program + wait)?;
        match said.code {
            Some(0) => Ok(()),
            Some(RESOURCE_PROBLEM) if said.errors.contains("xtables lock") => {
                Err(TablesError::Locked { holder: holder(), waited: wait.as_secs() })
            }
            _ => Err(explained(name, &said, text, begun)),
        }
    }

    /// The nft back end makes the kernel's chains as rules need them, and leaves them. Where a table has no rule, no other
    /// chain and no policy left, nobody uses it: it goes. A failure leaves what does nothing.
    pub(crate) fn tidy(&self, family: Family) {
        let (Backend::Nft, Some(save), Some(restore)) =
            (self.programs.backend, self.programs.save(family), self.programs.restore(family))
        else {
            return;
        };
        for table in Table::ALL {
            let listed = child::run(save, &["-t", table.as_str()], String::new(), self.patience.program);
            let Ok(Said { code: Some(0), output, .. }) = listed else { continue };
            let dump = String::from_utf8_lossy(&output).into_owned();
            let used = |line: &str| line.starts_with("-A") || (line.starts_with(':') && !line.contains(" ACCEPT "));
            if dump.lines().any(used) {
                continue;
            }
            let chains = dump.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
            for chain in chains {
                // One that is not there is only printed; each is tried alone.
                let script = format!("*{table}\n-X {chain}\nCOMMIT\n");
                let _ = child::run(restore, &["--noflush"], script, self.patience.program);
            }
            if let Ok(mut nft) = Nft::open() {
                let _ = nft.delete_empty_table(ip_family(family), table.as_str());
            }
        }
    }

    fn lock_wait(&self) -> Duration {
        let by_chance = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_micros());
        self.patience.lock + self.patience.lock.mul_f64(0.5 * f64::from(by_chance) / 1e6)
    }
}

/// What `-S` prints of a chain is what a dump has, but for the line that begins it.
fn listed_as_dump(role: Role, table: Table, said: &Said) -> Saved {
    let listed = String::from_utf8_lossy(&said.output);
    Saved::parse(role, &format!("*{table}\n{}", listed.replace("-N ", ":")))
}

fn refused(program: String, said: &Said, partly: bool) -> TablesError {
    let status = said.code.map_or("killed".to_owned(), |code| format!("exit status {code}"));
    let text = if said.errors.is_empty() { status } else { said.errors.replace('\n', "; ") };
    TablesError::Refused { program, said: text, partly }
}

/// With the line that it complains of.
fn explained(name: &str, said: &Said, script: &str, partly: bool) -> TablesError {
    let mut error = refused(name.to_owned(), said, partly);
    let number = said.errors.split("line").skip(1).find_map(|rest| {
        let digits = rest.trim_start_matches([':', ' ']);
        digits.split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok()
    });
    let line = number.and_then(|number| script.lines().nth(number.checked_sub(1)?));
    if let (TablesError::Refused { said, .. }, Some(line)) = (&mut error, line) {
        *said += &format!(" ({line})");
    }
    error
}

/// Who holds the lock, as `/proc/locks` tells it.
fn holder() -> String {
    let path = std::env::var("XTABLES_LOCKFILE").unwrap_or_else(|_| LOCK.to_owned());
    let found = fs::metadata(path).ok().and_then(|file| {
        let inode = file.ino().to_string();
        let locks = fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| {
            // 1: FLOCK  ADVISORY  WRITE 1234 00:1a:4711 0 EOF
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, "FLOCK", _, _, pid, file, ..] = words.as_slice() else { return None };
            (file.rsplit(':').next() == Some(&inode)).then(|| (*pid).to_owned())
        })
    });
    found.map_or("another process".to_owned(), |pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("process {pid} {}", name.trim()).trim_end().to_owned()
    })
}
