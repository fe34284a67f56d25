//! What can go wrong between us and the kernel, told so that an operator can act on it.
//!
//! A [`Refusal`] is the kernel's "no" to one message of ours; the other cases are about the conversation itself.
//! Callers decide by [`Error::is_unsupported`] and its siblings, not by numbers.

use std::{fmt, io};

/// The kernel refused one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What we were doing, in words: "commit a batch of 3 operations to nf_tables".
    pub operation: String,
    /// Which object of ours: "add 12 elements to vipd/capture4, element 3".
    pub object: Option<String>,
    /// Index of the failed operation in its batch, counted in the order in which they were added.
    pub operation_index: Option<usize>,
    /// Index of the element within that operation, when the kernel's offset names one.
    pub element_index: Option<usize>,
    /// Positive errno.
    pub errno: i32,
    /// Text of the extended acknowledgement, when the kernel gave one.
    pub text: Option<String>,
    /// How many further messages of the same batch were refused as well.
    pub more: usize,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel refused to {}", self.operation)?;
        if let Some(object) = &self.object {
            write!(f, ", at: {object}")?;
        }
        write!(f, ": {}", io::Error::from_raw_os_error(self.errno))?;
        if let Some(text) = &self.text {
            write!(f, ": {text}")?;
        }
        if self.more > 0 {
            write!(f, " (and {} more messages)", self.more)?;
        }
        if self.errno == libc::EPERM {
            write!(f, "; this needs CAP_NET_ADMIN in the network namespace's user namespace")?;
        }
        Ok(())
    }
}

/// An error of a netlink conversation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel said no; nothing of the message or batch is in force.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// A system call on the socket itself failed.
    #[error("cannot {operation}: {source}")]
    Socket {
        /// What we were doing.
        operation: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The receive buffer overflowed before the answer came: the change may or may not be in force. Read back.
    #[error("cannot tell whether the kernel did {operation}: its answer was lost (ENOBUFS); read the state back")]
    AnswerLost {
        /// What we were doing.
        operation: String,
    },
    /// Other programs changed the tables during every attempt to read them.
    #[error("cannot {operation}: interrupted by other programs' changes {attempts} times in a row; try again")]
    Interrupted {
        /// What we were doing.
        operation: String,
        /// How often it was tried.
        attempts: usize,
    },
    /// The kernel's answer is not what its headers promise.
    #[error("cannot {operation}: the kernel's answer makes no sense: {what}")]
    Malformed {
        /// What we were doing.
        operation: String,
        /// What was wrong with the answer.
        what: &'static str,
    },
}

impl Error {
    /// The kernel's errno, if it refused or the socket failed.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(refusal) => Some(refusal.errno),
            Self::Socket { source, .. } => source.raw_os_error(),
            Self::AnswerLost { .. } | Self::Interrupted { .. } | Self::Malformed { .. } => None,
        }
    }

    /// The object named is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.errno == libc::ENOENT)
    }

    /// The object is already there, perhaps with other contents.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.errno == libc::EEXIST)
    }

    /// We may not, or the object has another owner.
    #[must_use]
    pub fn is_not_permitted(&self) -> bool {
        matches!(self.errno(), Some(libc::EPERM | libc::EACCES))
    }

    /// This kernel does not know what we asked for.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self.errno(),
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::EINVAL | libc::ENOSYS)
        )
    }

    pub(crate) fn socket(operation: impl Into<String>, source: io::Error) -> Self {
        Self::Socket { operation: operation.into(), source }
    }
}
