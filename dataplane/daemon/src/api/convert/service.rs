//! Services: the definition, with the scheduler that may stand in it.

use std::collections::BTreeMap;
use std::time::Duration;

use vipd_model::limits::LABEL_BYTES;
use vipd_model::{
    ClientAffinity, Contest, Definition, Drain, HealthCheck, NoEndpoints, OwnerName, Probe, ProxyProtocol, Scheduler,
    Service, ServiceKey,
};
use vipd_proto::v1;

use super::path::{Path, Problems};
use super::scalar;
use super::{endpoint, engine, frontend, scheduler};

/// Affinity that names no time-out: three hours, Kubernetes' default for `ClientIP`.
const AFFINITY_TIMEOUT: Duration = Duration::from_secs(3 * 3600);

/// What a `Service` message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Which.
    pub key: ServiceKey,
    /// What it is to be, every default filled in.
    pub definition: Definition,
    /// Absent: unchanged, or the default for a new service.
    pub scheduler: Option<Scheduler>,
}

/// A service as UpsertService, Apply and Sync send it.
pub fn parse(message: v1::Service, default: &OwnerName, at: &Path<'_>, problems: &mut Problems) -> Option<Declared> {
    let key = scalar::key(&message.owner, &message.name, default, at, problems);
    let scheduler = match &message.scheduler {
        None => Some(None),
        Some(scheduler) => scheduler::parse(scheduler, &at.field("scheduler"), problems).map(Some),
    };
    let definition = parse_definition(message, at, problems);
    Some(Declared { key: key?, definition: definition?, scheduler: scheduler? })
}

/// The definition alone: everything but the key and the scheduler.
pub fn parse_definition(message: v1::Service, at: &Path<'_>, problems: &mut Problems) -> Option<Definition> {
    let protocol = parse_protocol(message.protocol, &at.field("protocol"), problems);
    let frontends = frontend::parse_list(&message.frontends, &at.field("frontends"), problems);
    let client_affinity = match &message.client_affinity {
        None => Some(None),
        Some(affinity) => parse_affinity(affinity, &at.field("client_affinity"), problems).map(Some),
    };
    let group = scalar::text(message.group, LABEL_BYTES, &at.field("group"), problems);
    let labels = parse_labels(message.labels, &at.field("labels"), problems);
    let on_no_endpoints =
        parse_refusal(message.on_no_endpoints, NoEndpoints::Reject, &at.field("on_no_endpoints"), problems);
    let on_no_local_endpoints =
        parse_refusal(message.on_no_local_endpoints, NoEndpoints::Drop, &at.field("on_no_local_endpoints"), problems);
    let drain = match &message.drain {
        None => Some(Drain::default()),
        Some(drain) => endpoint::parse_drain(drain, &at.field("drain"), problems),
    };
    let on_contest =
        scalar::known(message.on_contest, &at.field("on_contest"), problems).map(|contest| match contest {
            v1::service::Contest::Unspecified | v1::service::Contest::Refuse => Contest::Refuse,
            v1::service::Contest::Wait => Contest::Wait,
        });
    let health_port = scalar::port(message.health_port, &at.field("health_port"), problems);
    let health_check = match message.health_check {
        None => Some(None),
        Some(check) => parse_health_check(check, &at.field("health_check"), problems).map(Some),
    };
    let engine = engine::parse(message.engine, &at.field("engine"), problems);
    let idle_timeout = scalar::duration(message.idle_timeout, &at.field("idle_timeout"), problems);
    let proxy_protocol = parse_proxy_protocol(message.proxy_protocol, &at.field("proxy_protocol"), problems);
    Some(Definition {
        protocol: protocol?,
        frontends: frontends?,
        client_affinity: client_affinity?,
        group: group?,
        labels: labels?,
        on_no_endpoints: on_no_endpoints?,
        on_no_local_endpoints: on_no_local_endpoints?,
        drain: drain?,
        on_contest: on_contest?,
        precedence: message.precedence,
        health_port: health_port?,
        health_check: health_check?,
        engine: engine?,
        idle_timeout: idle_timeout?,
        proxy_protocol: proxy_protocol?,
    })
}

