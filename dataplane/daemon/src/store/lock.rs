//! One daemon per state directory, and how the last one ended: killed (the page cache kept what it wrote), or with the
//! machine (the last second may be gone).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

const FILE: &str = "lock";

/// How the last holder ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastEnd {
    /// By itself, with everything on the disk; or there was none.
    Clean,
    /// While the machine went on: everything that it wrote is there.
    Killed,
    /// Perhaps with the machine: what it wrote in the last second may not be there.
    Unknown,
}

/// Why the lock was not taken.
#[derive(Debug)]
pub(super) enum LockError {
    Held(Option<u32>),
    Io(io::Error),
}

/// Held until it is dropped, or the process ends, however that comes.
#[derive(Debug)]
pub(super) struct Lock {
    file: Flock<File>,
    pub(super) last_end: LastEnd,
    /// How many batches the last holder had committed, if it was killed; 0: unknown.
    pub(super) last_commits: u64,
    /// Where in the file their number stands.
    commits_at: u64,
}

impl Lock {
    pub(super) fn take(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join(FILE);
        let there = path.exists();
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.map_err(LockError::Io)?;
        let mut file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(mut file, errno)| match errno {
            Errno::EWOULDBLOCK => LockError::Held(Note::read(&mut file).pid),
            other => LockError::Io(other.into()),
        })?;
        let note = Note::read(&mut file);
        let boot = boot_id();
        let last_end = match note.boot {
            None if there => LastEnd::Clean,
            Some(last) if !last.is_empty() && last == boot => LastEnd::Killed,
            _ => LastEnd::Unknown,
        };
        let last_commits = if last_end == LastEnd::Killed { note.commits } else { 0 };
        // On the disk before the first change: after a power cut an older, clean note must not be what is found.
        let holder = format!("{} {boot} ", std::process::id());
        write(&mut file, &format!("{holder}{last_commits:020}\n")).map_err(LockError::Io)?;
        Ok(Self { file, last_end, last_commits, commits_at: holder.len() as u64 })
    }

    /// Notes, in the page cache as the commits are, how many there have been. A note that fails says less, nothing wrong.
    pub(super) fn note_commits(&self, commits: u64) {
        let _ = self.file.write_all_at(format!("{commits:020}").as_bytes(), self.commits_at);
    }

    /// Notes that everything is on the disk, and lets go.
    pub(super) fn release(mut self) -> io::Result<()> {
        write(&mut self.file, "")
    }
}

/// Over the old text and then cut, so that the file is never empty, which means a clean end, in between.
fn write(file: &mut File, text: &str) -> io::Result<()> {
    file.rewind()?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

/// The content of the file: process id and boot id of the holder, and how many batches it has committed; empty once it
/// has ended by itself.
struct Note {
    pid: Option<u32>,
    boot: Option<String>,
    commits: u64,
}

impl Note {
    fn read(file: &mut File) -> Self {
        let mut bytes = Vec::new();
        // A note that cannot be read says as little as one that is not there.
        let _ = file.take(256).read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let mut words = text.split_whitespace();
        let pid = words.next().and_then(|word| word.parse().ok());
        let boot = words.next().map(str::to_owned);
        Self { pid, boot, commits: words.next().and_then(|word| word.parse().ok()).unwrap_or(0) }
    }
}

/// Identity of this run of the machine; empty if the kernel does not say.
pub(super) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}
