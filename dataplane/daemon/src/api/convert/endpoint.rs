//! Endpoints and drains.

use std::net::IpAddr;
use std::time::Duration;

use vipd_model::{Drain, Endpoint, EndpointKey, EndpointState, OnExpiry};
use vipd_proto::v1;

use super::path::{Path, Problems};
use super::scalar::{self, Span, TEXT_MAX};
use crate::api::limits::{ENDPOINTS_PER_SERVICE, SERVICE_BYTES};

/// A list of endpoints as sent: unsorted, perhaps with one key twice.
pub fn parse_list(messages: &[v1::Endpoint], at: &Path<'_>, problems: &mut Problems) -> Option<Vec<Endpoint>> {
    check_size(messages, at, problems)?;
    let mut endpoints = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        endpoints.extend(parse(message, &at.index(index), problems));
    }
    (endpoints.len() == messages.len()).then_some(endpoints)
}

fn check_size(messages: &[v1::Endpoint], at: &Path<'_>, problems: &mut Problems) -> Option<()> {
    let count = messages.len();
    if count > ENDPOINTS_PER_SERVICE {
        return problems
            .limit(at, format!("has {count} endpoints; the most in one service is {ENDPOINTS_PER_SERVICE}"));
    }
    let bytes: usize = messages.iter().map(prost::Message::encoded_len).sum();
    if bytes > SERVICE_BYTES {
        return problems.limit(at, format!("has {bytes} bytes; the most for one service is {SERVICE_BYTES}"));
    }
    Some(())
}

/// The endpoints that a PatchEndpoints removes: only address and port are read.
pub fn parse_keys(messages: &[v1::Endpoint], at: &Path<'_>, problems: &mut Problems) -> Option<Vec<EndpointKey>> {
    check_size(messages, at, problems)?;
    let mut keys = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        keys.extend(parse_key(message, &at.index(index), problems));
    }
    (keys.len() == messages.len()).then_some(keys)
}

fn parse_key(message: &v1::Endpoint, at: &Path<'_>, problems: &mut Problems) -> Option<EndpointKey> {
    let address = match scalar::address(&message.address).and_then(unicast) {
        Ok(address) => Some(address),
        Err(why) => problems.invalid(&at.field("address"), why),
    };
    let port = scalar::port_or_zero(message.port, &at.field("port"), problems);
    Some(EndpointKey { address: address?, port: port? })
}

/// Refuses what no host can have, with the reason.
fn unicast(address: IpAddr) -> Result<IpAddr, String> {
    let kind = if address.is_unspecified() {
        "the unspecified address"
    } else if address.is_multicast() {
        "a multicast address"
    } else if address == IpAddr::V4(std::net::Ipv4Addr::BROADCAST) {
        "the broadcast address"
    } else {
        return Ok(address);
    };
    Err(format!("{address} is {kind}; an endpoint is one host"))
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
        text => scalar::text(text.to_owned(), TEXT_MAX, &at.field("target"), problems).map(|text| Some(text.into())),
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
    let span = Span { least: Duration::ZERO, most: scalar::YEAR };
    let timeout = scalar::duration(message.timeout, span, &at.field("timeout"), problems);
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
