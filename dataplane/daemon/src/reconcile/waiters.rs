//! Callers that wait until what they asked for is in force.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;
use vipd_model::{Delta, Problem, Revision, ServiceKey};

use super::control::{Accepted, CallError};

/// What a caller waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// The node's own rules.
    Node,
    /// A service.
    Service(ServiceKey),
}

impl From<ServiceKey> for Target {
    fn from(key: ServiceKey) -> Self {
        Self::Service(key)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("the node"),
            Self::Service(key) => key.fmt(f),
        }
    }
}

/// What to wait for, and up to which change of it.
pub(super) type Waits = Vec<(Target, Revision)>;

type Reply = oneshot::Sender<Result<Accepted, CallError>>;

struct Waiter {
    reply: Reply,
    delta: Arc<Delta>,
    left: usize,
    problems: Vec<(Target, Problem)>,
}

/// By what they wait for.
#[derive(Default)]
pub(super) struct Waiters {
    waiters: HashMap<u64, Waiter>,
    by_target: HashMap<Target, Vec<(Revision, u64)>>,
    next: u64,
}

impl Waiters {
    /// Waits until each target is decided up to the revision beside it; answers at once if there is none.
    pub(super) fn add(&mut self, delta: Arc<Delta>, waits: Waits, reply: Reply) {
        if waits.is_empty() {
            let _ = reply.send(Ok(Accepted { delta, in_force: true }));
            return;
        }
        let id = self.next;
        self.next += 1;
        self.waiters.insert(id, Waiter { reply, delta, left: waits.len(), problems: Vec::new() });
        for (target, revision) in waits {
            self.by_target.entry(target).or_default().push((revision, id));
        }
    }

    /// The target is decided up to `at`: in force, or failed.
    pub(super) fn decide(&mut self, target: &Target, at: Revision, outcome: Result<(), &Problem>) {
        let Some(waiting) = self.by_target.get_mut(target) else { return };
        let mut decided = Vec::new();
        waiting.retain(|(revision, id)| {
            let due = *revision <= at;
            if due {
                decided.push(*id);
            }
            !due
        });
        if waiting.is_empty() {
            self.by_target.remove(target);
        }
        for id in decided {
            self.decide_one(id, target, outcome);
        }
    }

    fn decide_one(&mut self, id: u64, target: &Target, outcome: Result<(), &Problem>) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        if let Err(problem) = outcome {
            waiter.problems.push((target.clone(), problem.clone()));
        }
        waiter.left -= 1;
        if waiter.left > 0 {
            return;
        }
        let Some(waiter) = self.waiters.remove(&id) else { return };
        let answer = if waiter.problems.is_empty() {
            Ok(Accepted { delta: waiter.delta, in_force: true })
        } else {
            Err(CallError::NotProgrammed { delta: waiter.delta, problems: waiter.problems })
        };
        // A caller that went away loses only its answer.
        let _ = waiter.reply.send(answer);
    }

    /// Forgets callers that went away: while an engine hangs, clients that repeat their calls must not pile up here.
    pub(super) fn forget_gone(&mut self) {
        let before = self.waiters.len();
        self.waiters.retain(|_, waiter| !waiter.reply.is_closed());
        if self.waiters.len() < before {
            self.by_target.retain(|_, waiting| {
                waiting.retain(|(_, id)| self.waiters.contains_key(id));
                !waiting.is_empty()
            });
        }
    }

    /// How many callers wait.
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }
}
