//! What a caller may send, and what vipd sends at most. Published in `GetInfo.limits` and `docs/api.md`; whoever passes
//! one is answered RESOURCE_EXHAUSTED with the number.

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
/// Services on one node.
pub const SERVICES: usize = 200_000;
/// Frontends of one service.
pub const FRONTENDS_PER_SERVICE: usize = 1_000;
/// Endpoints of one service.
pub const ENDPOINTS_PER_SERVICE: usize = 60_000;
/// A service with its endpoints, encoded: what fits into one reply.
pub const SERVICE_BYTES: usize = REPLY_BYTES - 64 * 1024;
/// Operations in one Apply.
pub const OPERATIONS_PER_APPLY: usize = 10_000;
/// Prefixes in one list: source ranges, networks of an owner.
pub const PREFIXES_MOST: usize = 5_000;
/// Labels of one service.
pub const LABELS_MOST: usize = 64;
/// The note of a write, in bytes.
pub const NOTE_BYTES: usize = 256;

/// As GetInfo tells them.
#[must_use]
pub fn message() -> v1::Limits {
    v1::Limits {
        services: SERVICES as u64,
        frontends_per_service: FRONTENDS_PER_SERVICE as u64,
        endpoints_per_service: ENDPOINTS_PER_SERVICE as u64,
        service_bytes: SERVICE_BYTES as u64,
        request_bytes: REQUEST_BYTES as u64,
        operations_per_apply: OPERATIONS_PER_APPLY as u64,
    }
}
