//! One batch through balancers, guard and cleaner.
//!
//! | step | on a new or changed service | on a removed one | on one that moves to another engine |
//! |---|---|---|---|
//! | 1 make | balancer ready | balancer told, so that others may take over | new balancer ready |
//! | 2 guard make | capture, refusals, source ranges | | capture moves |
//! | 3 retire | | | old balancer told, unless it carries flows |
//! | 4 guard finish | what it held before goes | capture goes first | |
//! | 5 finish | | then the balancer's objects | old balancer's objects |
//! | 6 clean | UDP flows that all this made stale | | judged by who may answer them |
//!
//! An engine that carries established flows itself is told of the service until they have ended: see
//! [`beside`](super::beside). Why in this order: `docs/decisions/0006`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vipd_engine::runner::Outcome;
use vipd_engine::{FlowFilter, GuardEntry, GuardInput, Judge, Node, ServiceCounters};
use vipd_model::{EngineKind, Problem, ProblemCode, Protocol, Revision, Selected, Service, ServiceKey};

use super::beside::{Beside, is_on_loopback};
use super::flows;
use super::lanes::{Balanced, Balancer, Lanes};
use super::worker::Gone;

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
    /// Other engines that are told of it.
    pub beside: Vec<Beside>,
    /// What was in force, and what served it.
    pub before: Option<(Arc<Service>, EngineKind)>,
    /// What was declared; absent: deleted.
    pub service: Option<Arc<Service>>,
    /// Standing notes of the engine choice.
    pub notes: Vec<Problem>,
    /// Why it is declared and not served.
    pub withdrawn: Option<Problem>,
}

impl Item {
    /// What every engine is told that shall have it.
    fn told(&self) -> impl Iterator<Item = &Selected> {
        self.to.iter().chain(self.beside.iter().map(|beside| &beside.selected))
    }

    /// Whether an engine keeps objects of it.
    pub(super) fn stays_at(&self, engine: EngineKind) -> bool {
        let beside = || self.beside.iter().any(|beside| beside.selected.engine == engine && !beside.last);
        self.to.as_ref().is_some_and(|to| to.engine == engine) || beside()
    }

    /// Engines that give it up while another one serves it.
    fn left(&self) -> impl Iterator<Item = EngineKind> {
        let served = self.to.is_some();
        let beside = self.beside.iter().map(|beside| beside.selected.engine);
        let had: BTreeSet<_> = self.from.iter().copied().chain(beside).collect();
        had.into_iter().filter(move |engine| served && !self.stays_at(*engine))
    }

    /// Every engine that has, or had, objects of it.
    fn concerned(&self) -> BTreeSet<EngineKind> {
        self.from.iter().copied().chain(self.told().map(|selected| selected.engine)).collect()
    }
}

/// How it went.
#[derive(Debug, Default)]
pub struct Programmed {
    /// By service; one that is missing succeeded.
    pub failures: BTreeMap<ServiceKey, Problem>,
    /// UDP flows to forget.
    pub stale: Vec<FlowFilter>,
    /// UDP flows to judge, where more than one engine has made some.
    pub judge: Judge,
    /// What engines have counted that do not have the service any more.
    pub counted: Vec<ServiceCounters>,
    /// Ports of relays by service.
    relays: BTreeMap<ServiceKey, Vec<u16>>,
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
pub async fn program(lanes: &Lanes, node: &Node, items: &[Item]) -> Result<Programmed, Gone> {
    let mut done = Programmed::default();
    let guard = make(lanes, items, &mut done).await?;
    guard_make(lanes, items, guard, &mut done).await?;
    retire(lanes, items, &mut done).await?;
    finish(lanes, items, &mut done).await?;
    judge(lanes, node, items, &mut done);
    Ok(done)
}

async fn make(lanes: &Lanes, items: &[Item], done: &mut Programmed) -> Result<Vec<GuardInput>, Gone> {
    let mut batches: BTreeMap<EngineKind, Vec<_>> = BTreeMap::new();
    for item in items {
        for selected in item.told() {
            batches.entry(selected.engine).or_default().push((item.key.clone(), Some(selected.clone())));
        }
        if item.to.is_none() {
            item.from.iter().for_each(|from| batches.entry(*from).or_default().push((item.key.clone(), None)));
        }
    }
    let serves: BTreeMap<&ServiceKey, EngineKind> =
        items.iter().filter_map(|item| Some((&item.key, item.to.as_ref()?.engine))).collect();
    let mut asked: BTreeMap<ServiceKey, Vec<GuardEntry>> = BTreeMap::new();
    for (engine, answer) in at_each(lanes, batches, |balancer, batch| balancer.make(batch), done).await? {
        let Balanced { outcomes, guard, stale } = answer;
        done.take(outcomes);
        done.stale.extend(stale);
        for GuardInput { key, entries } in guard {
            let captures = entries.iter().filter_map(GuardEntry::captured_to);
            done.relays.entry(key.clone()).or_default().extend(captures);
            let serves = serves.get(&key) == Some(&engine);
            let entries = entries.into_iter().filter(|entry| serves || is_on_loopback(entry));
            asked.entry(key).or_default().extend(entries);
        }
    }
    let sorted = asked.into_iter().map(|(key, mut entries)| {
        entries.sort();
        GuardInput { key, entries }
    });
    Ok(sorted.filter(|input| !done.failures.contains_key(&input.key)).collect())
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
        for engine in item.left() {
            batches.entry(engine).or_default().push((item.key.clone(), None));
        }
    }
    let last_words = |balancer: &mut dyn Balancer, batch: Vec<(ServiceKey, Option<Selected>)>| {
        let keys: Vec<_> = batch.iter().map(|(key, _)| key.clone()).collect();
        // What cannot be read now is lost to the totals, and no reason to stay.
        (balancer.counters(&keys).unwrap_or_default(), balancer.make(batch))
    };
    for (_, (counted, answer)) in at_each(lanes, batches, last_words, done).await? {
        done.counted.extend(counted);
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
        for engine in item.concerned() {
            batches.entry(engine).or_default().push(item.key.clone());
        }
    }
    for (_, made) in at_each(lanes, batches, |balancer, keys| balancer.finish(&keys), done).await? {
        done.take(made.outcomes);
        done.stale.extend(made.stale);
    }
    Ok(())
}

