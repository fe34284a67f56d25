//! The mask under which clients of a persistent service count as one.

use std::fmt;
use std::net::Ipv4Addr;

use crate::address::Family;
use crate::error::Invalid;

/// Which part of a client's address counts.
///
/// On the wire it is a mask for IPv4 and a prefix length for IPv6, both 32 bits; one taken for the other is what some
/// tools get wrong. Here a prefix length does for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Netmask {
    /// All of it: each address is a client of its own.
    Host,
    /// The first so many bits: 0 to 31 for IPv4, 1 to 127 for IPv6. One as long as the address is read back as
    /// [`Netmask::Host`].
    Prefix(u8),
    /// IPv4 only: bits that are no prefix.
    Bits(Ipv4Addr),
}

impl Netmask {
    /// As the kernel wants it.
    pub(crate) fn number(self, family: Family) -> Result<u32, Invalid> {
        match (self, family) {
            (Self::Host, Family::V4) => Ok(u32::MAX),
            (Self::Host, Family::V6) => Ok(128),
            (Self::Prefix(bits @ 0..=32), Family::V4) => {
                Ok(u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0).to_be())
            }
            (Self::Prefix(bits @ 1..=128), Family::V6) => Ok(bits.into()),
            (Self::Bits(mask), Family::V4) => Ok(mask.to_bits().to_be()),
            _ => Err(Invalid::Netmask { netmask: self, family }),
        }
    }

    /// What the kernel has.
    pub(crate) fn of(number: u32, family: Family) -> Self {
        match family {
            Family::V4 => {
                let mask = u32::from_be(number);
                match mask.leading_ones() {
                    32 => Self::Host,
                    // What is left of a prefix when its ones are shifted out is nothing.
                    ones if mask << ones == 0 => Self::Prefix(ones as u8),
                    _ => Self::Bits(Ipv4Addr::from_bits(mask)),
                }
            }
            Family::V6 if number >= 128 => Self::Host,
            Family::V6 => Self::Prefix(number as u8),
        }
    }
}

impl fmt::Display for Netmask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Prefix(bits) => write!(f, "/{bits}"),
            Self::Bits(mask) => write!(f, "{mask}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_mask_for_ipv4_and_itself_for_ipv6() {
        assert_eq!(Netmask::Prefix(24).number(Family::V4), Ok(u32::from_ne_bytes([255, 255, 255, 0])));
        assert_eq!(Netmask::Prefix(0).number(Family::V4), Ok(0));
        assert_eq!(Netmask::Prefix(64).number(Family::V6), Ok(64));
        assert_eq!((Netmask::of(u32::MAX, Family::V4), Netmask::of(128, Family::V6)), (Netmask::Host, Netmask::Host));
        assert_eq!(Netmask::of(0, Family::V4), Netmask::Prefix(0));
        let odd = Netmask::Bits(Ipv4Addr::new(255, 0, 255, 0));
        assert_eq!(odd.number(Family::V4).map(|number| Netmask::of(number, Family::V4)), Ok(odd));
    }

    #[test]
    fn a_mask_that_the_family_cannot_have_is_refused() {
        for (netmask, family) in [
            (Netmask::Prefix(33), Family::V4),
            (Netmask::Prefix(0), Family::V6),
            (Netmask::Prefix(129), Family::V6),
            (Netmask::Bits(Ipv4Addr::BROADCAST), Family::V6),
        ] {
            assert_eq!(netmask.number(family), Err(Invalid::Netmask { netmask, family }));
        }
    }
}