/// A protocol by its number; UNSPECIFIED is TCP.
pub fn parse_protocol(number: i32, at: &Path<'_>, problems: &mut Problems) -> Option<vipd_model::Protocol> {
    scalar::known(number, at, problems).map(|protocol| match protocol {
        v1::Protocol::Unspecified | v1::Protocol::Tcp => vipd_model::Protocol::Tcp,
        v1::Protocol::Udp => vipd_model::Protocol::Udp,
        v1::Protocol::Sctp => vipd_model::Protocol::Sctp,
    })
}

fn parse_proxy_protocol(number: i32, at: &Path<'_>, problems: &mut Problems) -> Option<ProxyProtocol> {
    scalar::known(number, at, problems).map(|version| match version {
        v1::service::ProxyProtocol::Unspecified => ProxyProtocol::None,
        v1::service::ProxyProtocol::V1 => ProxyProtocol::V1,
        v1::service::ProxyProtocol::V2 => ProxyProtocol::V2,
    })
}

fn parse_refusal(number: i32, default: NoEndpoints, at: &Path<'_>, problems: &mut Problems) -> Option<NoEndpoints> {
    scalar::known(number, at, problems).map(|refusal| match refusal {
        v1::service::Refusal::Unspecified => default,
        v1::service::Refusal::Reject => NoEndpoints::Reject,
        v1::service::Refusal::Drop => NoEndpoints::Drop,
    })
}

fn parse_labels(
    labels: BTreeMap<String, String>,
    at: &Path<'_>,
    problems: &mut Problems,
) -> Option<BTreeMap<String, String>> {
    let count = labels.len();
    let mut kept = BTreeMap::new();
    for (name, value) in labels {
        if name.is_empty() {
            problems.invalid(at, "has a label without a name; every label needs one")?;
        }
        let name = scalar::text(name, LABEL_BYTES, at, problems);
        let value = scalar::text(value, LABEL_BYTES, at, problems);
        kept.extend(name.zip(value));
    }
    (kept.len() == count).then_some(kept)
}

fn parse_affinity(message: &v1::ClientAffinity, at: &Path<'_>, problems: &mut Problems) -> Option<ClientAffinity> {
    let timeout = scalar::duration(message.timeout, &at.field("timeout"), problems);
    let prefix_v4 = scalar::within(message.prefix_v4.unwrap_or(32), 32, &at.field("prefix_v4"), problems);
    let prefix_v6 = scalar::within(message.prefix_v6.unwrap_or(128), 128, &at.field("prefix_v6"), problems);
    Some(ClientAffinity { timeout: timeout?.unwrap_or(AFFINITY_TIMEOUT), prefix_v4: prefix_v4?, prefix_v6: prefix_v6? })
}

fn parse_health_check(message: v1::HealthCheck, at: &Path<'_>, problems: &mut Problems) -> Option<HealthCheck> {
    /// Bounds of a number of probes in a row, and what 0 stands for.
    fn in_a_row(number: u32, default: u32, at: &Path<'_>, problems: &mut Problems) -> Option<u32> {
        if number == 0 { Some(default) } else { scalar::within(number, 100, at, problems) }
    }
    let probe = match message.probe {
        Some(v1::health_check::Probe::Tcp(_)) => Some(Probe::Tcp),
        Some(v1::health_check::Probe::Http(http)) => parse_http_probe(http, &at.field("http"), problems),
        None => problems.invalid(at, "has no probe; give `tcp: {}` or `http: {path: \"/\"}`"),
    };
    let interval = scalar::duration(message.interval, &at.field("interval"), problems);
    let timeout = scalar::duration(message.timeout, &at.field("timeout"), problems);
    let rise = in_a_row(message.rise, 2, &at.field("rise"), problems);
    let fall = in_a_row(message.fall, 3, &at.field("fall"), problems);
    Some(HealthCheck {
        probe: probe?,
        interval: interval?.unwrap_or(Duration::from_secs(5)),
        timeout: timeout?.unwrap_or(Duration::from_secs(1)),
        rise: rise?,
        fall: fall?,
        remote_too: message.remote_too,
    })
}

