//! Short names, as the kernel keeps them: schedulers, persistence engines, network interfaces.
//!
//! All three are arrays of 16 bytes with a NUL (`IP_VS_SCHEDNAME_MAXLEN`, `IP_VS_PENAME_MAXLEN`, `IP_VS_IFNAME_MAXLEN`),
//! so a name is a small value that is copied, not allocated.

use std::fmt;
use std::str::FromStr;

use crate::error::Invalid;

/// A name of at most 15 bytes without NUL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Name([u8; Name::ROOM]);

impl Name {
    const ROOM: usize = 16;
    /// The longest name, in bytes.
    pub const LONGEST: usize = Self::ROOM - 1;

    /// A name of our own sources; one that is too long is cut, which the tests of its constants would see.
    const fn known(text: &str) -> Self {
        let (mut name, mut at) = ([0; Self::ROOM], 0);
        while at < text.len() && at < Self::LONGEST {
            name[at] = text.as_bytes()[at];
            at += 1;
        }
        Self(name)
    }

    /// What the kernel sent; it never sends more than fits.
    pub(crate) fn received(bytes: &[u8]) -> Self {
        let mut name = [0; Self::ROOM];
        for (to, from) in name.iter_mut().take(Self::LONGEST).zip(bytes) {
            *to = *from;
        }
        Self(name)
    }

    /// Its bytes, without NUL.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

impl FromStr for Name {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if text.is_empty() || text.len() > Self::LONGEST || text.contains('\0') {
            return Err(Invalid::Name(text.to_owned()));
        }
        Ok(Self::known(text))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

/// A wrapper of [`Name`] that cannot be taken for another.
macro_rules! named {
    ($(#[$doc:meta])* $kind:ident { $($(#[$constant_doc:meta])* $constant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $kind(pub Name);

        impl $kind {
            $($(#[$constant_doc])* pub const $constant: Self = Self(Name::known($text));)*

            /// Every one that has a constant here.
            pub const KNOWN: &[Self] = &[$(Self::$constant,)*];
        }

        impl FromStr for $kind {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                text.parse().map(Self)
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

named! {
    /// How a service picks a destination: the name of a kernel module `ip_vs_<name>`, which the kernel loads on demand.
    ///
    /// ```
    /// use ipvs_rs::Scheduler;
    ///
    /// assert_eq!("wlc".parse(), Ok(Scheduler::WEIGHTED_LEAST_CONNECTION));
    /// assert!("a name of the wrong length".parse::<Scheduler>().is_err());
    /// ```
    Scheduler {
        /// `rr`: each in turn.
        ROUND_ROBIN = "rr",
        /// `wrr`: in turn, in proportion to weights.
        WEIGHTED_ROUND_ROBIN = "wrr",
        /// `lc`: the one with the fewest connections.
        LEAST_CONNECTION = "lc",
        /// `wlc`: the fewest connections in proportion to weights.
        WEIGHTED_LEAST_CONNECTION = "wlc",
        /// `sh`: by the client's address.
        SOURCE_HASHING = "sh",
        /// `dh`: by the virtual address.
        DESTINATION_HASHING = "dh",
        /// `sed`: the shortest expected delay.
        SHORTEST_EXPECTED_DELAY = "sed",
        /// `nq`: an idle one, else the shortest expected delay.
        NEVER_QUEUE = "nq",
        /// `lblc`: by the virtual address, the least loaded when it is overloaded.
        LOCALITY_LEAST_CONNECTION = "lblc",
        /// `lblcr`: the same with a set of destinations for each address.
        LOCALITY_LEAST_CONNECTION_REPLICATED = "lblcr",
        /// `fo`: all to the one with the highest weight.
        WEIGHTED_FAILOVER = "fo",
        /// `ovf`: the highest weight until it has as many connections as its weight, then the next.
        WEIGHTED_OVERFLOW = "ovf",
        /// `mh`: Maglev hashing. Its table is built anew for each destination added: set it last.
        MAGLEV_HASHING = "mh",
        /// `twos`: the better of two taken at random (since Linux 5.12).
        TWO_RANDOM_CHOICES = "twos",
        /// `none`: no scheduler, so that only persistence and synchronised connections are served (since Linux 4.4).
        NONE = "none",
    }
}

named! {
    /// What a persistent service recognises a client by, beside its address: kernel module `ip_vs_pe_<name>`.
    PersistenceEngine {
        /// `sip`: the Call-ID of SIP over UDP.
        SIP = "sip",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_is_whole() {
        for scheduler in Scheduler::KNOWN {
            assert_eq!(scheduler.to_string().parse(), Ok(*scheduler));
        }
        assert_eq!(Scheduler::LOCALITY_LEAST_CONNECTION_REPLICATED.to_string(), "lblcr");
        assert_eq!(PersistenceEngine::SIP.0.as_bytes(), b"sip");
    }

    #[test]
    fn a_name_fits_or_is_refused() {
        assert_eq!("fifteen-letters".parse::<Name>().unwrap().as_bytes().len(), Name::LONGEST);
        for bad in ["", "sixteen-letters!", "a\0b"] {
            assert_eq!(bad.parse::<Name>(), Err(Invalid::Name(bad.to_owned())));
        }
        assert_eq!(Name::received(b"longer than it may be").as_bytes(), b"longer than it ");
    }
}
