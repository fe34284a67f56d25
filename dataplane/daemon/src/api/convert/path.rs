//! Where in a message a conversion stands, and what it found wrong so far.

use std::fmt;

use vipd_model::limits::PROBLEMS;
use vipd_model::problem::Rejection;
use vipd_model::{Problem, ProblemCode};

/// A place in a message, as a chain on the stack: it costs nothing until a problem needs its text.
#[derive(Clone, Copy, Debug)]
pub enum Path<'a> {
    /// The request itself.
    Root,
    /// A field of a message.
    Field(&'a Path<'a>, &'static str),
    /// An element of a list.
    Index(&'a Path<'a>, usize),
}

impl Path<'_> {
    /// A field of what stands here.
    #[must_use]
    pub fn field(&self, name: &'static str) -> Path<'_> {
        Path::Field(self, name)
    }

    /// An element of the list that stands here.
    #[must_use]
    pub fn index(&self, index: usize) -> Path<'_> {
        Path::Index(self, index)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// What is wrong with a message: the first [`PROBLEMS`], and how many more.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    list: Vec<Problem>,
    more: usize,
}

impl Problems {
    /// Nothing wrong yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more.
    pub fn add(&mut self, code: ProblemCode, at: &Path<'_>, message: impl Into<String>) {
        if self.list.len() < PROBLEMS {
            self.list.push(Problem::new(code, at.to_string(), message));
        } else {
            self.more += 1;
        }
    }

    /// A field that holds what it must not. `None`, so that a conversion can end with it.
    pub fn invalid<T>(&mut self, at: &Path<'_>, message: impl Into<String>) -> Option<T> {
        self.add(ProblemCode::Invalid, at, message);
        None
    }

    /// Those that another conversion found.
    pub fn extend(&mut self, problems: impl IntoIterator<Item = Problem>) {
        for problem in problems {
            if self.list.len() < PROBLEMS {
                self.list.push(problem);
            } else {
                self.more += 1;
            }
        }
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What was found; a last one counts those that were not listed.
    #[must_use]
    pub fn into_list(mut self) -> Vec<Problem> {
        if self.more > 0 {
            let message = format!("and {} more problems like these, not listed", self.more);
            self.list.push(Problem::invalid("", message));
        }
        self.list
    }

    /// The value, if nothing was found; else all that was.
    ///
    /// # Errors
    /// The problems, never empty.
    pub fn into_result<T>(mut self, value: Option<T>) -> Result<T, Rejection> {
        match value {
            Some(value) if self.is_empty() => Ok(value),
            _ => {
                if self.is_empty() {
                    self.add(ProblemCode::Invalid, &Path::Root, "could not be read");
                }
                Err(Rejection { problems: self.into_list() })
            }
        }
    }
}

/// Runs a conversion over the fields of a request.
///
/// # Errors
/// Every problem that the conversion found.
pub fn converted<T>(convert: impl FnOnce(&Path<'_>, &mut Problems) -> Option<T>) -> Result<T, Rejection> {
    let mut problems = Problems::new();
    let value = convert(&Path::Root, &mut problems);
    problems.into_result(value)
}
