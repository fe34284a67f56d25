//! Whether this node lets us be the guard, found out by doing: the whole layout in one transaction that also takes it
//! back, so that nothing is ever in force.

use vipd_engine::InvalidPackets;
use vipd_netlink::{
    Error,
    nft::{Batch, Chain, Nft, TableFlags},
};

use crate::{
    names::{ChainName, Prefix, Reach, SetName},
    table,
};

/// Why there is no guard by nftables on this node, in words for an operator.
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
                "this kernel lacks a part of nf_tables that the guard needs"
            }
            _ => "nftables does not work here",
        };
        Self(format!("{why} ({error})"))
    }
}

/// Tries the layout.
pub(crate) fn layout(nft: &mut Nft) -> Result<(), Unusable> {
    let mut batch = Batch::new(format!("vipd-probe-{}", std::process::id()));
    batch.add_table(TableFlags::default());
    let prefix = Prefix::Allow { reach: Reach::Address, family: vipd_model::Family::V6, length: 64 };
    for set in SetName::constant().chain([SetName::Prefix(prefix)]) {
        batch.add_set(&table::set(set));
    }
    for chain in ChainName::all() {
        batch.add_chain(&Chain { name: chain.to_string(), hook: table::hook(chain) });
        for rule in table::rules(chain, InvalidPackets::Drop) {
            batch.add_rule(&chain.to_string(), rule.expressions(), None);
        }
    }
    batch.insert_rule(&prefix.chain().to_string(), table::prefix_rule(prefix).expressions(), None);
    batch.delete_table();
    nft.commit(&mut batch).map_err(|error| Unusable::because(&error))
}

/// Whether a table can have an owner and outlive it.
pub(crate) fn ownership(nft: &mut Nft) -> bool {
    let mut batch = Batch::new(format!("vipd-probe-{}", std::process::id()));
    batch.add_table(TableFlags::OWNED);
    batch.delete_table();
    nft.commit(&mut batch).is_ok()
}
