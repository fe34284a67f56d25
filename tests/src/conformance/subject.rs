//! What the suite is run on: an engine, in each variant in which a node may run it.

use anyhow::{Context as _, Result, ensure};
use vipd_proto::v1::EngineInfo;

use crate::lab::{Daemon, Lab};

/// An engine as the daemon's command line asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Names the variant's table in `docs/engines.md`.
    pub name: &'static str,
    /// For `--engine`.
    pub engine: &'static str,
    /// What else the daemon is told.
    pub flags: &'static [&'static str],
}

/// Every one that this version has.
pub const VARIANTS: [Variant; 4] = [
    Variant { name: "userspace", engine: "userspace", flags: &[] },
    Variant { name: "nftables", engine: "nftables", flags: &[] },
    Variant { name: "iptables-legacy", engine: "iptables", flags: &["--iptables-backend", "legacy"] },
    Variant { name: "iptables-nft", engine: "iptables", flags: &["--iptables-backend", "nft"] },
];

impl Variant {
    /// Those that a name on the command line means: one variant, or all of an engine; `all` is every one.
    #[must_use]
    pub fn named(name: &str) -> Vec<Self> {
        let name = name.to_lowercase();
        VARIANTS.into_iter().filter(|known| name == "all" || known.name == name || known.engine == name).collect()
    }

    /// Starts a daemon of it on a lab's node.
    ///
    /// # Errors
    /// As [`Daemon::start`]; it does not fall back to another engine.
    pub fn start(&self, lab: &Lab) -> Result<Daemon> {
        self.start_with(lab, &[])
    }

    /// The same with more arguments.
    ///
    /// # Errors
    /// As [`Variant::start`].
    pub fn start_with(&self, lab: &Lab, more: &[&str]) -> Result<Daemon> {
        Daemon::start(lab, self.engine, &[&["--no-engine-fallback"], self.flags, more].concat())
    }

    /// Asks a daemon what it says of this engine.
    ///
    /// # Errors
    /// When it does not know the engine or says that it is not usable here, with its reason.
    pub fn probe(self) -> Result<Subject> {
        let lab = Lab::new()?;
        let daemon = self.start(&lab)?;
        let info = daemon.api()?.info()?;
        let number = info.default_engine;
        let found =
            info.engines.into_iter().find(|known| known.engine == number).context("GetInfo lists no such engine")?;
        let engine = self.engine;
        ensure!(found.engine().as_str_name().eq_ignore_ascii_case(engine), "asked for {engine}, runs {found:?}");
        ensure!(found.usable, "{engine} is not usable here: {}", found.reason);
        Ok(Subject { variant: self, info: found })
    }
}

/// A variant, and what the daemon says that it can do.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Which.
    pub variant: Variant,
    /// As `GetInfo` describes its engine.
    pub info: EngineInfo,
}
