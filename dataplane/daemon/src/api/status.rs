//! From our errors to `tonic::Status`: the one place. Every error carries `google.rpc.BadRequest` (which fields) and a
//! `vipd.v1.Problem` for each problem.
//!
//! Details travel in a header, and clients bound their headers: gRPC's C core (Python, C++, Ruby…) refuses more than
//! 8 KiB of them. So what is sent stays below that, and problems that do not fit are counted in the message.

use std::time::Duration;

use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::pb;
use vipd_model::problem::Rejection;
use vipd_model::{Problem, ProblemCode};
use vipd_proto::v1;

use super::convert::problem;
use crate::reconcile::CallError;

/// All details together, encoded; a third more in base64.
const DETAILS_BYTES: usize = 4_096;
/// The message in words. Percent-encoding can triple it.
const MESSAGE_BYTES: usize = 600;

/// What the caller of a refused or failed call is told.
#[must_use]
pub fn status(error: &CallError) -> Status {
    match error {
        CallError::Rejected(rejection) => rejected(rejection),
        CallError::NotProgrammed { delta, problems } => {
            let revision = delta.revision.0;
            let problems: Vec<_> = problems.iter().map(|(_, problem)| problem.clone()).collect();
            let first = problems.first().map(|p| p.message.as_str()).unwrap_or_default();
            let message = format!(
                "accepted and stored as revision {revision}, but not in force; what was in force before still is, and \
                 vipd retries: {first}"
            );
            build(Code::Unavailable, &message, &problems, Some(Duration::from_secs(1)))
        }
        CallError::NotStored(why) => {
            let message = format!("not stored, so nothing was changed: {why}");
            let problem = Problem::new(ProblemCode::Host, "", message.clone());
            build(Code::Unavailable, &message, &[problem], Some(Duration::from_secs(1)))
        }
        CallError::Overloaded => {
            let problem = Problem::new(ProblemCode::Limit, "", error.to_string());
            build(Code::ResourceExhausted, &error.to_string(), &[problem], Some(Duration::from_millis(100)))
        }
        CallError::Stopping => {
            let message = "the daemon is stopping; whether the call was accepted is not known: repeat it";
            let problem = Problem::new(ProblemCode::Host, "", message);
            build(Code::Unavailable, message, &[problem], Some(Duration::from_secs(1)))
        }
        CallError::Engine(why) => {
            let problem = Problem::new(ProblemCode::EngineUnusable, "", why.clone());
            build(Code::Unavailable, why, &[problem], Some(Duration::from_secs(1)))
        }
    }
}

/// A refusal: nothing was changed.
#[must_use]
pub fn rejected(rejection: &Rejection) -> Status {
    let code = rejection.problems.first().map_or(Code::Unknown, |problem| code(problem.code));
    let message = match rejection.problems.as_slice() {
        [] => "refused".to_owned(),
        [only] => only.to_string(),
        [first, rest @ ..] => format!("{first} (and {} more problems, in the details)", rest.len()),
    };
    build(code, &message, &rejection.problems, None)
}

/// A limit of the API itself that a caller has reached.
#[must_use]
pub fn limit(message: impl Into<String>) -> Status {
    rejected(&Problem::new(ProblemCode::Limit, "", message).into())
}

/// The status code that goes with a problem, as API.md lists them.
fn code(code: ProblemCode) -> Code {
    match code {
        ProblemCode::Invalid => Code::InvalidArgument,
        ProblemCode::NoSuchService => Code::NotFound,
        ProblemCode::FrontendTaken => Code::AlreadyExists,
        ProblemCode::EngineLacks | ProblemCode::EngineUnusable | ProblemCode::LargeRemoval => Code::FailedPrecondition,
        ProblemCode::StaleRevision | ProblemCode::Superseded => Code::Aborted,
        ProblemCode::Limit => Code::ResourceExhausted,
        ProblemCode::NotAllowed => Code::PermissionDenied,
        ProblemCode::NotProgrammed | ProblemCode::AddressInUse | ProblemCode::Host => Code::Unavailable,
        ProblemCode::SchedulerReplaced
        | ProblemCode::EngineReplaced
        | ProblemCode::EngineChosen
        | ProblemCode::DuplicatesMerged
        | ProblemCode::LeaseExpired
        | ProblemCode::Drift => Code::FailedPrecondition,
    }
}

