//! Endpoints and drains.

use vipd_model::limits::TARGET_BYTES;
use vipd_model::{Drain, Endpoint, EndpointKey, EndpointState, OnExpiry};
use vipd_proto::v1;

use super::path::{Path, Problems};
use super::scalar;

/// A list of endpoints as sent: unsorted, perhaps with one key twice.
pub fn parse_list(messages: &[v1::Endpoint], at: &Path<'_>, problems: &mut Problems) -> Option<Vec<Endpoint>> {
    let mut endpoints = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        endpoints.extend(parse(message, &at.index(index), problems));
    }
    (endpoints.len() == messages.len()).then_some(endpoints)
}

/// The endpoints that a PatchEndpoints removes: only address and port are read.
pub fn parse_keys(messages: &[v1::Endpoint], at: &Path<'_>, problems: &mut Problems) -> Option<Vec<EndpointKey>> {
    let mut keys = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        keys.extend(parse_key(message, &at.index(index), problems));
    }
    (keys.len() == messages.len()).then_some(keys)
}

fn parse_key(message: &v1::Endpoint, at: &Path<'_>, problems: &mut Problems) -> Option<EndpointKey> {
    let address = match scalar::address(&message.address) {
        Ok(address) => Some(address),
        Err(why) => problems.invalid(&at.field("address"), why),
    };
    let port = scalar::port(message.port, &at.field("port"), problems);
    Some(EndpointKey { address: address?, port: port? })
}

/// One endpoint.
pub fn parse(message: &v1::Endpoint, at: &Path<'_>, problems: &mut Problems) -> Option<Endpoint> {
    let key = parse_key(message, at, problems);
    let weight = match message.weight {
        None => Some(1),
        Some(weight) => scalar::within(weight, u32::from(u16::MAX), &at.field("weight"), problems),
    };
    let state = scalar::known(message.state, &at.field("state"), problems).map(|state| match state {
        v1::endpoint::State::Unspecified | v1::endpoint::State::Ready => EndpointState::Ready,
        v1::endpoint::State::Draining => EndpointState::Draining,
        v1::endpoint::State::NotReady => EndpointState::NotReady,
    });
    let target = match message.target.as_str() {
        "" => Some(None),
        text => {
            scalar::text(text.to_owned(), TARGET_BYTES, &at.field("target"), problems).map(|text| Some(text.into()))
        }
    };
    let drain = match &message.drain {
        None => Some(None),
        Some(drain) => parse_drain(drain, &at.field("drain"), problems).map(Some),
    };
    Some(Endpoint {
        key: key?,
        weight: weight?,
        state: state?,
        local: message.local,
        tier: message.tier,
        target: target?,
        drain: drain?,
        max_connections: message.max_connections,
        left_at: None,
    })
}

/// One endpoint as replies show it.
#[must_use]
pub fn message(endpoint: &Endpoint) -> v1::Endpoint {
    let state = match endpoint.state {
        EndpointState::Ready => v1::endpoint::State::Ready,
        EndpointState::Draining => v1::endpoint::State::Draining,
        EndpointState::NotReady => v1::endpoint::State::NotReady,
    };
    v1::Endpoint {
        address: endpoint.key.address.to_string(),
        port: endpoint.key.port.into(),
        weight: Some(endpoint.weight.into()),
        state: state.into(),
        local: endpoint.local,
        tier: endpoint.tier,
        target: endpoint.target.as_deref().unwrap_or_default().to_owned(),
        drain: endpoint.drain.as_ref().map(drain_message),
        max_connections: endpoint.max_connections,
    }
}

/// A drain.
pub fn parse_drain(message: &v1::Drain, at: &Path<'_>, problems: &mut Problems) -> Option<Drain> {
    let timeout = scalar::duration(message.timeout, &at.field("timeout"), problems);
    let on_expiry = scalar::known(message.on_expiry, &at.field("on_expiry"), problems).map(|value| match value {
        v1::drain::OnExpiry::Unspecified | v1::drain::OnExpiry::Leave => OnExpiry::Leave,
        v1::drain::OnExpiry::Reset => OnExpiry::Reset,
    });
    Some(Drain { timeout: timeout?, on_expiry: on_expiry? })
}

/// A drain as replies show it.
#[must_use]
pub fn drain_message(drain: &Drain) -> v1::Drain {
    let on_expiry = match drain.on_expiry {
        OnExpiry::Leave => v1::drain::OnExpiry::Leave,
        OnExpiry::Reset => v1::drain::OnExpiry::Reset,
    };
    v1::Drain { timeout: drain.timeout.map(scalar::duration_message), on_expiry: on_expiry.into() }
}
