//! What elements have counted, over their replacement: flows of endpoints and of pools.
//!
//! An element's count goes with the element. Before one is deleted its count is read and kept here; flows that come
//! between the reading and the deletion are not counted.

use std::collections::HashMap;

use vipd_engine::{Counters, EngineError, ServiceCounters};
use vipd_model::{EndpointKey, Family, ServiceKey};
use vipd_netlink::nft::{Found, Nft};

use super::{
    cell::{Cell, Fields},
    label,
    names::{Content, SetName, TABLE},
    word::Word,
};
use crate::owner::failed;

/// Above so many elements of one set a walk costs less than a question for each.
const FEW: usize = 500;

/// Flows that elements which are gone had counted.
#[derive(Debug, Default)]
pub(super) struct Past {
    pools: HashMap<u32, HashMap<EndpointKey, u64>>,
}

impl Past {
    /// Reads what these elements, which are about to go, have counted.
    pub(super) fn save(&mut self, nft: &mut Nft, going: &[(SetName, Cell, usize)]) {
        let mut by_set: HashMap<SetName, Vec<&Cell>> = HashMap::new();
        for (set, cell, _) in going {
            by_set.entry(*set).or_default().push(cell);
        }
        for (set, cells) in by_set {
            let SetName::Bank { content, family, .. } = set else { continue };
            if content == Content::Slots {
                continue;
            }
            let keep = |found: &Found<'_>| {
                if let Some((pool, endpoint, packets)) = counted(content, family, found).filter(|(.., n)| *n > 0) {
                    *self.pools.entry(pool).or_default().entry(endpoint).or_default() += packets;
                }
            };
            // A count that cannot be read is lost; the change is not.
            if cells.len() <= FEW {
                let _ = nft.find(TABLE, &set.to_string(), cells.iter().map(|cell| cell.key.as_slice()), keep);
            } else if let Ok(found) = nft.visit(TABLE, &set.to_string(), |kept: &mut Vec<_>, found| {
                kept.push((found.key.to_vec(), counted(content, family, found)));
            }) {
                let gone: std::collections::HashSet<&[u8]> = cells.iter().map(|cell| cell.key.as_slice()).collect();
                for (_, count) in found.into_iter().filter(|(key, _)| gone.contains(&key[..])) {
                    if let Some((pool, endpoint, packets)) = count.filter(|(.., n)| *n > 0) {
                        *self.pools.entry(pool).or_default().entry(endpoint).or_default() += packets;
                    }
                }
            }
        }
    }

    /// The pool is gone.
    pub(super) fn forget(&mut self, pool: u32) {
        self.pools.remove(&pool);
    }
}

/// The count of an element, with its pool and endpoint.
fn counted(content: Content, family: Family, found: &Found<'_>) -> Option<(u32, EndpointKey, u64)> {
    let (mut key, mut data) = (Fields(found.key), Fields(found.data));
    let address = data.address(family)?;
    let port = if content.is_host() { 0 } else { data.port()? };
    Some((key.word()?.pool(), EndpointKey { address, port }, found.packets?))
}

/// Counts of these services, or of all.
pub(super) fn read(nft: &mut Nft, past: &Past, services: &[ServiceKey]) -> Result<Vec<ServiceCounters>, EngineError> {
    let reading = |error| failed("read counters", &error);
    let mut of_pool: HashMap<u32, ServiceKey> = HashMap::new();
    let pools = nft.visit(TABLE, &SetName::Pools.to_string(), |pools: &mut Vec<(u32, String)>, found| {
        let word = Fields(found.key).word().map(Word::pool);
        pools.extend(word.zip(found.comment.map(str::to_owned)));
    });
    for (pool, text) in pools.map_err(reading)? {
        if let Some(key) = label::service(&text).filter(|key| services.is_empty() || services.contains(key)) {
            of_pool.insert(pool, key);
        }
    }
    let mut counts: HashMap<ServiceKey, HashMap<EndpointKey, u64>> = HashMap::new();
    let mut gone: HashMap<ServiceKey, u64> = HashMap::new();
    for set in nft.sets(TABLE).map_err(reading)? {
        let Some(SetName::Bank { content, family, .. }) = SetName::parse(&set.name) else { continue };
        if content == Content::Slots {
            continue;
        }
        let found =
            nft.visit(TABLE, &set.name, |kept: &mut Vec<_>, found| kept.extend(counted(content, family, found)));
        for (pool, endpoint, packets) in found.map_err(reading)? {
            if let Some(key) = of_pool.get(&pool) {
                *counts.entry(key.clone()).or_default().entry(endpoint).or_default() += packets;
            }
        }
    }
    for (pool, key) in &of_pool {
        let now = counts.entry(key.clone()).or_default();
        for (endpoint, packets) in past.pools.get(pool).into_iter().flatten() {
            match now.get_mut(endpoint) {
                Some(count) => *count += packets,
                None => *gone.entry(key.clone()).or_default() += packets,
            }
        }
    }
    let only = |connections| Counters { connections: Some(connections), ..Counters::default() };
    let mut all: Vec<_> = counts
        .into_iter()
        .map(|(key, endpoints)| {
            let total = endpoints.values().sum::<u64>() + gone.get(&key).copied().unwrap_or(0);
            let mut endpoints: Vec<_> = endpoints.into_iter().map(|(endpoint, n)| (endpoint, only(n))).collect();
            endpoints.sort_by_key(|(endpoint, _)| *endpoint);
            ServiceCounters { key, total: only(total), endpoints }
        })
        .collect();
    all.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(all)
}
