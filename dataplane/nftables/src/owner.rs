//! Whose our tables are: taken where the kernel lets us, waited for where the last process still holds them.

use std::{
    thread,
    time::{Duration, Instant},
};

use vipd_engine::EngineError;
use vipd_netlink::{
    Error,
    nft::{Batch, Nft, TableFlags},
};

/// How long a start waits for the tables' last owner.
const OWNER_PATIENCE: Duration = Duration::from_secs(1);

/// Why there is nothing by nftables on this node, in words for an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);

impl Unusable {
    pub(crate) fn because(error: &Error) -> Self {
        let why = match error.errno() {
            Some(libc::EPERM | libc::EACCES) => {
                "nftables needs CAP_NET_ADMIN in the user namespace of this network namespace: run as root, or give the \
                 service AmbientCapabilities=CAP_NET_ADMIN"
            }
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::ENOENT) => {
                "this kernel lacks a part of nf_tables that vipd needs"
            }
            _ => "nftables does not work here",
        };
        Self(format!("{why} ({error})"))
    }
}

/// Whether this kernel lets a table have an owner and outlive it.
fn can_have_owner(nft: &mut Nft) -> bool {
    let mut batch = Batch::new(format!("vipd-probe-{}", std::process::id()));
    batch.add_table(TableFlags::OWNED);
    batch.delete_table();
    nft.commit(&mut batch).is_ok()
}

/// The flags that our tables are to have on this node.
pub(crate) fn flags(nft: &mut Nft, tables: &[&str]) -> Result<TableFlags, Unusable> {
    let mut can_be_owned = can_have_owner(nft);
    for name in tables {
        let table = nft.table(name).map_err(|error| Unusable::because(&error))?;
        // The kernel gives a table without an owner none later.
        can_be_owned &= table.is_none_or(|table| table.flags.persist);
    }
    Ok(if can_be_owned { TableFlags::OWNED } else { TableFlags::default() })
}

/// Whether all of these tables are this socket's.
pub(crate) fn is_ours(nft: &mut Nft, tables: &[&str]) -> bool {
    let port = Some(nft.port());
    tables.iter().all(|name| nft.table(name).is_ok_and(|table| table.is_some_and(|table| table.owner == port)))
}

/// A process that has just been killed may hold its socket for a moment longer.
pub(crate) fn wait_for_others(nft: &mut Nft, tables: &[&str]) -> Result<(), Unusable> {
    let patience = Instant::now() + OWNER_PATIENCE;
    for name in tables {
        while let Some(owner) =
            nft.table(name).map_err(|error| Unusable::because(&error))?.and_then(|table| table.owner)
        {
            if Instant::now() > patience {
                return Err(Unusable(format!(
                    "table inet {name} belongs to another running process (netlink port {owner}, often its process id): \
                     stop the other vipd first"
                )));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

pub(crate) fn failed(operation: &'static str, error: &Error) -> EngineError {
    EngineError { operation, message: error.to_string(), retry: true }
}
