//! GetInfo: what this node is, can, and how it fares.

use vipd_engine::Sysctl;
use vipd_model::feature::Ability;
use vipd_model::{EngineKind, choose};
use vipd_proto::v1;

use super::convert::{engine, problem, scheduler};
use super::limits;
use crate::reconcile::Core;
use crate::reconcile::control::Findings;

/// Grows with every field or value added to v1.
pub(super) const API_LEVEL: u32 = 1;

/// The answer; `live` is what the engines found just now.
pub(super) fn info(core: &Core, live: &Findings) -> v1::GetInfoResponse {
    let engines = core.desired.engines();
    let services = core.services_by_engine();
    let mut findings = problem::messages(&core.findings);
    findings.extend(core.store_problem.iter().chain(&core.store_trouble).chain(&live.problems).map(problem::message));
    findings.extend(core.own_addresses_in_virtual_ranges().iter().map(problem::message));
    let reason = match core.desired.default_engine() {
        Some(_) => "set by SetDefaultEngine; kept over restarts".to_owned(),
        None => engines.default_reason.clone(),
    };
    v1::GetInfoResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api_level: API_LEVEL,
        epoch: core.epoch.clone(),
        revision: core.desired.revision().0,
        programmed_revision: core.programmed_revision().0,
        failed_services: core.tracks.failed().len() as u64,
        digest: core.desired.digest(),
        kernel: kernel(),
        engines: engines
            .abilities
            .iter()
            .map(|(kind, ability)| engine_info(*kind, ability, services.get(kind).copied().unwrap_or_default()))
            .collect(),
        default_engine: engine::message(choose::default_engine(engines, core.desired.default_engine())).into(),
        default_engine_reason: reason,
        findings,
        limits: Some(limits::message(core.desired.limits())),
        holding: core.holding().is_some(),
        sysctls: live.sysctls.iter().map(sysctl).collect(),
    }
}

fn sysctl(changed: &Sysctl) -> v1::get_info_response::Sysctl {
    let Sysctl { name, value, before } = changed.clone();
    v1::get_info_response::Sysctl { name, value, before }
}

fn engine_info(kind: EngineKind, ability: &Ability, services: u64) -> v1::EngineInfo {
    v1::EngineInfo {
        engine: engine::message(Some(kind)).into(),
        usable: ability.usable,
        reason: ability.reason.clone(),
        features: ability.features.iter().map(|feature| engine::feature(*feature).into()).collect(),
        algorithms: ability.algorithms.iter().map(|algorithm| scheduler::algorithm(*algorithm).into()).collect(),
        services,
    }
}

/// Name and release of the kernel: `Linux 6.1.0-28-amd64`.
#[must_use]
pub fn kernel() -> String {
    match nix::sys::utsname::uname() {
        Ok(name) => format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
        Err(_) => "unknown".to_owned(),
    }
}
