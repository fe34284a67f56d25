//! Which back end this host uses. Executes `iptables-save` of both.

use std::path::PathBuf;

use vipd_model::Family;

use crate::backend::{Backend, Programs};
use crate::names::Role;
use crate::save::Saved;
use crate::tables::{Patience, Tables, TablesError};

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The one that the host uses.
    #[default]
    Auto,
    /// This one.
    Only(Backend),
}

/// Where to look, and what to use.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which back end.
    pub backend: Choice,
    /// How long we wait for others.
    pub patience: Patience,
    /// Folders with the programs; empty: `PATH` and the usual ones.
    pub folders: Vec<PathBuf>,
}

/// Why there is no iptables on this node, in words for an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);

/// The back end that was found, and what an operator should know of it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) tables: Tables,
    /// What the role has there, by family.
    pub(crate) saved: [Saved; 2],
    pub(crate) finding: Option<String>,
}

/// One back end, read.
#[derive(Debug)]
struct Seen {
    tables: Tables,
    saved: Result<[Saved; 2], TablesError>,
    /// Rules that are not vipd's, in the family that has more of them.
    foreign: usize,
    /// Chains of vipd.
    ours: bool,
}

impl Seen {
    fn backend(&self) -> Backend {
        self.tables.programs.backend
    }
}

/// Whether the programs are there. Executes nothing.
pub(crate) fn probe(options: &Options) -> Result<(), Unusable> {
    let wanted = match options.backend {
        Choice::Auto => Backend::ALL.to_vec(),
        Choice::Only(backend) => vec![backend],
    };
    if wanted.iter().any(|backend| Programs::find(*backend, &options.folders).is_some()) {
        return Ok(());
    }
    let names: Vec<String> = wanted.iter().map(|backend| format!("iptables-{backend}-restore")).collect();
    Err(Unusable(format!(
        "neither {} nor an iptables-restore that leads there was found in PATH: install the package iptables",
        names.join(" nor ")
    )))
}

/// Chooses.
pub(crate) fn open(role: Role, options: &Options) -> Result<Found, Unusable> {
    probe(options)?;
    let programs = Backend::ALL.into_iter().filter_map(|backend| Programs::find(backend, &options.folders));
    let seen: Vec<Seen> =
        programs.map(|programs| look(role, Tables { programs, patience: options.patience })).collect();
    let chosen = match options.backend {
        Choice::Only(backend) => backend,
        Choice::Auto => best(&seen, Programs::chosen_by_host(&options.folders)),
    };
    let left_over = seen.iter().find(|seen| seen.ours && seen.backend() != chosen).map(Seen::backend);
    let both = seen.iter().filter(|seen| seen.foreign > 0).count() > 1;
    let finding = match left_over {
        Some(other) => Some(format!(
            "iptables: chains of vipd are also in the {other} tables, while {chosen} is used: run `vipd cleanup`"
        )),
        None => both.then(|| {
            format!(
                "iptables: both the legacy and the nft tables hold rules, and packets pass both; vipd uses {chosen}"
            )
        }),
    };
    let seen = seen.into_iter().find(|seen| seen.backend() == chosen);
    let seen = seen.ok_or_else(|| Unusable(format!("iptables-{chosen}-restore is not here")))?;
    match seen.saved {
        Ok(saved) => Ok(Found { tables: seen.tables, saved, finding }),
        Err(error) => Err(Unusable(format!("iptables ({chosen}) does not work here: {error}"))),
    }
}

/// Ours first, so that a restart finds what it left; then what others use more; then what the host's own names mean.
fn best(seen: &[Seen], by_name: Option<Backend>) -> Backend {
    let rank = |seen: &&Seen| {
        let named = by_name == Some(seen.backend());
        (seen.saved.is_ok(), seen.ours, seen.foreign, named, seen.backend() == Backend::Nft)
    };
    seen.iter().max_by_key(rank).map_or(Backend::Nft, Seen::backend)
}

fn look(role: Role, tables: Tables) -> Seen {
    let other = match role {
        Role::Balancer => Role::Guard,
        Role::Guard => Role::Balancer,
    };
    let (mut foreign, mut ours) = (0, false);
    let mut read = |family| {
        let [saved, others] = tables.read_for([role, other], family)?;
        // To one role the other's rules are strangers'.
        foreign = foreign.max(saved.foreign_rules.saturating_sub(others.own_rules()));
        ours |= !saved.chains.is_empty() || !others.chains.is_empty();
        Ok(saved)
    };
    let saved = read(Family::V4).and_then(|v4| Ok([v4, read(Family::V6)?]));
    Seen { tables, saved, foreign, ours }
}
