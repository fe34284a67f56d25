//! Which back end this host uses. Executes `iptables-save` of both.

use std::path::PathBuf;

use vipd_model::Family;

use crate::backend::{Backend, Programs};
use crate::names::Role;
use crate::tables::{Patience, Tables};

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
    pub(crate) finding: Option<String>,
}

/// What one back end has in use.
#[derive(Debug, Default)]
struct Use {
    foreign: usize,
    ours: bool,
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
pub(crate) fn open(options: &Options) -> Result<Found, Unusable> {
    probe(options)?;
    let tables = |backend| {
        let programs = Programs::find(backend, &options.folders)?;
        Some(Tables { programs, patience: options.patience })
    };
    let found: Vec<(Tables, Use)> = Backend::ALL
        .into_iter()
        .filter_map(tables)
        .map(|tables| (in_use(&tables), tables))
        .map(|(u, t)| (t, u))
        .collect();
    let both = found.iter().filter(|(_, used)| used.foreign > 0).count() > 1;
    let chosen = match options.backend {
        Choice::Only(backend) => backend,
        Choice::Auto => best(&found, Programs::chosen_by_host(&options.folders)),
    };
    let left_over = found.iter().find(|(tables, used)| used.ours && tables.programs.backend != chosen);
    let finding = if let Some((tables, _)) = left_over {
        Some(format!(
            "iptables: chains of vipd are also in the {} tables, while {chosen} is used: run `vipd cleanup`",
            tables.programs.backend
        ))
    } else {
        both.then(|| {
            format!(
                "iptables: both the legacy and the nft tables hold rules, and packets pass both; vipd uses {chosen}"
            )
        })
    };
    let tables = found.into_iter().map(|(tables, _)| tables).find(|tables| tables.programs.backend == chosen);
    // Whether the kernel knows it is seen by reading; the programs were found above.
    let tables = tables.ok_or_else(|| Unusable(format!("iptables-{chosen}-restore is not here")))?;
    match tables.read(Role::Balancer, Family::V4) {
        Ok(_) => Ok(Found { tables, finding }),
        Err(error) => Err(Unusable(format!("iptables ({chosen}) does not work here: {error}"))),
    }
}

/// Ours first, so that a restart finds what it left; then what others use more; then what the host's own names mean.
fn best(found: &[(Tables, Use)], by_name: Option<Backend>) -> Backend {
    let rank = |(tables, used): &&(Tables, Use)| {
        let named = by_name == Some(tables.programs.backend);
        (used.ours, used.foreign, named, tables.programs.backend == Backend::Nft)
    };
    found.iter().max_by_key(rank).map_or(Backend::Nft, |(tables, _)| tables.programs.backend)
}

fn in_use(tables: &Tables) -> Use {
    let mut used = Use::default();
    for family in Family::ALL {
        // A back end that cannot be read is not in use; if it is chosen, that is said.
        for role in [Role::Balancer, Role::Guard] {
            if let Ok(saved) = tables.read(role, family) {
                used.ours |= !saved.chains.is_empty();
                used.foreign = used.foreign.max(saved.foreign_rules);
            }
        }
    }
    used
}
