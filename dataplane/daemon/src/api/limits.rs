//! What vipd sends at most, and what a caller may send as `GetInfo.limits` and `docs/api.md` publish it. Whoever passes a
//! limit is answered RESOURCE_EXHAUSTED with the number.

use vipd_model::limits::Limits;
use vipd_proto::v1;

const MIB: usize = 1024 * 1024;

/// Largest request, encoded.
pub const REQUEST_BYTES: usize = 16 * MIB;
/// Largest message that vipd sends: below gRPC's default of 4 MiB, so that every client can read it.
pub const REPLY_BYTES: usize = 3 * MIB;
/// Where a page of a list ends.
pub const PAGE_BYTES: usize = MIB;
/// Services on a page when the caller names no number.
pub const PAGE_SERVICES: usize = 100;
/// Services on a page at most.
pub const PAGE_SERVICES_MOST: usize = 10_000;

/// As GetInfo tells them.
#[must_use]
pub fn message(limits: &Limits) -> v1::Limits {
    v1::Limits {
        services: limits.services as u64,
        frontends_per_service: limits.frontends_per_service as u64,
        endpoints_per_service: limits.endpoints_per_service as u64,
        service_bytes: limits.service_bytes as u64,
        request_bytes: REQUEST_BYTES as u64,
        operations_per_apply: limits.operations_per_apply as u64,
    }
}
