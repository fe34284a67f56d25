//! Which engine serves a service, and which algorithm runs there.
//!
//! A service that names an engine gets that one; one that names none gets the node's default where that can honour it,
//! else the first of the configured order that can. [`admit`] is the answer at acceptance and refuses what nobody here
//! can honour; [`choose`] is the answer at run time and never takes a service down for a capability that was lost later:
//! the nearest engine serves it, and says what it lacks.

use std::collections::BTreeSet;

use crate::feature::{Ability, EngineKind, Engines, Feature};
pub use crate::needs::Blame;
use crate::needs::{Needs, needs, wants};
use crate::problem::{Problem, ProblemCode};
use crate::scheduler::Algorithm;
use crate::service::Service;

/// What serves a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The engine.
    pub engine: EngineKind,
    /// What runs there; never `Default`.
    pub algorithm: Algorithm,
    /// What the service needs and this engine lacks; empty unless a capability was lost after acceptance.
    pub lacks: BTreeSet<Feature>,
    /// ENGINE_CHOSEN, SCHEDULER_REPLACED, ENGINE_REPLACED: to stand in the service's status. Without fields.
    pub problems: Vec<Problem>,
}

impl Choice {
    /// Whether another algorithm runs than the one that was asked for.
    #[must_use]
    pub fn replaced(&self) -> bool {
        self.problems.iter().any(|p| p.code == ProblemCode::SchedulerReplaced)
    }
}

/// What no engine that may serve a service can honour; never without an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    items: Vec<(Blame, ProblemCode, String)>,
}

impl Refusal {
    /// One problem for each thing that is lacking. `path` gives the field in the request.
    #[must_use]
    pub fn problems(self, path: impl Fn(Blame) -> String) -> Vec<Problem> {
        self.items.into_iter().map(|(blame, code, message)| Problem::new(code, path(blame), message)).collect()
    }
}

/// What runs instead of an algorithm that an engine does not have: the first of these that it has. Part of the
/// documentation; what keeps a client where it is comes first for the hashes, what looks at load for the others.
#[must_use]
pub fn nearest(algorithm: Algorithm) -> &'static [Algorithm] {
    use Algorithm::{Dh, Fo, Lblc, Lblcr, Lc, Mh, Nq, Ovf, P2c, Random, Rr, Sed, Sh, Wlc, Wrr};
    match algorithm {
        Algorithm::Default => &[Rr, Random, Wrr],
        Rr => &[Wrr, Random],
        Wrr => &[Rr, Random],
        Random => &[Wrr, Rr],
        Lc => &[Wlc, P2c, Rr, Random],
        Wlc => &[Lc, Sed, P2c, Wrr, Rr, Random],
        Sed => &[Wlc, Nq, Lc, P2c, Wrr, Rr, Random],
        Nq => &[Sed, Wlc, Lc, P2c, Wrr, Rr, Random],
        P2c => &[Wlc, Lc, Random, Wrr, Rr],
        Sh => &[Mh, Dh, Random, Wrr, Rr],
        Mh => &[Sh, Dh, Random, Wrr, Rr],
        Dh => &[Lblc, Mh, Sh, Random, Wrr, Rr],
        Lblc => &[Lblcr, Dh, Wlc, Lc, Wrr, Rr, Random],
        Lblcr => &[Lblc, Dh, Wlc, Lc, Wrr, Rr, Random],
        Fo => &[Ovf, Wrr, Rr, Random],
        Ovf => &[Fo, Wlc, Wrr, Rr, Random],
    }
}

/// The node's default: what a caller chose, else the first of the configured order.
#[must_use]
pub fn default_engine(engines: &Engines, chosen: Option<EngineKind>) -> Option<EngineKind> {
    chosen.or_else(|| engines.order.first().copied())
}

/// The engine for a service that is to be accepted. `chosen` is the default engine that a caller set.
///
/// # Errors
/// What no engine that may serve it can honour, and which engines could.
pub fn admit(engines: &Engines, chosen: Option<EngineKind>, service: &Service) -> Result<Choice, Refusal> {
    let needs = needs(service);
    let asked = Asked::new(engines, chosen, service);
    let usable = || asked.candidates.iter().filter_map(|kind| asked.usable(*kind));
    let able = |ability: &Ability| !needs.health_check && needs.features.is_subset(&ability.features);
    let exact = usable().find_map(|(kind, ability)| {
        let algorithm = exact(kind, ability, needs.algorithm)?;
        able(ability).then_some((kind, algorithm))
    });
    let found = exact.or_else(|| {
        let mut near = usable().filter(|(_, ability)| needs.nearest && able(ability));
        near.find_map(|(kind, ability)| Some((kind, replaced(ability, needs.algorithm)?)))
    });
    match found {
        Some((engine, algorithm)) => Ok(asked.choice(&needs, engine, algorithm)),
        None => Err(asked.refusal(&needs)),
    }
}

