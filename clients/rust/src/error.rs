//! What vipd answers when it does not answer OK.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::{StatusExt as _, pb};
use vipd_proto::v1::{Problem, problem};

/// A call that was refused, or accepted and not in force yet; or nobody answered.
#[derive(Clone, Debug)]
pub struct CallError {
    code: Code,
    message: String,
    problems: Vec<Problem>,
    retry_after: Option<Duration>,
}

impl CallError {
    /// The gRPC code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// One sentence about the whole call.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What is wrong, each with the path of its field in the request. Empty when it was not vipd that answered.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The change was accepted and stored; it is not in force yet, and vipd keeps trying. False says nothing when
    /// nobody answered ([`CallError::is_unanswered`]).
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.code == Code::Unavailable && self.problems.iter().any(|p| p.code() == problem::Code::NotProgrammed)
    }

    /// Nobody answered, or not in time: whether the change was accepted is not known. Repeating the call finds out.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        let by_others = self.problems.is_empty();
        matches!(self.code, Code::DeadlineExceeded | Code::Cancelled) || (self.code == Code::Unavailable && by_others)
    }

    /// The same call may succeed later as it stands. Repeating is always safe: what is so already is not done again.
    #[must_use]
    pub fn may_repeat(&self) -> bool {
        let overloaded = self.code == Code::ResourceExhausted && self.retry_after.is_some();
        overloaded || self.code == Code::Unavailable || self.is_unanswered()
    }

    /// Gives problems other paths of their fields, for a caller whose own caller knows the request by other names; `None`
    /// leaves one as it is.
    pub fn rename_fields(&mut self, rename: impl Fn(&str) -> Option<String>) {
        for problem in &mut self.problems {
            if let Some(field) = rename(&problem.field) {
                problem.field = field;
            }
        }
    }

    /// When vipd suggests to repeat the call.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for CallError {}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        let mut problems = problems(&status);
        if problems.is_empty() {
            let violations = status.get_details_bad_request().map(|bad| bad.field_violations).unwrap_or_default();
            let invalid = problem::Code::Invalid.into();
            problems.extend(violations.into_iter().map(|violation| Problem {
                code: invalid,
                field: violation.field,
                message: violation.description,
                since: None,
            }));
        }
        let retry_after = status.get_details_retry_info().and_then(|info| info.retry_delay);
        let (mut code, mut message) = (status.code(), status.message().to_owned());
        // A cause means that this status was made here, of a connection that broke: vipd sends none. tonic calls some of
        // those Unknown, such as a TLS alert after the handshake.
        if let Some(cause) = status.source() {
            code = if code == Code::Unknown { Code::Unavailable } else { code };
            message = format!("{message}: {}", innermost(cause));
        }
        Self { code, message, problems, retry_after }
    }
}

/// The cause at the bottom; what lies above it only says "transport error".
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// The `vipd.v1.Problem`s among the details, which travel as a `google.rpc.Status`.
fn problems(status: &Status) -> Vec<Problem> {
    let details = pb::Status::decode(status.details()).map(|status| status.details).unwrap_or_default();
    let ours = details.iter().filter(|any| any.type_url.ends_with("/vipd.v1.Problem"));
    ours.filter_map(|any| Problem::decode(any.value.as_slice()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    fn with_details(code: Code, problems: &[Problem]) -> Status {
        let details = problems.iter().map(|problem| prost_types::Any {
            type_url: "type.googleapis.com/vipd.v1.Problem".to_owned(),
            value: problem.encode_to_vec(),
        });
        let status = pb::Status { code: code.into(), message: "in words".to_owned(), details: details.collect() };
        Status::with_details(code, "in words", status.encode_to_vec().into())
    }

    fn problem(code: problem::Code, field: &str) -> Problem {
        Problem { code: code.into(), field: field.to_owned(), message: "why".to_owned(), since: None }
    }

    #[test]
    fn problems_are_found_among_the_details() {
        let sent = [problem(problem::Code::Invalid, "service.frontends[1].address")];
        let error = CallError::from(with_details(Code::InvalidArgument, &sent));
        assert_eq!(error.problems(), sent);
        assert!(!error.is_accepted() && !error.is_unanswered() && !error.may_repeat());
    }

    #[test]
    fn a_bad_request_alone_is_understood_too() {
        let details = ErrorDetails::with_bad_request_violation("labels", "too many");
        let error = CallError::from(Status::with_error_details(Code::InvalidArgument, "no", details));
        assert_eq!((error.problems()[0].field.as_str(), error.problems()[0].message.as_str()), ("labels", "too many"));
    }

    #[test]
    fn accepted_but_not_in_force_is_no_refusal_and_no_silence() {
        let error = CallError::from(with_details(Code::Unavailable, &[problem(problem::Code::NotProgrammed, "")]));
        assert!(error.is_accepted() && error.may_repeat() && !error.is_unanswered());
    }

    #[test]
    fn a_connection_that_broke_is_silence_too() {
        let broken = std::io::Error::other("received fatal alert: UnknownCA");
        let error = CallError::from(Status::from_error(Box::new(broken)));
        assert!(error.is_unanswered() && error.message().ends_with("UnknownCA"), "{error:?}");
    }

    #[test]
    fn silence_says_nothing_about_acceptance() {
        for status in [Status::unavailable("tcp connect error"), Status::deadline_exceeded("1 s")] {
            let error = CallError::from(status);
            assert!(error.is_unanswered() && error.may_repeat() && !error.is_accepted());
        }
        let not_stored = CallError::from(with_details(Code::Unavailable, &[problem(problem::Code::Host, "")]));
        assert!(!not_stored.is_unanswered(), "vipd itself answered");
    }
}
