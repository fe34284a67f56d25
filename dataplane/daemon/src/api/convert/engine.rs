//! Engines and Features.

use vipd_model::{EngineKind, Feature};
use vipd_proto::v1;

use super::path::{Path, Problems};
use super::scalar;

/// An engine by its number; UNSPECIFIED is none.
pub fn parse(number: i32, at: &Path<'_>, problems: &mut Problems) -> Option<Option<EngineKind>> {
    Some(match scalar::known(number, at, problems)? {
        v1::Engine::Unspecified => None,
        v1::Engine::Userspace => Some(EngineKind::Userspace),
        v1::Engine::Iptables => Some(EngineKind::Iptables),
        v1::Engine::Nftables => Some(EngineKind::Nftables),
        v1::Engine::Ipvs => Some(EngineKind::Ipvs),
    })
}

/// An engine, or UNSPECIFIED.
#[must_use]
pub fn message(engine: Option<EngineKind>) -> v1::Engine {
    match engine {
        None => v1::Engine::Unspecified,
        Some(EngineKind::Userspace) => v1::Engine::Userspace,
        Some(EngineKind::Iptables) => v1::Engine::Iptables,
        Some(EngineKind::Nftables) => v1::Engine::Nftables,
        Some(EngineKind::Ipvs) => v1::Engine::Ipvs,
    }
}

/// A Feature: the API has the same names, with a prefix.
#[must_use]
pub fn feature(feature: Feature) -> v1::Feature {
    v1::Feature::from_str_name(&format!("FEATURE_{}", feature.name())).unwrap_or_default()
}
