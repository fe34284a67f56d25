//! Problems as statuses, notes and error details carry them.

use vipd_model::problem::Refused;
use vipd_model::{Problem, ProblemCode};
use vipd_proto::v1;

use super::scalar::timestamp;

/// A problem.
#[must_use]
pub fn message(problem: &Problem) -> v1::Problem {
    v1::Problem {
        code: code(problem.code).into(),
        field: problem.field.clone(),
        message: problem.message.clone(),
        since: problem.since.map(timestamp),
    }
}

/// Several.
#[must_use]
pub fn messages(problems: &[Problem]) -> Vec<v1::Problem> {
    problems.iter().map(message).collect()
}

/// An operation that was refused while others were not.
#[must_use]
pub fn refused(refused: &Refused) -> v1::Refused {
    v1::Refused {
        index: refused.index,
        owner: refused.owner.clone(),
        name: refused.name.clone(),
        problems: messages(&refused.problems),
    }
}

/// A problem's kind.
#[must_use]
pub fn code(code: ProblemCode) -> v1::problem::Code {
    use v1::problem::Code;
    match code {
        ProblemCode::Invalid => Code::Invalid,
        ProblemCode::NoSuchService => Code::NoSuchService,
        ProblemCode::FrontendTaken => Code::FrontendTaken,
        ProblemCode::EngineLacks => Code::EngineLacks,
        ProblemCode::EngineUnusable => Code::EngineUnusable,
        ProblemCode::StaleRevision => Code::StaleRevision,
        ProblemCode::Superseded => Code::Superseded,
        ProblemCode::Limit => Code::Limit,
        ProblemCode::NotAllowed => Code::NotAllowed,
        ProblemCode::LargeRemoval => Code::LargeRemoval,
        ProblemCode::NotProgrammed => Code::NotProgrammed,
        ProblemCode::SchedulerReplaced => Code::SchedulerReplaced,
        ProblemCode::EngineReplaced => Code::EngineReplaced,
        ProblemCode::DuplicatesMerged => Code::DuplicatesMerged,
        ProblemCode::LeaseExpired => Code::LeaseExpired,
        ProblemCode::AddressInUse => Code::AddressInUse,
        ProblemCode::Drift => Code::Drift,
        ProblemCode::EngineChosen => Code::EngineChosen,
        ProblemCode::Host => Code::Host,
    }
}
