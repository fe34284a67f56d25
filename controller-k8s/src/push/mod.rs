//! Tells vipd: one Sync at the start, then differences, for ever.
//!
//! One call is under way at a time; what changes meanwhile goes into the next, so a storm costs few calls and nothing
//! queues up. A refused service never holds up another. `books` knows what was told, `call` makes the calls, `status`
//! follows what vipd says by itself.

mod books;
mod call;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use vipd_client::{CallError, Client};
use vipd_proto::v1;

use crate::events::{Source, Voice};
use crate::facts::{Key, Remark};
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::translate::{OWNER, service_key};
use crate::world::Changed;
use books::{Books, Plan, Told};
use status::Seen;

/// First and longest pause after a call that failed, and after a Service that was refused.
const CALL_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
const REFUSED_PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// Operations and bytes in one call: far below the limits of vipd, and small enough to be answered quickly.
const OPERATIONS: usize = 500;
const BYTES: usize = 2 << 20;

/// Tells vipd, for ever.
#[derive(Debug)]
pub struct Push {
    client: Client,
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    voice: Voice,
    allow_large_removal: bool,
    books: Books,
    refused: BTreeMap<Key, Retry>,
    session: Session,
    started: SystemTime,
}

/// What a Sync opened.
#[derive(Clone, Debug, Default)]
struct Session {
    number: u64,
    epoch: String,
    owner: v1::Owner,
}

/// When a refused Service is told again.
#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Instant,
    pause: Duration,
}

/// Why a session ended.
enum End {
    /// Another writer took over, or vipd is another one: begin with a Sync.
    Resync(String),
    /// The call failed.
    Failed(CallError),
}

impl From<CallError> for End {
    fn from(error: CallError) -> Self {
        if error.code() == tonic::Code::Aborted { Self::Resync(error.to_string()) } else { Self::Failed(error) }
    }
}

impl Push {
    /// Has told nothing yet.
    #[must_use]
    pub fn new(
        client: Client,
        shared: Arc<Shared>,
        metrics: Arc<Metrics>,
        voice: Voice,
        allow_large_removal: bool,
    ) -> Self {
        Self {
            client,
            shared,
            metrics,
            voice,
            allow_large_removal,
            books: Books::default(),
            refused: BTreeMap::new(),
            session: Session::default(),
            started: SystemTime::now(),
        }
    }

    /// Tells, until it is dropped.
    pub async fn run(mut self) {
        while !self.shared.with(|world| world.is_complete()) {
            self.shared.changed().await;
        }
        let (seen, mut vipd) = watch::channel(Seen::default());
        let follow = status::follow(self.client.clone(), self.voice.clone(), Arc::clone(&self.shared), seen);
        let tell = async {
            loop {
                self.sync_until_done().await;
                // What vipd said before says nothing about the session.
                vipd.mark_unchanged();
                let why = self.differences(&mut vipd).await;
                tracing::warn!("telling vipd everything again: {why}");
            }
        };
        tokio::join!(follow, tell);
    }

    async fn sync_until_done(&mut self) {
        let mut pause = CALL_PAUSE.0;
        loop {
            self.begin_telling();
            let began = Instant::now();
            match self.sync().await {
                Ok(()) => {
                    self.told(&Changed::default(), began);
                    return;
                }
                Err(error) => self.failed("Sync", &error),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(CALL_PAUSE.1);
        }
    }

    /// Sends what changed until a Sync is needed; says why.
    async fn differences(&mut self, vipd: &mut watch::Receiver<Seen>) -> String {
        let mut pause = None;
        loop {
            self.requeue_refused();
            if !self.shared.with(|world| world.has_changed()) {
                let retry = self.refused.values().map(|retry| retry.at).min();
                let retry = retry.map_or(Duration::from_secs(3_600), |at| at.saturating_duration_since(Instant::now()));
                tokio::select! {
                    () = self.shared.changed() => {}
                    () = tokio::time::sleep(retry) => {}
                    _ = vipd.changed() => vipd.mark_changed(),
                }
            }
            if vipd.has_changed().unwrap_or(false)
                && let Some(why) = vipd.borrow_and_update().lost(&self.session)
            {
                return why;
            }
            self.begin_telling();
            let began = Instant::now();
            let changed = self.shared.with(|world| world.take_changed());
            if changed.is_empty() {
                self.shared.progress().telling_since = None;
                continue;
            }
            match self.tell(&changed).await {
                Ok(()) => {
                    self.told(&changed, began);
                    pause = None;
                }
                Err(end) => {
                    self.shared.with(|world| {
                        world.put_back(changed.services);
                        if changed.owner {
                            world.put_owner_back();
                        }
                    });
                    match end {
                        End::Resync(why) => return why,
                        End::Failed(error) => self.failed("telling changes", &error),
                    }
                    let now = pause.unwrap_or(CALL_PAUSE.0);
                    tokio::time::sleep(now).await;
                    pause = Some((now * 2).min(CALL_PAUSE.1));
                }
            }
        }
    }

    /// Tells one batch of changes, in calls of bounded size.
    async fn tell(&mut self, changed: &Changed) -> Result<(), End> {
        if changed.owner {
            let owner = self.shared.owner();
            if owner != self.session.owner {
                self.set_owner(owner).await?;
            }
        }
        let mut batch: Vec<(Key, Plan)> = Vec::new();
        let (mut operations, mut bytes) = (0, 0);
        for key in &changed.services {
            let plan = self.plan(key);
            if plan.operations.is_empty() {
                self.books.accepted(key.clone(), plan.then);
                continue;
            }
            let size: usize = plan.operations.iter().map(prost::Message::encoded_len).sum();
            if operations + plan.operations.len() > OPERATIONS || bytes + size > BYTES {
                self.apply(std::mem::take(&mut batch)).await?;
                (operations, bytes) = (0, 0);
            }
            operations += plan.operations.len();
            bytes += size;
            batch.push((key.clone(), plan));
        }
        self.apply(batch).await
    }

    fn plan(&self, key: &Key) -> Plan {
        let node = self.shared.with(|world| world.node_facts().cloned()).unwrap_or_default();
        let context = self.shared.context(&node);
        let translation = self.shared.with(|world| world.translate(key, context));
        let Some(translation) = translation else {
            self.voice.forget(key);
            return self.books.plan(key, Vec::new());
        };
        self.voice.say(key, Source::Translation, translation.remarks);
        self.books.plan(key, translation.services)
    }

    async fn apply(&mut self, batch: Vec<(Key, Plan)>) -> Result<(), End> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut operations = Vec::new();
        let mut parts = Vec::with_capacity(batch.len());
        for (key, plan) in batch {
            operations.extend(plan.operations);
            parts.push((key, plan.then));
        }
        match call::apply(&self.client, &self.session, operations).await {
            Ok(response) => {
                let refused = call::refused_names(response.refused);
                for (key, then) in parts {
                    self.accepted(key, then, &refused);
                }
                let change = response.change.unwrap_or_default();
                if change.epoch != self.session.epoch {
                    return Err(End::Resync("vipd began a new store".to_owned()));
                }
                Ok(())
            }
            Err(error) => {
                for (key, then) in parts {
                    let names: BTreeSet<_> = self.books.names(&key).into_iter().chain(then.into_keys()).collect();
                    self.books.unknown(&key, names);
                }
                Err(error.into())
            }
        }
    }