/// Where several engines have made UDP flows of a service, each would forget all of those that are not its own. Instead
/// one rule holds for all of them: who may answer.
fn judge(lanes: &Lanes, node: &Node, items: &[Item], done: &mut Programmed) {
    let translates = lanes.balancers.keys().any(|engine| !lanes.carriers.contains(engine));
    let mut judged: Vec<&Item> = Vec::new();
    let mut shared: Vec<&Item> = Vec::new();
    let mut spared: Vec<&Arc<Service>> = Vec::new();
    for item in items.iter().filter(|item| !done.failures.contains_key(&item.key)) {
        let (Some(to), Some((before, served))) = (&item.to, &item.before) else { continue };
        if to.service.definition.protocol != Protocol::Udp {
            continue;
        }
        let several = item.concerned().len() > 1;
        // Where more than the engine changed, sources may have lost their right: let each be judged anew.
        if several && before.definition == to.service.definition {
            spared.push(&to.service);
        }
        if *served != to.engine || item.left().next().is_some() {
            judged.push(item);
            continue;
        }
        if several {
            shared.push(item);
        }
        if several || (translates && lanes.carriers.contains(&to.engine)) {
            match flows::to_lost_endpoints(before, &to.service, node) {
                Some(filters) => done.stale.extend(filters),
                None => judged.push(item),
            }
        }
    }
    let places = flows::by_place(&spared, node);
    let count = done.stale.len();
    done.stale.retain(|filter| !places.forgets_all_of_one(filter));
    if done.stale.len() < count {
        judged.extend(shared);
    }
    for item in judged {
        let relays = done.relays.get(&item.key).map(Vec::as_slice).unwrap_or_default();
        if let Some(to) = &item.to {
            flows::judge(&mut done.judge, &to.service, node, relays);
        }
    }
}

/// Runs a job at each engine that has work, at the same time.
async fn at_each<W, T>(
    lanes: &Lanes,
    work: BTreeMap<EngineKind, Vec<W>>,
    job: impl Fn(&mut dyn Balancer, Vec<W>) -> T + Copy + Send + 'static,
    done: &mut Programmed,
) -> Result<Vec<(EngineKind, T)>, Gone>
where
    W: Keyed + Send + 'static,
    T: Send + 'static,
{
    let mut calls = Vec::new();
    for (engine, work) in work {
        match lanes.balancers.get(&engine) {
            Some(worker) => {
                let worker = worker.clone();
                calls.push(async move {
                    let answer = worker.call(move |balancer| job(balancer, work)).await?;
                    Ok((engine, answer))
                });
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
    let node = Arc::clone(node);
    let set = lanes.ask(move |lane| lane.set_node(&node)).await?;
    Ok(set.map(|flows| flows.into_iter().flat_map(|(_, flows)| flows).collect()))
}
