//! What the kernel says of its IPVS.

use std::fmt;

use crate::attr::{Attributes, Unknown};
use crate::error::Malformed;

/// A version of IPVS, which is not the kernel's: 1.2.1 since 2006.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number.
    pub major: u8,
    /// Second number.
    pub minor: u8,
    /// Third number.
    pub patch: u8,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What the kernel says of its IPVS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// Its version.
    pub version: Version,
    /// Rows of the table of connections; not a limit of them.
    pub connection_table_size: u32,
    /// What a later kernel says.
    pub unknown: Vec<Unknown>,
}

impl Info {
    /// Reads the attributes of an `IPVS_CMD_SET_INFO`, the kernel's answer.
    ///
    /// # Errors
    /// [`Malformed`] if something is missing or broken. What is unknown is kept.
    pub fn decode(attributes: Attributes<'_>) -> Result<Self, Malformed> {
        let (mut version, mut size, mut unknown) = (None, None, Vec::new());
        for attribute in attributes {
            let attribute = attribute?;
            // `IPVS_INFO_ATTR_*`.
            match attribute.kind {
                1 => version = Some(attribute.u32()?),
                2 => size = Some(attribute.u32()?),
                _ => unknown.push(attribute.into()),
            }
        }
        let [_, major, minor, patch] = version.ok_or(Malformed("no version of IPVS"))?.to_be_bytes();
        Ok(Self {
            version: Version { major, minor, patch },
            connection_table_size: size.ok_or(Malformed("no size of the connection table"))?,
            unknown,
        })
    }
}
