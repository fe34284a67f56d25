//! Values of the configuration that TOML has no type for.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vipd_model::EngineKind;

/// A duration, written as `"30s"`, `"250ms"`, `"5m"`, `"1h"`, `"2d"`, or as a number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

impl Seconds {
    /// As the standard library has it.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::try_from_secs_f64(self.0).unwrap_or(Duration::MAX)
    }
}

/// The units, longest first.
const UNITS: [(&str, f64); 5] = [("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)];

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no duration; write one such as \"30s\", \"250ms\" or \"5m\"");
        let digits = text.trim().find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.trim().len());
        let (number, unit) = text.trim().split_at(digits);
        let factor = match unit.trim() {
            "" => 1.0,
            unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1,
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        Self::new(number * factor).ok_or_else(wrong)
    }
}

impl Seconds {
    fn new(seconds: f64) -> Option<Self> {
        (seconds.is_finite() && (0.0..=1e9).contains(&seconds)).then_some(Self(seconds))
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in UNITS {
            let number = self.0 / factor;
            if number >= 1.0 && (number - number.round()).abs() < 1e-9 {
                return write!(f, "{number:.0}{unit}");
            }
        }
        write!(f, "{}s", self.0)
    }
}

impl Serialize for Seconds {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(f64),
            Text(String),
        }
        let parsed = match Either::deserialize(deserializer)? {
            Either::Number(number) => {
                Self::new(number).ok_or_else(|| format!("{number} is no duration; write one such as \"30s\""))
            }
            Either::Text(text) => text.parse(),
        };
        parsed.map_err(serde::de::Error::custom)
    }
}

/// File permissions, written in octal: `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl Serialize for Mode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:04o}", self.0))
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match u32::from_str_radix(&text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err(serde::de::Error::custom(format!("{text:?} are no permissions; write them in octal: \"0660\""))),
        }
    }
}

macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $variant_doc:literal])+ $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
        pub enum $name {
            $(
                $(#[doc = $variant_doc])+
                #[serde(rename = $text)]
                #[value(name = $text)]
                $variant
            ),+
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text),+ })
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                match String::deserialize(deserializer)?.as_str() {
                    $($text => Ok(Self::$variant),)+
                    other => {
                        let known = [$($text),+].join(", ");
                        Err(serde::de::Error::custom(format!("{other:?} is none of {known}")))
                    }
                }
            }
        }
    };
}

words! {
    /// An engine, or the choice left to vipd.
    EngineChoice {
        /// The first of the configured order that can run here.
        Auto = "auto",
        /// The proxy; needs no privilege.
        Userspace = "userspace",
        /// By iptables-restore.
        Iptables = "iptables",
        /// By netlink.
        Nftables = "nftables",
        /// The kernel's balancer.
        Ipvs = "ipvs",
    }
}

impl EngineChoice {
    /// The order in which engines are asked by default.
    pub const ORDER: [Self; 4] = [Self::Nftables, Self::Ipvs, Self::Iptables, Self::Userspace];

    /// The engine; none for `auto`.
    #[must_use]
    pub fn kind(self) -> Option<EngineKind> {
        match self {
            Self::Auto => None,
            Self::Userspace => Some(EngineKind::Userspace),
            Self::Iptables => Some(EngineKind::Iptables),
            Self::Nftables => Some(EngineKind::Nftables),
            Self::Ipvs => Some(EngineKind::Ipvs),
        }
    }
}

words! {
    /// One of the two kernels of iptables, or the choice left to vipd.
    IptablesBackend {
        /// The one that the host already uses.
        Auto = "auto",
        /// `ip_tables`.
        Legacy = "legacy",
        /// `nf_tables`.
        Nft = "nft",
    }
}

words! {
    /// How the log is written.
    LogFormat {
        /// For people.
        Text = "text",
        /// One object a line.
        Json = "json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_write_them() {
        for (text, seconds) in
            [("30s", 30.0), ("250ms", 0.25), ("5m", 300.0), ("1h", 3_600.0), ("2d", 172_800.0), ("7", 7.0)]
        {
            assert_eq!(text.parse::<Seconds>().unwrap(), Seconds(seconds), "{text}");
        }
        for text in ["", "s", "5 minutes", "-1s", "1e400", "1w", "nan"] {
            assert!(text.parse::<Seconds>().is_err(), "{text}");
        }
        for text in ["30s", "250ms", "5m", "1h", "2d"] {
            assert_eq!(text.parse::<Seconds>().unwrap().to_string(), text);
        }
    }
}
