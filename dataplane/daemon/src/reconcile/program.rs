//! One batch through balancers, guard and cleaner.
//!
//! | step | on a new or changed service | on a removed one | on one that moves to another engine |
//! |---|---|---|---|
//! | 1 make | balancer ready | balancer told, so that others may take over | new balancer ready |
//! | 2 guard make | capture, refusals, source ranges | | capture moves |
//! | 3 retire | | | old balancer told |
//! | 4 guard finish | what it held before goes | capture goes first | |
//! | 5 finish | | then the balancer's objects | old balancer's objects |
//! | 6 clean | UDP flows that all this made stale | | |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vipd_engine::runner::Outcome;
use vipd_engine::{FlowFilter, GuardInput, Node};
use vipd_model::{EngineKind, Problem, ProblemCode, Revision, Selected, Service, ServiceKey};

use super::lanes::{Balanced, Balancers, GuardLane};
use super::worker::{Gone, Worker};

/// Forgets UDP flows: blocks, on a thread of its own.
pub trait Cleaner: Send {
    /// One shared walk for all of them.
    ///
    /// # Errors
    /// In words; the flows may still be there.
    fn clean(&mut self, filters: &[FlowFilter]) -> Result<(), String>;
}

/// Everything that moves packets.
#[derive(Clone, Default)]
pub struct Lanes {
    /// By engine.
    pub balancers: Balancers,
    /// Absent without CAP_NET_ADMIN.
    pub guard: Option<Worker<dyn GuardLane>>,
    /// Absent where nothing is tracked.
    pub cleaner: Option<Worker<dyn Cleaner>>,
}

/// One service on its way.
#[derive(Clone, Debug)]
pub struct Item {
    /// Which.
    pub key: ServiceKey,
    /// Up to which change.
    pub at: Revision,
    /// What may have objects of it: what served it before, and what an attempt that failed has touched.
    pub from: BTreeSet<EngineKind>,
    /// What is to serve it; absent: nothing (deleted, withdrawn).
    pub to: Option<Selected>,
    /// What was declared; absent: deleted.
    pub service: Option<Arc<Service>>,
    /// Standing notes of the engine choice.
    pub notes: Vec<Problem>,
    /// Why it is declared and not served.
    pub withdrawn: Option<Problem>,
}

/// How it went.
#[derive(Debug, Default)]
pub struct Programmed {
    /// By service; one that is missing succeeded.
    pub failures: BTreeMap<ServiceKey, Problem>,
    /// UDP flows to forget.
    pub stale: Vec<FlowFilter>,
}

impl Programmed {
    fn take(&mut self, outcomes: Vec<Outcome>) {
        for (key, outcome) in outcomes {
            if let Err(problem) = outcome {
                self.failures.entry(key).or_insert(problem);
            }
        }
    }

    fn keys<'a>(&self, items: impl Iterator<Item = &'a Item>) -> Vec<ServiceKey> {
        items.map(|item| item.key.clone()).filter(|key| !self.failures.contains_key(key)).collect()
    }
}

/// Programs a batch.
///
/// # Errors
/// [`Gone`] if a worker thread died: its books are lost, and the daemon must start over.
pub async fn program(lanes: &Lanes, items: &[Item]) -> Result<Programmed, Gone> {
    let mut done = Programmed::default();
    let guard = make(lanes, items, &mut done).await?;
    guard_make(lanes, items, guard, &mut done).await?;
    retire(lanes, items, &mut done).await?;
    finish(lanes, items, &mut done).await?;
    Ok(done)
}

async fn make(lanes: &Lanes, items: &[Item], done: &mut Programmed) -> Result<Vec<GuardInput>, Gone> {
    let mut batches: BTreeMap<EngineKind, Vec<_>> = BTreeMap::new();
    for item in items {
        match &item.to {
            Some(to) => batches.entry(to.engine).or_default().push((item.key.clone(), Some(to.clone()))),
            None => item.from.iter().for_each(|from| batches.entry(*from).or_default().push((item.key.clone(), None))),
        }
    }
    let mut guard = Vec::new();
    for answer in at_each(lanes, batches, |balancer, batch| balancer.make(batch), done).await? {
        let Balanced { outcomes, guard: inputs, stale } = answer;
        done.take(outcomes);
        done.stale.extend(stale);
        guard.extend(inputs);
    }
    Ok(guard)
}

