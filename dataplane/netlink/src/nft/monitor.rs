//! Who changes the rule set: the kernel says so with every commit, to those who listen at that moment.
//!
//! A listener costs every committer, for the kernel then describes each object and element of the commit. So it listens
//! only where our tables can be changed by others, and not during commits of our own ([`Monitor::paused`]); a socket
//! filter lets nothing through but the message that ends a commit and names the process.

use std::os::fd::AsRawFd;

use crate::{
    attr::Attrs,
    error::Error,
    message::{NFGENMSG, parse_messages},
    socket::{Family, Socket},
};

/// `NFNLGRP_NFTABLES`
const GROUP: u32 = 7;
/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN`
const NEW_GENERATION: u16 = 10 << 8 | 15;

/// A process that has committed something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committer {
    /// Of the thread, as the kernel counts and not a container: for most programs the process id.
    pub pid: u32,
    /// At most 15 bytes.
    pub name: String,
}

/// Listens for commits.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Begins to listen in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Socket`] if the kernel has no such group or the process may not listen.
    pub fn open() -> Result<Self, Error> {
        let mut socket = Socket::open(Family::Netfilter)?;
        attach_filter(&socket).map_err(|source| Error::socket("filter a netlink socket", source))?;
        socket.join(GROUP)?;
        Ok(Self { socket })
    }

    /// Runs something that commits, without listening to it.
    pub fn paused<T>(&mut self, commit: impl FnOnce() -> T) -> T {
        // Whether or not this works, what follows does: it is about who pays.
        let left = self.socket.leave(GROUP).is_ok();
        let value = commit();
        if left {
            let _ = self.socket.join(GROUP);
        }
        value
    }

    /// The last other process that has committed since this was last asked.
    pub fn last_other(&mut self) -> Option<Committer> {
        let mut last = None;
        // After a lost message the next one is as good.
        let _ = self.socket.drain_each("read who changed the rule set", |datagram| {
            last =
                parse_committers(datagram).filter(|committer| !is_thread_of_ours(committer.pid)).last().or(last.take());
        });
        last
    }
}

fn is_thread_of_ours(pid: u32) -> bool {
    std::path::Path::new("/proc/self/task").join(pid.to_string()).exists()
}

/// The processes that one datagram names.
pub fn parse_committers(datagram: &[u8]) -> impl Iterator<Item = Committer> {
    parse_messages(datagram).filter(|message| message.kind == NEW_GENERATION).filter_map(|message| {
        let attrs: Attrs<'_> = message.attrs(NFGENMSG);
        Some(Committer { pid: attrs.be32(2)?, name: attrs.string(3)? })
    })
}

/// Classic BPF: lets a datagram through if its first message has this type.
#[allow(unsafe_code, reason = "no safe call attaches a filter")]
fn attach_filter(socket: &Socket) -> std::io::Result<()> {
    /// `BPF_LD | BPF_H | BPF_ABS`, `BPF_JMP | BPF_JEQ | BPF_K`, `BPF_RET | BPF_K`
    const LOAD: u16 = 0x28;
    const EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // The load takes network order; a message's type is in host order, after its length.
    let kind = u32::from(u16::from_be_bytes(NEW_GENERATION.to_ne_bytes()));
    let mut program =
        [step(LOAD, 0, 0, 4), step(EQUAL, 0, 1, kind), step(RETURN, 0, 0, u32::MAX), step(RETURN, 0, 0, 0)];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the descriptor is open, and `filter` and the program that it points to outlive the call, which copies them.
    let result = unsafe {
        libc::setsockopt(
            std::os::fd::AsFd::as_fd(socket).as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            std::ptr::from_ref(&filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{nft::*, testing};

    #[test]
    fn another_process_is_named_and_our_own_commits_are_not() {
        testing::in_namespace(|| {
            let mut monitor = Monitor::open().unwrap();
            let mut nft = Nft::open().unwrap();
            let mut batch = Batch::new("room");
            batch.add_table(TableFlags::default());
            nft.commit(&mut batch).unwrap();
            assert_eq!(monitor.last_other(), None);
            testing::run("nft", &["add", "table", "inet", "strange"]);
            assert_eq!(monitor.last_other().map(|other| other.name).as_deref(), Some("nft"));
            assert_eq!(monitor.last_other(), None, "said once");
            monitor.paused(|| testing::run("nft", &["delete", "table", "inet", "strange"]));
            assert_eq!(monitor.last_other(), None);
            testing::run("nft", &["add", "table", "inet", "strange"]);
            assert!(monitor.last_other().is_some(), "it listens again");
        });
    }
}
