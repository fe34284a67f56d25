//! Names of owners and services, and the key made of both.

use std::fmt;
use std::sync::Arc;

/// Longest name of an owner or a service, in bytes of UTF-8.
pub const NAME_MAX: usize = 253;

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing between the quotes.
    #[error("is empty; give 1 to {NAME_MAX} bytes of printable text")]
    Empty,
    /// Longer than [`NAME_MAX`].
    #[error("has {0} bytes; the most is {NAME_MAX}")]
    TooLong(usize),
    /// A control character, a line separator or the like.
    #[error("has the unprintable character {0:?} at byte {1}; use printable text")]
    Unprintable(char, usize),
}

fn check(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > NAME_MAX {
        return Err(NameError::TooLong(text.len()));
    }
    // Beside the control characters: line and paragraph separators and the bidirectional overrides, which would let a
    // name rewrite the line of the log or table that shows it.
    let unprintable = |c: char| {
        c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    match text.char_indices().find(|&(_, c)| unprintable(c)) {
        Some((at, c)) => Err(NameError::Unprintable(c, at)),
        None => Ok(()),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text: 1 to [`NAME_MAX`] bytes, printable.
            ///
            /// # Errors
            /// What is wrong with it, as a predicate: "is empty; …".
            pub fn new(text: &str) -> Result<Self, NameError> {
                check(text).map(|()| Self(text.into()))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name!(
    /// Who declares: `k8s`, `nomad`, `ops`.
    OwnerName
);
name!(
    /// A service's name within its owner, e.g. `shop/web:http`.
    ServiceName
);

/// What identifies a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Who declared it.
    pub owner: OwnerName,
    /// Its name there.
    pub name: ServiceName,
}

impl ServiceKey {
    /// Both names, checked.
    ///
    /// # Errors
    /// The first name that is none.
    pub fn new(owner: &str, name: &str) -> Result<Self, NameError> {
        Ok(Self { owner: OwnerName::new(owner)?, name: ServiceName::new(name)? })
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_printable() {
        assert_eq!(ServiceName::new("shop/web:http").unwrap().as_str(), "shop/web:http");
        assert_eq!(ServiceName::new(""), Err(NameError::Empty));
        assert_eq!(ServiceName::new(&"x".repeat(254)), Err(NameError::TooLong(254)));
        assert_eq!(ServiceName::new("a\nb"), Err(NameError::Unprintable('\n', 1)));
        assert!(ServiceName::new("a\u{202e}b").is_err(), "a name must not reorder the line that shows it");
        assert!(ServiceName::new(&"é".repeat(126)).is_ok());
    }
}