async fn guard_make(lanes: &Lanes, items: &[Item], inputs: Vec<GuardInput>, done: &mut Programmed) -> Result<(), Gone> {
    let Some(guard) = &lanes.guard else { return Ok(()) };
    let mut batch: Vec<_> = inputs.into_iter().map(|input| (input.key.clone(), Some(input))).collect();
    batch.extend(items.iter().filter(|item| item.to.is_none()).map(|item| (item.key.clone(), None)));
    let made = guard.call(|guard| guard.make(batch)).await?;
    done.take(made.outcomes);
    done.stale.extend(made.stale);
    Ok(())
}

/// Tells the balancers that services have moved from that they serve them no more; the objects go with `finish`.
async fn retire(lanes: &Lanes, items: &[Item], done: &mut Programmed) -> Result<(), Gone> {
    let mut batches: BTreeMap<EngineKind, Vec<_>> = BTreeMap::new();
    for item in items.iter().filter(|item| !done.failures.contains_key(&item.key)) {
        let Some(to) = &item.to else { continue };
        for from in item.from.iter().filter(|from| **from != to.engine) {
            batches.entry(*from).or_default().push((item.key.clone(), None));
        }
    }
    for answer in at_each(lanes, batches, |balancer, batch| balancer.make(batch), done).await? {
        done.take(answer.outcomes);
        done.stale.extend(answer.stale);
    }
    Ok(())
}

async fn finish(lanes: &Lanes, items: &[Item], done: &mut Programmed) -> Result<(), Gone> {
    if let Some(guard) = &lanes.guard {
        let keys = done.keys(items.iter());
        let made = guard.call(move |guard| guard.finish(&keys)).await?;
        done.take(made.outcomes);
        done.stale.extend(made.stale);
    }
    let mut batches: BTreeMap<EngineKind, Vec<ServiceKey>> = BTreeMap::new();
    for item in items.iter().filter(|item| !done.failures.contains_key(&item.key)) {
        let engines: BTreeSet<_> = item.from.iter().copied().chain(item.to.as_ref().map(|s| s.engine)).collect();
        for engine in engines {
            batches.entry(engine).or_default().push(item.key.clone());
        }
    }
    for made in at_each(lanes, batches, |balancer, keys| balancer.finish(&keys), done).await? {
        done.take(made.outcomes);
        done.stale.extend(made.stale);
    }
    Ok(())
}

/// Runs a job at each engine that has work, at the same time.
async fn at_each<W, T>(
    lanes: &Lanes,
    work: BTreeMap<EngineKind, Vec<W>>,
    job: fn(&mut dyn super::lanes::Balancer, Vec<W>) -> T,
    done: &mut Programmed,
) -> Result<Vec<T>, Gone>
where
    W: Keyed + Send + 'static,
    T: Send + 'static,
{
    let mut calls = Vec::new();
    for (engine, work) in work {
        match lanes.balancers.get(&engine) {
            Some(worker) => {
                let worker = worker.clone();
                calls.push(async move { worker.call(move |balancer| job(balancer, work)).await });
            }
            None => {
                for one in work {
                    let text = format!("engine {engine} does not run on this node");
                    done.failures
                        .entry(one.key().clone())
                        .or_insert_with(|| Problem::new(ProblemCode::EngineUnusable, "", text));
                }
            }
        }
    }
    futures::future::try_join_all(calls).await
}

/// Work that belongs to a service.
trait Keyed {
    fn key(&self) -> &ServiceKey;
}

impl Keyed for ServiceKey {
    fn key(&self) -> &ServiceKey {
        self
    }
}

impl<I> Keyed for (ServiceKey, Option<I>) {
    fn key(&self) -> &ServiceKey {
        &self.0
    }
}

/// Renders the node itself everywhere: guard last, since it refers to what balancers have.
///
/// # Errors
/// [`Gone`] if a worker thread died.
pub async fn program_node(lanes: &Lanes, node: &Arc<Node>) -> Result<Result<Vec<FlowFilter>, Problem>, Gone> {
    let mut stale = Vec::new();
    for worker in lanes.balancers.values() {
        let node = Arc::clone(node);
        match worker.call(move |balancer| balancer.set_node(&node)).await? {
            Ok(flows) => stale.extend(flows),
            Err(problem) => return Ok(Err(problem)),
        }
    }
    if let Some(guard) = &lanes.guard {
        let node = Arc::clone(node);
        match guard.call(move |guard| guard.set_node(&node)).await? {
            Ok(flows) => stale.extend(flows),
            Err(problem) => return Ok(Err(problem)),
        }
    }
    Ok(Ok(stale))
}
