//! One suite, every engine: cases × families × protocols, on a real `vipd`, with real packets.
//!
//! A case is a function over a [`World`]: a fresh lab with back ends and a daemon of the [`Subject`], the engine under
//! test. It declares services over the API, sends traffic, and checks what the clients and the back ends saw. What must happen it asks
//! of Explain ([`World::check`]), and says itself where that would be too weak. Nothing here knows any engine: one that
//! lacks something is excused only by the Features and algorithms that `GetInfo` says it lacks.
//!
//! Cases stand in `cases/`, by subject; those named `case_NNN_…` are reports from the field. [`table`] prints the
//! result and writes it into `docs/engines.md`.

pub mod cases;
mod oracle;
pub mod subject;
pub mod table;
pub mod world;

use anyhow::{Context as _, Result};
use vipd_proto::v1::scheduler::Algorithm;
use vipd_proto::v1::{EngineInfo, Feature};

use crate::lab::Family;
use crate::runner::{Trial, Verdict};
use crate::traffic::Proto;

pub use subject::{Subject, Variant};
pub use world::{Vantage, World};

/// Over which families and protocols a case runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// TCP and UDP, IPv4 and IPv6.
    All,
    /// TCP, both families.
    Tcp,
    /// UDP, both families.
    Udp,
    /// The same for every family and protocol: TCP over IPv4 stands for all.
    Once,
}

/// The columns of the table.
pub const COLUMNS: [(Proto, Family, &str); 4] = [
    (Proto::Tcp, Family::V4, "tcp4"),
    (Proto::Tcp, Family::V6, "tcp6"),
    (Proto::Udp, Family::V4, "udp4"),
    (Proto::Udp, Family::V6, "udp6"),
];

impl Over {
    const fn includes(self, proto: Proto, family: Family) -> bool {
        match self {
            Self::All => true,
            Self::Tcp => matches!(proto, Proto::Tcp),
            Self::Udp => matches!(proto, Proto::Udp),
            Self::Once => matches!((proto, family), (Proto::Tcp, Family::V4)),
        }
    }
}

/// One row of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What must be so, as a sentence without spaces.
    pub name: &'static str,
    /// Where it runs.
    pub over: Over,
    /// Without these an engine is excused.
    pub features: &'static [Feature],
    /// Without these algorithms an engine is excused.
    pub algorithms: &'static [Algorithm],
    /// Checks it.
    pub run: fn(&mut World) -> Result<()>,
}

impl Case {
    /// A case that asks nothing special of an engine.
    pub const fn new(name: &'static str, over: Over, run: fn(&mut World) -> Result<()>) -> Self {
        Self { name, over, features: &[], algorithms: &[], run }
    }

    /// Only for engines with these Features.
    #[must_use]
    pub const fn needs(self, features: &'static [Feature]) -> Self {
        Self { features, ..self }
    }

    /// Only for engines with these algorithms.
    #[must_use]
    pub const fn by(self, algorithms: &'static [Algorithm]) -> Self {
        Self { algorithms, ..self }
    }

    /// What the engine lacks of what the case needs, in the API's words.
    fn lacking(&self, engine: &EngineInfo, proto: Proto, family: Family) -> Vec<&'static str> {
        let carrier = if proto == Proto::Tcp { Feature::Tcp } else { Feature::Udp };
        let features = self.features.iter().copied().chain([carrier]);
        let features = features.chain((family == Family::V6).then_some(Feature::Ipv6));
        let features = features.filter(|&feature| !engine.features.contains(&feature.into()));
        let algorithms = self.algorithms.iter().filter(|&&algorithm| !engine.algorithms.contains(&algorithm.into()));
        features
            .map(|feature| feature.as_str_name())
            .chain(algorithms.map(|algorithm| algorithm.as_str_name()))
            .collect()
    }
}

/// The trials of every case, for one subject.
#[must_use]
pub fn trials(subject: &Subject) -> Vec<Trial> {
    let mut trials = Vec::new();
    for case in cases::all() {
        for (proto, family, column) in COLUMNS {
            if !case.over.includes(proto, family) {
                continue;
            }
            let (name, subject) = (format!("{}/{column}", case.name), subject.clone());
            trials.push(Trial { name, run: Box::new(move || run(&case, &subject, proto, family)) });
        }
    }
    trials
}

fn run(case: &Case, subject: &Subject, proto: Proto, family: Family) -> Result<Verdict> {
    let lacking = case.lacking(&subject.info, proto, family);
    if !lacking.is_empty() {
        return Ok(Verdict::Excused(lacking.join(", ")));
    }
    let mut world = World::new(subject.clone(), proto, family)?;
    (case.run)(&mut world).with_context(|| format!("log of vipd:\n{}\n", world.daemon.log_tail()))?;
    Ok(Verdict::Passed)
}