fn parse_http_probe(message: v1::health_check::Http, at: &Path<'_>, problems: &mut Problems) -> Option<Probe> {
    let path = match message.path.as_str() {
        "" => Some("/".to_owned()),
        text if text.starts_with('/') && !text.contains(' ') => {
            scalar::text(message.path, LABEL_BYTES, &at.field("path"), problems)
        }
        text => problems
            .invalid(&at.field("path"), format!("{} must begin with a slash and have no spaces", scalar::quoted(text))),
    };
    let host = scalar::text(message.host, LABEL_BYTES, &at.field("host"), problems);
    let port = scalar::port(message.port, &at.field("port"), problems);
    Some(Probe::Http { path: path?, host: host?, port: port? })
}

/// A service as replies show it: its definition and scheduler.
#[must_use]
pub fn message(service: &Service) -> v1::Service {
    v1::Service {
        owner: service.key.owner.to_string(),
        name: service.key.name.to_string(),
        scheduler: Some(scheduler::message(&service.scheduler)),
        ..definition_message(&service.definition)
    }
}

/// A definition as replies show it, without key and scheduler.
#[must_use]
pub fn definition_message(definition: &Definition) -> v1::Service {
    let on_contest = match definition.on_contest {
        Contest::Refuse => v1::service::Contest::Refuse,
        Contest::Wait => v1::service::Contest::Wait,
    };
    let proxy_protocol = match definition.proxy_protocol {
        ProxyProtocol::None => v1::service::ProxyProtocol::Unspecified,
        ProxyProtocol::V1 => v1::service::ProxyProtocol::V1,
        ProxyProtocol::V2 => v1::service::ProxyProtocol::V2,
    };
    v1::Service {
        owner: String::new(),
        name: String::new(),
        protocol: protocol_message(definition.protocol).into(),
        frontends: definition.frontends.iter().map(frontend::message).collect(),
        scheduler: None,
        client_affinity: definition.client_affinity.as_ref().map(affinity_message),
        group: definition.group.clone(),
        labels: definition.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        on_no_endpoints: refusal_message(definition.on_no_endpoints).into(),
        on_no_local_endpoints: refusal_message(definition.on_no_local_endpoints).into(),
        drain: Some(endpoint::drain_message(&definition.drain)),
        on_contest: on_contest.into(),
        precedence: definition.precedence,
        health_port: definition.health_port.into(),
        health_check: definition.health_check.as_ref().map(health_check_message),
        engine: engine::message(definition.engine).into(),
        idle_timeout: definition.idle_timeout.map(scalar::duration_message),
        proxy_protocol: proxy_protocol.into(),
    }
}

/// A protocol's name in the API.
#[must_use]
pub fn protocol_message(protocol: vipd_model::Protocol) -> v1::Protocol {
    match protocol {
        vipd_model::Protocol::Tcp => v1::Protocol::Tcp,
        vipd_model::Protocol::Udp => v1::Protocol::Udp,
        vipd_model::Protocol::Sctp => v1::Protocol::Sctp,
    }
}

fn refusal_message(refusal: NoEndpoints) -> v1::service::Refusal {
    match refusal {
        NoEndpoints::Reject => v1::service::Refusal::Reject,
        NoEndpoints::Drop => v1::service::Refusal::Drop,
    }
}

fn affinity_message(affinity: &ClientAffinity) -> v1::ClientAffinity {
    v1::ClientAffinity {
        timeout: Some(scalar::duration_message(affinity.timeout)),
        prefix_v4: Some(affinity.prefix_v4.into()),
        prefix_v6: Some(affinity.prefix_v6.into()),
    }
}

fn health_check_message(check: &HealthCheck) -> v1::HealthCheck {
    let probe = match &check.probe {
        Probe::Tcp => v1::health_check::Probe::Tcp(v1::health_check::Tcp {}),
        Probe::Http { path, host, port } => v1::health_check::Probe::Http(v1::health_check::Http {
            path: path.clone(),
            host: host.clone(),
            port: (*port).into(),
        }),
    };
    v1::HealthCheck {
        probe: Some(probe),
        interval: Some(scalar::duration_message(check.interval)),
        timeout: Some(scalar::duration_message(check.timeout)),
        rise: check.rise,
        fall: check.fall,
        remote_too: check.remote_too,
    }
}
