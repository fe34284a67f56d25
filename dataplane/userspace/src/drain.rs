//! Deadlines: when the flows of an endpoint that left must end. One task waits for the next one.
//!
//! The queue is written by the control side and read by the task; flows never see it. An entry whose endpoint has another
//! deadline by then (it came back, or its drain was changed) means nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;

use crate::served::Target;

/// Milliseconds since the Unix epoch, the clock of the model's deadlines.
pub(crate) fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock is looked at again at least so often, since it may be set.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Deadlines to come.
#[derive(Default)]
pub(crate) struct Drains {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Default)]
struct Queue {
    /// By deadline; the second number finds the endpoint.
    order: BinaryHeap<Reverse<(u64, usize)>>,
    /// Never more entries than `order`.
    targets: std::collections::HashMap<usize, Weak<Target>>,
    next: usize,
}

impl Drains {
    pub(crate) fn add(&self, deadlines: Vec<(u64, Arc<Target>)>) {
        if deadlines.is_empty() {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        for (deadline, target) in deadlines {
            let id = queue.next;
            queue.next += 1;
            queue.order.push(Reverse((deadline, id)));
            // Weak: an endpoint whose last flow ended needs no deadline.
            queue.targets.insert(id, Arc::downgrade(&target));
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Cuts what is due at `now`, and says when the next one is.
    fn cut_due(&self, now: u64) -> Option<u64> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(&Reverse((deadline, id))) = queue.order.peek() {
            if deadline > now {
                return Some(deadline);
            }
            queue.order.pop();
            if let Some(target) = queue.targets.remove(&id).and_then(|target| target.upgrade())
                && target.deadline() == deadline
            {
                tracing::info!(endpoint = %target.key, "drain is over: its connections are reset");
                target.cut();
            }
        }
        None
    }

    /// Waits for deadlines for ever.
    pub(crate) async fn run(&self) {
        loop {
            let now = wall_clock();
            let wait = self.cut_due(now).map_or(LOOK_AGAIN, |next| Duration::from_millis(next.saturating_sub(now)));
            let _ = tokio::time::timeout(wait.min(LOOK_AGAIN), self.changed.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(deadline: u64) -> Arc<Target> {
        let target = Target::new(vipd_model::EndpointKey { address: [10, 0, 0, 1].into(), port: 80 });
        target.set_deadline(deadline);
        target
    }

    #[test]
    fn cuts_at_the_deadline_and_not_before() {
        let drains = Drains::default();
        let (first, second) = (target(100), target(200));
        drains.add(vec![(200, Arc::clone(&second)), (100, Arc::clone(&first))]);
        assert_eq!(drains.cut_due(99), Some(100));
        assert_eq!(first.cuts(), 0);
        assert_eq!(drains.cut_due(100), Some(200));
        assert_eq!((first.cuts(), second.cuts()), (1, 0));
        assert_eq!(drains.cut_due(500), None);
        assert_eq!(second.cuts(), 1);
    }

    #[test]
    fn a_deadline_that_was_taken_back_cuts_nothing() {
        let drains = Drains::default();
        let target = target(100);
        drains.add(vec![(100, Arc::clone(&target))]);
        target.set_deadline(0);
        drains.cut_due(1_000);
        assert_eq!(target.cuts(), 0);
    }
}
