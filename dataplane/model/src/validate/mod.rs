//! What a value must be to be accepted, whatever the rest of the state: ranges, families, duplicates, limits.
//!
//! Every violation names its field relative to the value checked (`frontends[1].address`) and says what to write
//! instead; the caller puts the value's own path before it. What depends on other services (contested frontends, loops)
//! is in `desired`, what depends on the engines in `choose`.

pub(crate) mod address;
pub(crate) mod definition;
pub(crate) mod endpoints;
pub(crate) mod owner;
pub(crate) mod size;

use crate::limits::PROBLEMS;
use crate::problem::{Problem, ProblemCode};

/// Violations found so far: the first [`PROBLEMS`] in full, the others counted.
#[derive(Debug, Default)]
pub(crate) struct Violations {
    problems: Vec<Problem>,
    more: usize,
}

impl Violations {
    /// A field that holds what it must not. The texts are made only for those that are listed.
    pub(crate) fn invalid(&mut self, field: impl FnOnce() -> String, message: impl Into<String>) {
        self.push(ProblemCode::Invalid, field, message);
    }

    /// More than a published limit.
    pub(crate) fn limit(&mut self, field: impl FnOnce() -> String, message: impl Into<String>) {
        self.push(ProblemCode::Limit, field, message);
    }

    fn push(&mut self, code: ProblemCode, field: impl FnOnce() -> String, message: impl Into<String>) {
        if self.problems.len() < PROBLEMS {
            self.problems.push(Problem::new(code, field(), message));
        } else {
            self.more += 1;
        }
    }

    /// Moves them to `into`, each with `root` before its field.
    pub(crate) fn report(mut self, root: &str, into: &mut Vec<Problem>) {
        if let (Some(last), true) = (self.problems.last_mut(), self.more > 0) {
            last.message = format!("{}; and {} more of the kind", last.message, self.more);
        }
        into.extend(self.problems.into_iter().map(|p| p.under(root)));
    }
}

/// Cuts a list of problems to what one answer may hold, and says so in the last one.
pub(crate) fn bounded(mut problems: Vec<Problem>) -> Vec<Problem> {
    let more = problems.len().saturating_sub(PROBLEMS);
    problems.truncate(PROBLEMS);
    if let (Some(last), true) = (problems.last_mut(), more > 0) {
        last.message = format!("{}; and {more} more problems", last.message);
    }
    problems
}

/// Like `field!("frontends[{i}].port")`: a closure that makes the path only when it is needed.
macro_rules! field {
    ($($part:tt)*) => { || format!($($part)*) };
}
pub(crate) use field;
