//! Whether this node lets us be the guard, found out by doing: the whole layout in one transaction that also takes it
//! back, so that nothing is ever in force.

use vipd_engine::InvalidPackets;
use vipd_netlink::nft::{Batch, Chain, Nft, TableFlags};

use super::{
    names::{ChainName, Prefix, Reach, SetName},
    table,
};
use crate::owner::Unusable;

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
