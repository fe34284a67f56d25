//! What the engine and the guard have in common: both families, read and written.

use std::collections::BTreeMap;
use std::time::Instant;

use vipd_engine::{Applied, ApplyError, Assignments, EngineError, Objects, Observed, Operation, Plan};
use vipd_model::{Family, ProblemCode};

use crate::names::Role;
use crate::object::{Key, Value};
use crate::save::Saved;
use crate::side::Side;
use crate::tables::{Tables, TablesError};
use crate::watch::Watch;

/// Both families of one role, on one back end.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) role: Role,
    pub(crate) tables: Tables,
    sides: [Side; 2],
    /// What was read when the back end was chosen; for the first `observe`.
    first: Option<[Saved; 2]>,
    /// Both were read once: what we then do not have, nobody else makes.
    read: bool,
    watch: Watch,
}

impl Lane {
    pub(crate) fn new(role: Role, tables: Tables, first: [Saved; 2]) -> Self {
        let sides = Family::ALL.map(|family| Side::new(role, family));
        Self { role, tables, sides, first: Some(first), read: false, watch: Watch::default() }
    }

    pub(crate) fn side(&self, family: Family) -> &Side {
        &self.sides[family as usize]
    }

    pub(crate) fn observe(&mut self) -> Result<Observed<Key, Value>, EngineError> {
        let start = Instant::now();
        let backend = self.tables.programs.backend;
        if !self.is_idle() || !self.read {
            self.watch.reading(backend);
        }
        let mut objects = Objects::new();
        let mut first = self.first.take();
        for family in Family::ALL {
            let side = &mut self.sides[family as usize];
            let saved = match &mut first {
                Some(saved) => Ok(std::mem::take(&mut saved[family as usize])),
                None if self.read && side.is_idle() => Ok(Saved::default()),
                None => self.tables.read(self.role, family),
            };
            let saved = saved.map_err(|error| EngineError {
                operation: "read iptables",
                message: error.to_string(),
                retry: true,
            })?;
            objects.extend(side.read(&saved));
        }
        self.read = true;
        self.watch.read(start.elapsed());
        Ok(Observed { objects, numbers: Assignments::default() })
    }

    /// One script for each family, and in it one commit for each table.
    pub(crate) fn apply(&mut self, operations: &[Operation<Key, Value>]) -> Result<(), ApplyError> {
        let mut written = false;
        for family in Family::ALL {
            let side = &mut self.sides[family as usize];
            let mut mine = operations.iter().filter(|operation| operation.key().family() == family).peekable();
            if mine.peek().is_none() {
                continue;
            }
            let staged = side.stage(mine);
            if !staged.script.is_empty() {
                let backend = self.tables.programs.backend;
                self.watch.writing(backend);
                let wrote = self.tables.write(family, staged.script);
                self.watch.written(backend);
                if let Err(error) = wrote {
                    side.revert(staged.before);
                    return Err(failed(&error, written));
                }
                written = true;
            }
        }
        Ok(())
    }

    /// Removes everything of ours, and tables that only we have used; returns how many objects.
    pub(crate) fn cleanup(&mut self) -> Result<u64, EngineError> {
        let observed = self.observe()?.objects;
        let plan = Plan::difference(&observed, &Objects::new());
        self.apply(&plan.finish).map_err(|error| EngineError {
            operation: "clean up iptables",
            message: error.message,
            retry: error.retry,
        })?;
        if !observed.is_empty() {
            Family::ALL.into_iter().for_each(|family| self.tables.tidy(family));
        }
        Ok(observed.len() as u64)
    }

    /// Nothing of ours is there, in either family.
    fn is_idle(&self) -> bool {
        self.sides.iter().all(Side::is_idle)
    }

    /// Whether somebody else may have written to what is ours.
    pub(crate) fn disturbed(&mut self) -> bool {
        !self.is_idle() && self.watch.is_disturbed(self.tables.programs.backend)
    }

    /// Packets and bytes that passed each rule of our own chains that translates.
    pub(crate) fn counts(&self) -> Result<BTreeMap<Family, Saved>, TablesError> {
        let served = Family::ALL.into_iter().filter(|family| !self.side(*family).is_idle());
        served.map(|family| Ok((family, self.tables.read(self.role, family)?))).collect()
    }
}

fn failed(error: &TablesError, anything_before: bool) -> ApplyError {
    let unknown = anything_before || error.may_have_acted();
    ApplyError {
        code: ProblemCode::NotProgrammed,
        message: error.to_string(),
        applied: if unknown { Applied::Unknown } else { Applied::Nothing },
        retry: true,
    }
}
