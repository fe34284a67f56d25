//! What affinity in the kernel remembers, for Explain.

use std::{net::IpAddr, time::Duration};

use vipd_model::{EndpointKey, Family, Policy, ServiceKey};
use vipd_netlink::{Error, nft::Nft};

use super::{
    cell::{Bytes, Fields},
    label::label,
    names::{Content, SetName, TABLE, bank},
    word::Word,
};

/// The endpoint of this client; none if there is no record, or if it cannot be read.
pub(super) fn endpoint(nft: &mut Nft, service: &ServiceKey, client: IpAddr) -> Option<EndpointKey> {
    let family = Family::of(client);
    let labels = [Policy::All, Policy::Local].map(|policy| label(service, family, policy));
    let pools = nft.visit(TABLE, &SetName::Pools.to_string(), |pools: &mut Vec<u32>, found| {
        if found.comment.is_some_and(|comment| labels.iter().any(|label| label == comment)) {
            pools.extend(Fields(found.key).word().map(Word::pool));
        }
    });
    pools.ok()?.into_iter().find_map(|pool| record(nft, pool, client).ok()?)
}

fn record(nft: &mut Nft, pool: u32, client: IpAddr) -> Result<Option<EndpointKey>, Error> {
    let family = Family::of(client);
    let key = Bytes::default().word(Word::new(pool, 0)).address(client);
    let mut index = None;
    nft.find(TABLE, &SetName::Clients(family).to_string(), [key.as_slice()].into_iter(), |found| {
        let lives = found.expires.is_none_or(|left| left > Duration::ZERO);
        index = Fields(found.data).word().filter(|_| lives);
    })?;
    let Some(index) = index else { return Ok(None) };
    let key = Bytes::default().word(index);
    for content in Content::INDEXED {
        let set = SetName::Bank { content, family, bank: bank(pool) };
        let mut endpoint = None;
        nft.find(TABLE, &set.to_string(), [key.as_slice()].into_iter(), |found| {
            let mut data = Fields(found.data);
            let address = data.address(family);
            let port = if content.is_host() { Some(0) } else { data.port() };
            endpoint = address.zip(port).map(|(address, port)| EndpointKey { address, port });
        })?;
        if endpoint.is_some() {
            return Ok(endpoint);
        }
    }
    Ok(None)
}
