//! The legacy tables of iptables, as far as one question goes: has anybody written to one?
//!
//! They are older than netlink and are spoken to by socket options. Nothing else is asked or changed here.

use std::ffi::{c_char, c_int, c_uint};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::conntrack::IpFamily;

/// `IPT_SO_GET_INFO`, `IP6T_SO_GET_INFO` (linux/netfilter_ipv4/ip_tables.h).
const GET_INFO: c_int = 64;
/// `XT_TABLE_MAXNAMELEN` (linux/netfilter/x_tables.h).
const NAME: usize = 32;

/// `struct ipt_getinfo`, and the same for IPv6.
#[repr(C)]
struct GetInfo {
    name: [c_char; NAME],
    valid_hooks: c_uint,
    hook_entry: [c_uint; 5],
    underflow: [c_uint; 5],
    entries: c_uint,
    size: c_uint,
}

/// How much is in a table. A change seldom leaves both numbers as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// Rules, policies and chain heads.
    pub entries: u32,
    /// Bytes of them all.
    pub bytes: u32,
}

/// A socket to ask by.
#[derive(Debug)]
pub struct Xtables {
    socket: OwnedFd,
    family: IpFamily,
}

impl Xtables {
    /// Opens a socket in the current network namespace.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn open(family: IpFamily) -> io::Result<Self> {
        let domain = match family {
            IpFamily::V4 => AddressFamily::Inet,
            IpFamily::V6 => AddressFamily::Inet6,
        };
        let socket = socket(domain, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?;
        Ok(Self { socket, family })
    }

    /// The size of a table. The kernel makes the table if it does not exist yet: ask for one that does.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn size(&self, table: &str) -> io::Result<TableSize> {
        let level = match self.family {
            IpFamily::V4 => libc::SOL_IP,
            IpFamily::V6 => libc::SOL_IPV6,
        };
        let mut info =
            GetInfo { name: [0; NAME], valid_hooks: 0, hook_entry: [0; 5], underflow: [0; 5], entries: 0, size: 0 };
        // The last byte stays 0.
        for (to, from) in info.name.iter_mut().take(NAME - 1).zip(table.bytes()) {
            *to = from.cast_signed();
        }
        get_info(&self.socket, level, &mut info)?;
        Ok(TableSize { entries: info.entries, bytes: info.size })
    }
}

#[allow(unsafe_code, reason = "the option has no safe wrapper")]
fn get_info(socket: &OwnedFd, level: c_int, info: &mut GetInfo) -> io::Result<()> {
    // The size of a small struct.
    let mut length = mem::size_of::<GetInfo>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `socket` is; `info` is a plain C struct of exactly `length` bytes, which
    // the kernel reads a name from and fills, and nothing is kept after the call.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, GET_INFO, std::ptr::from_mut(info).cast(), &raw mut length)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_namespace, run, skip};

    #[test]
    fn a_rule_more_is_noticed() {
        in_namespace(|| {
            if std::process::Command::new("iptables-legacy").arg("-V").output().is_err() {
                return skip("no iptables-legacy");
            }
            for (family, program) in [(IpFamily::V4, "iptables-legacy"), (IpFamily::V6, "ip6tables-legacy")] {
                run(program, &["-t", "nat", "-N", "ONE"]);
                let tables = Xtables::open(family).unwrap();
                let before = tables.size("nat").unwrap();
                assert_eq!(tables.size("nat").unwrap(), before);
                run(program, &["-t", "nat", "-A", "ONE", "-j", "RETURN"]);
                let after = tables.size("nat").unwrap();
                assert_eq!(after.entries, before.entries + 1);
                assert!(after.bytes > before.bytes);
            }
            assert!(Xtables::open(IpFamily::V4).unwrap().size("nonsense").is_err());
        });
    }
}
