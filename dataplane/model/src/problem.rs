//! Problems: what a person should know, as the reason of a refusal or as the status of a service.

use std::fmt;

use crate::Millis;

/// The kind of a problem; the same names as `vipd.v1.Problem.Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "documented in service.proto, whose names these are")]
pub enum ProblemCode {
    Invalid,
    NoSuchService,
    FrontendTaken,
    EngineLacks,
    EngineUnusable,
    StaleRevision,
    Superseded,
    Limit,
    NotAllowed,
    LargeRemoval,
    NotProgrammed,
    SchedulerReplaced,
    EngineReplaced,
    DuplicatesMerged,
    LeaseExpired,
    AddressInUse,
    Drift,
    EngineChosen,
    Host,
}

/// Something a person should know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    /// Its kind.
    pub code: ProblemCode,
    /// Path in the request, such as `service.frontends[1].address`; empty where no field is at fault.
    pub field: String,
    /// A sentence: what, why, and what to do.
    pub message: String,
    /// Since when it stands; absent in refusals.
    pub since: Option<Millis>,
}

impl Problem {
    /// A problem with a field.
    pub fn new(code: ProblemCode, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code, field: field.into(), message: message.into(), since: None }
    }

    /// A field that holds what it must not.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ProblemCode::Invalid, field, message)
    }

    /// The same problem with `prefix` before its field path, as when an operation stands inside an Apply.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        if !prefix.is_empty() {
            self.field = if self.field.is_empty() { prefix.to_owned() } else { format!("{prefix}.{}", self.field) };
        }
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.field, self.message) }
    }
}

/// One operation of several that was refused while the others were not (Apply EACH, Sync).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Of the operation or declare.
    pub index: u32,
    /// The owner that it names, as sent or as defaulted; it may be what was refused.
    pub owner: String,
    /// The service that it names, likewise.
    pub name: String,
    /// Why; never empty.
    pub problems: Vec<Problem>,
}

/// Why a command was refused whole. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct Rejection {
    /// Never empty; the first one gives the status code.
    pub problems: Vec<Problem>,
}

impl Rejection {
    /// The same refusal with `prefix` before each field path.
    #[must_use]
    pub fn under(self, prefix: &str) -> Self {
        Self { problems: self.problems.into_iter().map(|p| p.under(prefix)).collect() }
    }
}

impl From<Problem> for Rejection {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}