    /// Writes down what was accepted of one Service and says what was not.
    fn accepted(&mut self, key: Key, then: Told, refused: &BTreeMap<String, Vec<Remark>>) {
        let mut remarks = Vec::new();
        let bad: Vec<Box<str>> = then.keys().filter(|name| refused.contains_key(&***name)).cloned().collect();
        for name in &bad {
            remarks.extend(refused.get(&**name).into_iter().flatten().cloned());
        }
        self.books.accepted(key.clone(), then);
        if !bad.is_empty() {
            self.books.unknown(&key, bad);
        }
        if remarks.is_empty() {
            self.refused.remove(&key);
        } else {
            let pause = self.refused.get(&key).map_or(REFUSED_PAUSE.0, |last| (last.pause * 2).min(REFUSED_PAUSE.1));
            self.refused.insert(key.clone(), Retry { at: Instant::now() + pause, pause });
        }
        self.voice.say(&key, Source::Refusal, remarks);
    }

    async fn sync(&mut self) -> Result<(), CallError> {
        let owner = self.shared.owner();
        // What changes from here on is told afterwards.
        let _ = self.shared.with(|world| world.take_changed());
        let keys: Vec<Key> = self.shared.with(|world| world.services().cloned().collect());
        let synced = call::sync(&self.client, &self.shared, owner.clone(), &keys, self.allow_large_removal).await?;
        let change = synced.response.change.clone().unwrap_or_default();
        let number = synced.response.session;
        self.session = Session { number, epoch: change.epoch, owner };
        self.books = Books::default();
        self.refused.clear();
        let refused = call::refused_names(synced.response.refused);
        for (key, told, remarks) in synced.told {
            self.voice.say(&key, Source::Translation, remarks);
            self.accepted(key, told, &refused);
        }
        let (services, told) = self.books.len();
        let v1::SyncResponse { created, updated, removed, refused_total, .. } = synced.response;
        tracing::info!(
            services,
            told,
            created,
            updated,
            removed,
            refused = refused_total,
            "vipd has been told everything"
        );
        Ok(())
    }

    async fn set_owner(&mut self, owner: v1::Owner) -> Result<(), End> {
        call::set_owner(&self.client, &self.session, owner.clone()).await?;
        self.session.owner = owner;
        Ok(())
    }

    fn requeue_refused(&mut self) {
        let now = Instant::now();
        let due: Vec<Key> = self.refused.iter().filter(|(_, r)| r.at <= now).map(|(key, _)| key.clone()).collect();
        if !due.is_empty() {
            for key in &due {
                if let Some(retry) = self.refused.get_mut(key) {
                    retry.at = now + retry.pause;
                }
            }
            self.shared.with(|world| world.put_back(due));
        }
    }

    fn begin_telling(&self) {
        let mut progress = self.shared.progress();
        let since = progress.behind_since();
        (progress.telling_since, progress.waiting_since) = (since, None);
    }

    fn told(&self, changed: &Changed, began: Instant) {
        {
            let mut progress = self.shared.progress();
            progress.telling_since = None;
            progress.last_success = Some(SystemTime::now());
        }
        self.metrics.told(changed, began.elapsed(), self.started);
    }

    fn failed(&self, what: &str, error: &CallError) {
        self.metrics.failures.inc();
        tracing::warn!("{what}: {error}; trying again");
        for problem in error.problems() {
            tracing::warn!("{}: {}", problem.field, problem.message);
        }
    }
}
