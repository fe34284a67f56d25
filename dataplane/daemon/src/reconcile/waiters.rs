//! Callers that wait until what they asked for is in force.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use vipd_model::{Delta, Problem, Revision, ServiceKey};

use super::control::{Accepted, CallError};

type Reply = oneshot::Sender<Result<Accepted, CallError>>;

struct Waiter {
    reply: Reply,
    delta: Arc<Delta>,
    left: usize,
    problems: Vec<(ServiceKey, Problem)>,
}

/// By the services they wait for.
#[derive(Default)]
pub(super) struct Waiters {
    waiters: HashMap<u64, Waiter>,
    by_service: HashMap<ServiceKey, Vec<(Revision, u64)>>,
    next: u64,
}

impl Waiters {
    /// Waits until each of these services is decided up to the revision beside it; answers at once if there is none.
    pub(super) fn add(&mut self, delta: Arc<Delta>, services: Vec<(ServiceKey, Revision)>, reply: Reply) {
        if services.is_empty() {
            let _ = reply.send(Ok(Accepted { delta, in_force: true }));
            return;
        }
        let id = self.next;
        self.next += 1;
        self.waiters.insert(id, Waiter { reply, delta, left: services.len(), problems: Vec::new() });
        for (service, revision) in services {
            self.by_service.entry(service).or_default().push((revision, id));
        }
    }

    /// The service is decided up to `at`: in force, or failed.
    pub(super) fn decide(&mut self, service: &ServiceKey, at: Revision, outcome: Result<(), &Problem>) {
        let Some(waiting) = self.by_service.get_mut(service) else { return };
        let mut decided = Vec::new();
        waiting.retain(|(revision, id)| {
            let due = *revision <= at;
            if due {
                decided.push(*id);
            }
            !due
        });
        if waiting.is_empty() {
            self.by_service.remove(service);
        }
        for id in decided {
            self.decide_one(id, service, outcome);
        }
    }

    fn decide_one(&mut self, id: u64, service: &ServiceKey, outcome: Result<(), &Problem>) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        if let Err(problem) = outcome {
            waiter.problems.push((service.clone(), problem.clone()));
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

    /// How many callers wait.
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }
}
