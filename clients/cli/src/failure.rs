//! What went wrong, in words for the person at the keyboard, and the exit code for the script.

use std::io;
use std::process::ExitCode;

use vipd_client::tonic::Status;
use vipd_client::v1::Problem;
use vipd_client::{CallError, ConnectError, TargetError};

/// Told at the end of `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done, and in force
  1  refused: nothing was changed (also: verify found drift, apply --each refused a service)
  2  the command line or a file could not be understood; nothing was sent
  3  vipd was not reached, or did not answer in time: repeat the command, that is always safe
  4  accepted and stored, but not in force yet: vipd keeps trying, what was in force before still is";

/// Why a command did not end well.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was typed, or read from a file.
    Usage(String),
    /// No connection.
    Connect(ConnectError),
    /// vipd did not say OK.
    Call(CallError),
    /// What the command was about is not there, and vipd need not be asked to know it.
    Refused(String),
    /// Nobody reads what we print (`vipctl get | head`): no failure at all.
    Closed,
    /// What we print cannot be written.
    Output(io::Error),
}

impl Failure {
    /// Prints it and tells the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let (code, words) = match self {
            Self::Closed => return ExitCode::SUCCESS,
            Self::Usage(why) => (2, why.clone()),
            Self::Refused(why) => (1, why.clone()),
            Self::Connect(error) => (3, error.to_string()),
            Self::Output(error) => (1, format!("cannot write the output: {error}")),
            Self::Call(error) if error.is_accepted() => (4, call("accepted and stored, but not in force yet", error)),
            Self::Call(error) if error.is_unanswered() => (
                3,
                format!(
                    "no answer ({:?}): {}\nRepeat the command; that is always safe.",
                    error.code(),
                    error.message()
                ),
            ),
            Self::Call(error) => (1, call(&format!("refused ({:?}), nothing was changed", error.code()), error)),
        };
        eprintln!("vipctl: {words}");
        ExitCode::from(code)
    }
}

/// The problems one by one; the sentence about the whole call only where there are none.
fn call(headline: &str, error: &CallError) -> String {
    if error.problems().is_empty() {
        return format!("{headline}: {}", error.message());
    }
    let mut words = format!("{headline}:");
    for problem in error.problems() {
        words += &format!("\n  {}", sentence(problem));
    }
    // vipd says there how many more problems there are than fitted.
    if let Some((_, rest)) =
        error.message().rsplit_once(" (").filter(|(_, rest)| rest.contains(" fit into the details"))
    {
        words += &format!("\n  ({rest}");
    }
    words
}

/// `field: message`.
pub(crate) fn sentence(problem: &Problem) -> String {
    match problem.field.as_str() {
        "" => problem.message.clone(),
        field => format!("{field}: {}", problem.message),
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Call(status.into())
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::Closed } else { Self::Output(error) }
    }
}