fn build(code: Code, message: &str, problems: &[Problem], retry: Option<Duration>) -> Status {
    let (details, listed) = details(problems, retry);
    let mut message = shortened(message).to_owned();
    if listed < problems.len() {
        message.push_str(&format!(" ({} of {} problems fit into the details)", listed, problems.len()));
    }
    let status = pb::Status { code: code.into(), message: message.clone(), details };
    Status::with_details(code, message, status.encode_to_vec().into())
}

/// As many problems as fit, each as a violation of BadRequest and as a Problem. Returns how many those are.
fn details(problems: &[Problem], retry: Option<Duration>) -> (Vec<prost_types::Any>, usize) {
    let mut bad_request = pb::BadRequest::default();
    let mut anys = Vec::new();
    let mut bytes = 0;
    let mut listed = 0;
    for one in problems {
        let mut detail = problem::message(one);
        detail.message.truncate(shortened(&detail.message).len());
        let violation = pb::bad_request::FieldViolation {
            field: detail.field.clone(),
            description: detail.message.clone(),
            ..Default::default()
        };
        let any = any("vipd.v1.Problem", &detail);
        bytes += any.encoded_len() + violation.encoded_len() + 8;
        if bytes > DETAILS_BYTES {
            break;
        }
        bad_request.field_violations.push(violation);
        anys.push(any);
        listed += 1;
    }
    let mut details = Vec::new();
    if !bad_request.field_violations.is_empty() {
        details.push(any("google.rpc.BadRequest", &bad_request));
    }
    if let Some(delay) = retry {
        let retry_delay = prost_types::Duration::try_from(delay).ok();
        details.push(any("google.rpc.RetryInfo", &pb::RetryInfo { retry_delay }));
    }
    details.extend(anys);
    (details, listed)
}

fn any(name: &str, message: &impl prost::Message) -> prost_types::Any {
    prost_types::Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}

/// The beginning of a text that fits the message of a status.
fn shortened(text: &str) -> &str {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MESSAGE_BYTES).last();
    &text[..end.unwrap_or_default()]
}

/// The problems that a status carries, for clients and tests.
#[must_use]
pub fn problems(status: &Status) -> Vec<v1::Problem> {
    let Ok(details) = pb::Status::decode(status.details()) else { return Vec::new() };
    let is_problem = |any: &&prost_types::Any| any.type_url.ends_with("/vipd.v1.Problem");
    details.details.iter().filter(is_problem).filter_map(|any| v1::Problem::decode(any.value.as_slice()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt as _;

    use super::*;

    #[test]
    fn a_refusal_names_fields_in_both_shapes() {
        let problems = vec![
            Problem::invalid("service.frontends[1].address", "is missing"),
            Problem::new(ProblemCode::Limit, "labels", "129 labels; the most is 128"),
        ];
        let status = rejected(&Rejection { problems });
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "service.frontends[1].address: is missing (and 1 more problems, in the details)");
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(violations[0].field, "service.frontends[1].address");
        assert_eq!(violations[1].description, "129 labels; the most is 128");
        let ours = super::problems(&status);
        assert_eq!(ours[1].code(), v1::problem::Code::Limit);
        assert_eq!(ours[0].field, "service.frontends[1].address");
    }

    #[test]
    fn details_fit_into_the_headers_of_every_client() {
        let problem = Problem::invalid("endpoints[17].address", "ü".repeat(4_000));
        let status = rejected(&Rejection { problems: vec![problem; 100] });
        let base64 = status.details().len().div_ceil(3) * 4;
        assert!(base64 + 3 * status.message().len() < 8 * 1024, "{base64} {}", status.message().len());
        assert!(!super::problems(&status).is_empty());
        assert!(status.message().contains("of 100 problems fit"), "{}", status.message());
    }

    #[test]
    fn not_programmed_says_what_holds_and_when_to_look_again() {
        let delta = vipd_model::Delta { revision: vipd_model::Revision(17), ..Default::default() };
        let key = vipd_model::ServiceKey::new("ops", "web").unwrap();
        let problem = Problem::new(ProblemCode::NotProgrammed, "", "nft: no such table");
        let status = status(&CallError::NotProgrammed { delta: delta.into(), problems: vec![(key.into(), problem)] });
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("revision 17"), "{}", status.message());
        assert!(status.get_details_retry_info().is_some());
        assert_eq!(super::problems(&status)[0].code(), v1::problem::Code::NotProgrammed);
    }
}