/// The engine for an accepted service, now. Absent: no engine is usable at all.
#[must_use]
pub fn choose(engines: &Engines, chosen: Option<EngineKind>, service: &Service) -> Option<Choice> {
    if let Ok(choice) = admit(engines, chosen, service) {
        return Some(choice);
    }
    let needs = needs(service);
    let mut asked = Asked::new(engines, chosen, service);
    asked.candidates.extend(default_engine(engines, chosen).into_iter().chain(engines.order.iter().copied()));
    let usable = asked.candidates.iter().filter_map(|kind| asked.usable(*kind));
    let (engine, ability) = usable.min_by_key(|(_, ability)| {
        let lacks = needs.features.difference(&ability.features);
        // Without the protocol nothing works, so it outweighs every other Feature.
        let cost = |f: &Feature| if matches!(f, Feature::Tcp | Feature::Udp | Feature::Sctp) { 1000 } else { 2 };
        lacks.map(cost).sum::<usize>() + usize::from(!has(ability, needs.algorithm))
    })?;
    let algorithm = exact(engine, ability, needs.algorithm)
        .or_else(|| replaced(ability, needs.algorithm))
        .unwrap_or_else(|| spread(engine, ability));
    Some(asked.choice(&needs, engine, algorithm))
}

fn has(ability: &Ability, algorithm: Algorithm) -> bool {
    algorithm == Algorithm::Default || ability.algorithms.contains(&algorithm)
}

/// What honours an algorithm exactly. The default is had by every engine.
fn exact(engine: EngineKind, ability: &Ability, algorithm: Algorithm) -> Option<Algorithm> {
    match algorithm {
        Algorithm::Default => Some(spread(engine, ability)),
        _ => ability.algorithms.contains(&algorithm).then_some(algorithm),
    }
}

/// The even spread that an engine is best at, else the nearest to one that it has.
fn spread(engine: EngineKind, ability: &Ability) -> Algorithm {
    let natural = match engine {
        EngineKind::Userspace | EngineKind::Ipvs => Algorithm::Rr,
        EngineKind::Iptables | EngineKind::Nftables => Algorithm::Random,
    };
    if ability.algorithms.contains(&natural) {
        return natural;
    }
    replaced(ability, Algorithm::Default).or_else(|| ability.algorithms.first().copied()).unwrap_or(natural)
}

fn replaced(ability: &Ability, algorithm: Algorithm) -> Option<Algorithm> {
    nearest(algorithm).iter().copied().find(|a| ability.algorithms.contains(a))
}

/// The engines that may serve one service.
struct Asked<'a> {
    engines: &'a Engines,
    service: &'a Service,
    named: Option<EngineKind>,
    default: Option<EngineKind>,
    /// In order of preference; one may stand in it twice.
    candidates: Vec<EngineKind>,
}

impl<'a> Asked<'a> {
    fn new(engines: &'a Engines, chosen: Option<EngineKind>, service: &'a Service) -> Self {
        let named = service.definition.engine;
        let default = default_engine(engines, chosen);
        let candidates = match named {
            Some(engine) => vec![engine],
            None => default.into_iter().chain(engines.order.iter().copied()).collect(),
        };
        Self { engines, service, named, default, candidates }
    }

    fn usable(&self, kind: EngineKind) -> Option<(EngineKind, &'a Ability)> {
        self.engines.abilities.get(&kind).filter(|a| a.usable).map(|a| (kind, a))
    }

    /// The engine that was wanted first.
    fn wanted(&self) -> Option<EngineKind> {
        self.named.or(self.default)
    }

    fn choice(&self, needs: &Needs, engine: EngineKind, algorithm: Algorithm) -> Choice {
        let ability = self.engines.abilities.get(&engine);
        let lacks: BTreeSet<Feature> = match ability {
            Some(ability) => needs.features.difference(&ability.features).copied().collect(),
            None => needs.features.clone(),
        };
        let mut problems = Vec::new();
        if let Some(wanted) = self.wanted().filter(|wanted| *wanted != engine) {
            problems.push(self.moved(needs, wanted, engine));
        }
        if !lacks.is_empty() {
            let message = format!(
                "no engine of this node honours the service any more; {engine} serves it without {}, until an engine that \
                 has it is back",
                listed(lacks.iter())
            );
            problems.push(Problem::new(ProblemCode::EngineReplaced, "", message));
        }
        if needs.algorithm != Algorithm::Default && algorithm != needs.algorithm {
            let message = format!("{engine} has no {}; {algorithm}, the nearest, runs instead", needs.algorithm);
            problems.push(Problem::new(ProblemCode::SchedulerReplaced, "", message));
        }
        Choice { engine, algorithm, lacks, problems }
    }

