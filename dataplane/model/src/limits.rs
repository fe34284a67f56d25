//! Published limits: what a node accepts at most, so that one caller's mistake stays that caller's.

/// Text of a group, a label's key or a label's value, in bytes.
pub const LABEL_BYTES: usize = 1024;

/// Text of `Endpoint.target`, in bytes.
pub const TARGET_BYTES: usize = 1024;

/// Text of a call's note, in bytes (`WriteOptions.note`); held by the API, which has the field's path.
pub const NOTE_BYTES: usize = 256;

/// Problems listed in one answer; more are counted in the last one.
pub const PROBLEMS: usize = 100;

/// Refused operations listed in one answer (`SyncResponse.refused`).
pub const REFUSED: usize = 1000;

/// Longest duration of a drain or an idle time-out: a year. Longer ones are typing errors, and this keeps deadlines far
/// from the end of every clock's range.
pub const LONGEST: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);

/// What `GetInfo` publishes, and the rule for large removals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of the node, all owners together.
    pub services: usize,
    /// Of one service.
    pub frontends_per_service: usize,
    /// Of one service, after merging.
    pub endpoints_per_service: usize,
    /// One service with its endpoints, encoded. With its status it fits into the 3 MiB that vipd sends at most, so that
    /// clients with gRPC's default limit of 4 MiB can read it.
    pub service_bytes: usize,
    /// One request, encoded; held by the API, not here.
    pub request_bytes: usize,
    /// Of one Apply.
    pub operations_per_apply: usize,
    /// Of one service.
    pub labels_per_service: usize,
    /// Of one frontend.
    pub source_ranges_per_frontend: usize,
    /// A Sync that would remove more than this share of the owner's services, or of its endpoints, is refused; percent.
    pub large_removal_percent: u8,
    /// Removing no more services than this is never large, so that an owner of two is not asked to confirm each one.
    pub small_removal_services: usize,
    /// Likewise for endpoints.
    pub small_removal_endpoints: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            services: 200_000,
            frontends_per_service: 1000,
            endpoints_per_service: 60_000,
            service_bytes: (3 << 20) - (64 << 10),
            request_bytes: 16 << 20,
            operations_per_apply: 10_000,
            labels_per_service: 64,
            source_ranges_per_frontend: 5000,
            large_removal_percent: 50,
            small_removal_services: 2,
            small_removal_endpoints: 4,
        }
    }
}
