//! What a transaction that failed has left behind.

use vipd_engine::{Applied, ApplyError};
use vipd_model::ProblemCode;
use vipd_netlink::Error;

/// The failure for the caller: `refused` names the object that the kernel refused, where it told; `anything_before`:
/// earlier transactions of the same operations are in force.
pub(crate) fn not_applied(error: &Error, refused: Option<String>, anything_before: bool) -> ApplyError {
    // Absent what we delete, or there what we add: somebody changed it, and what we believe is wrong.
    let surprised = error.is_not_found() || error.is_exists();
    let unknown = anything_before || surprised || matches!(error, Error::AnswerLost { .. });
    ApplyError {
        code: ProblemCode::NotProgrammed,
        message: refused.unwrap_or_else(|| error.to_string()),
        applied: if unknown { Applied::Unknown } else { Applied::Nothing },
        retry: true,
    }
}