    /// Why another engine serves than the one that was wanted first.
    fn moved(&self, needs: &Needs, wanted: EngineKind, engine: EngineKind) -> Problem {
        let Some((_, ability)) = self.usable(wanted) else {
            let message = format!("{wanted} is not usable here: {}; {engine} serves meanwhile", self.reason(wanted));
            return Problem::new(ProblemCode::EngineReplaced, "", message);
        };
        let mut lacking: Vec<String> =
            needs.features.difference(&ability.features).map(|f| f.name().to_owned()).collect();
        if !has(ability, needs.algorithm) {
            lacking.push(format!("scheduler {}", needs.algorithm));
        }
        let message = format!("the default engine {wanted} lacks {}; {engine} serves this service", lacking.join(", "));
        Problem::new(ProblemCode::EngineChosen, "", message)
    }

    fn reason(&self, kind: EngineKind) -> String {
        match self.engines.abilities.get(&kind) {
            Some(ability) if ability.reason.is_empty() => "no reason was given".into(),
            Some(ability) => ability.reason.clone(),
            None => "this build does not have it".into(),
        }
    }

    fn refusal(&self, needs: &Needs) -> Refusal {
        if needs.health_check {
            let message = "active health checks come in a later version; leave health_check out";
            return one(Blame::Definition("health_check".into()), ProblemCode::EngineLacks, message.into());
        }
        let usable = self.candidates.iter().filter_map(|kind| self.usable(*kind));
        let count = |ability: &Ability| {
            needs.features.difference(&ability.features).count() + usize::from(!has(ability, needs.algorithm))
        };
        let Some((kind, ability)) = usable.min_by_key(|(_, ability)| count(ability)) else { return self.unusable() };
        let who = if self.named.is_some() { format!("engine {kind}") } else { "the engines usable here".to_owned() };
        let advice = if self.named.is_some() { "name one of those or none" } else { "leave it out" };
        let features = needs.features.difference(&ability.features).map(|feature| {
            let blame = wants(self.service, *feature).unwrap_or(Blame::Definition("engine".into()));
            let having = self.having(|a| a.features.contains(feature));
            (blame, ProblemCode::EngineLacks, format!("{who} cannot: {feature}; {having}; {advice}"))
        });
        let algorithm = (!has(ability, needs.algorithm)).then(|| {
            let having = self.having(|a| a.algorithms.contains(&needs.algorithm));
            let message =
                format!("{who} cannot: scheduler {}; {having}; {advice}, or say fallback: NEAREST", needs.algorithm);
            (Blame::Scheduler("algorithm"), ProblemCode::EngineLacks, message)
        });
        Refusal { items: features.chain(algorithm).collect() }
    }

    /// Nobody may serve it.
    fn unusable(&self) -> Refusal {
        let message = match self.named {
            Some(kind) => format!("{kind} is not usable here: {}; name another engine or none", self.reason(kind)),
            None => "no engine of this node is usable; `vipd check` says why".into(),
        };
        one(Blame::Definition("engine".into()), ProblemCode::EngineUnusable, message)
    }

    /// Which engines have something, usable here or not.
    fn having(&self, has: impl Fn(&Ability) -> bool) -> String {
        let list: Vec<String> = EngineKind::ALL
            .into_iter()
            .filter(|kind| self.engines.abilities.get(kind).is_some_and(&has))
            .map(|kind| match self.usable(kind) {
                Some(_) => format!("{kind} (usable here)"),
                None => format!("{kind} (not usable here: {})", self.reason(kind)),
            })
            .collect();
        if list.is_empty() { "no engine of this version has it".into() } else { format!("had by {}", list.join(", ")) }
    }
}

fn one(blame: Blame, code: ProblemCode, message: String) -> Refusal {
    Refusal { items: vec![(blame, code, message)] }
}

fn listed<'a>(features: impl Iterator<Item = &'a Feature>) -> String {
    features.map(|f| f.name()).collect::<Vec<_>>().join(", ")
}

/// Whether `after` asks an engine for nothing that `before` did not ask for.
pub(crate) fn asks_no_more(before: &Service, after: &Service) -> bool {
    let (old, new) = (needs(before), needs(after));
    new.features.is_subset(&old.features)
        && (new.algorithm, new.nearest) == (old.algorithm, old.nearest)
        && new.health_check <= old.health_check
        && before.definition.engine == after.definition.engine
}
