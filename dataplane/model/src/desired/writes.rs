//! The calls that write services: one operation, or several as an Apply.

use super::group::{self, Groups};
use super::proposal::Proposal;
use super::{Desired, owners};
use crate::command::{Command, Mode, Operation};
use crate::delta::Delta;
use crate::problem::{Problem, ProblemCode, Rejection};

/// A call of its own.
pub(crate) fn one(desired: &Desired, command: &Command, operation: &Operation) -> Result<Delta, Rejection> {
    write(desired, command, group::single(operation), Mode::Atomic)
}

/// An Apply.
pub(crate) fn apply(
    desired: &Desired,
    command: &Command,
    operations: &[Operation],
    mode: Mode,
) -> Result<Delta, Rejection> {
    let (given, most) = (operations.len(), desired.limits.operations_per_apply);
    if given > most {
        let message = format!("{given} operations; the most is {most}; send several calls");
        return Err(Problem::new(ProblemCode::Limit, "operations", message).into());
    }
    write(desired, command, group::several(operations), mode)
}

fn write(desired: &Desired, command: &Command, groups: Groups<'_>, mode: Mode) -> Result<Delta, Rejection> {
    owners::fence(desired, command, groups.keys().map(|key| &key.owner))?;
    let mut proposal = Proposal::new(desired, command);
    for (key, group) in groups {
        proposal.propose(key, group);
    }
    proposal.judge(mode)?;
    Ok(proposal.delta())
}
