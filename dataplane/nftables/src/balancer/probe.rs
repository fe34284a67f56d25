//! What this kernel can do, found out by doing: small transactions that take themselves back, so that nothing is ever in
//! force.

use std::collections::BTreeSet;

use vipd_engine::Node;
use vipd_model::{Ability, EngineKind, Family, Feature, feature::designed};
use vipd_netlink::nft::{Batch, Chain, Nft, TableFlags};

use super::{
    kind::{Affinity, Kind, Pick, Way},
    names::{ChainName, Content, SetName, bank},
    pool::{Member, Pool},
    table,
};
use crate::owner::Unusable;

/// Part of the layout, in a table of its own that goes at once.
struct Trial {
    batch: Batch,
}

impl Trial {
    fn new() -> Self {
        let mut batch = Batch::new(format!("vipd-probe-{}", std::process::id()));
        batch.add_table(TableFlags::default());
        let mut trial = Self { batch };
        SetName::constant().for_each(|set| trial.set(set));
        ChainName::CONSTANT.into_iter().for_each(|chain| trial.chain(chain));
        trial
    }

    fn set(&mut self, set: SetName) {
        self.batch.add_set(&table::set(set));
    }

    fn chain(&mut self, chain: ChainName) {
        self.batch.add_chain(&Chain { name: chain.to_string(), hook: table::hook(chain) });
        for rule in table::rules(chain, &Node::default()) {
            self.batch.add_rule(&chain.to_string(), rule.expressions(), None);
        }
    }

    fn kind(&mut self, pick: Pick, way: Way) {
        for family in Family::ALL {
            let bank = bank(0);
            Content::ALL.into_iter().for_each(|content| self.set(SetName::Bank { content, family, bank }));
            if let Way::Indexed { affinity, .. } = way {
                self.chain(ChainName::Member { family, bank });
                if let Some(affinity) = affinity {
                    self.set(SetName::Clients(family));
                    self.chain(ChainName::Remember { affinity, family, bank });
                    self.chain(ChainName::Keep { affinity, family, bank });
                }
            }
            self.chain(ChainName::Kind(Kind { family, bank, pick, slots: 3, way }));
        }
    }

    fn works(mut self, nft: &mut Nft) -> Result<(), vipd_netlink::Error> {
        self.batch.delete_table();
        nft.commit(&mut self.batch)
    }
}

/// Tries what every service needs.
pub(super) fn layout(nft: &mut Nft) -> Result<(), Unusable> {
    let mut trial = Trial::new();
    trial.kind(Pick::Random, Way::Direct);
    trial.works(nft).map_err(|error| Unusable::because(&error))
}

/// What the engine is designed to do, without what this kernel refuses.
pub(super) fn ability(nft: &mut Nft) -> Ability {
    let mut ability = Ability { usable: true, ..designed(EngineKind::Nftables) };
    let mut lacks = BTreeSet::new();
    let affinity = Some(Affinity { milliseconds: 1000, prefix: 24 });
    let works = |nft: &mut Nft, pick, way| {
        let mut trial = Trial::new();
        trial.kind(pick, way);
        trial.works(nft).is_ok()
    };
    if !works(nft, Pick::Random, Way::Indexed { affinity, limited: false }) {
        lacks.extend([
            Feature::Affinity,
            Feature::AffinityPrefix,
            Feature::AffinityExactTimeout,
            Feature::AffinitySurvivesRestart,
        ]);
    }
    if !works(nft, Pick::Hash { port: true }, Way::Direct) {
        lacks.insert(Feature::HashSourcePort);
        ability.algorithms.retain(|algorithm| !algorithm.is_hash());
    }
    if !limits_connections(nft) {
        lacks.insert(Feature::MaxConnections);
    }
    ability.features.retain(|feature| !lacks.contains(feature));
    ability
}

fn limits_connections(nft: &mut Nft) -> bool {
    let mut trial = Trial::new();
    trial.kind(Pick::Random, Way::Indexed { affinity: None, limited: true });
    let endpoint = vipd_model::EndpointKey { address: [192, 0, 2, 1].into(), port: 80 };
    let members = [Member { index: 1, endpoint, limit: 7 }].into();
    let pool = Pool { members, ..Pool::default() };
    super::cell::pool(1, &pool, &mut |set, cell| trial.batch.add_items(&set.to_string(), [cell.item()].into_iter()));
    trial.works(nft).is_ok()
}
