//! The default engine that a caller chooses for this node.

use super::Desired;
use crate::choose::{Blame, admit, default_engine};
use crate::delta::Delta;
use crate::feature::EngineKind;
use crate::limits::{PROBLEMS, REFUSED};
use crate::problem::{Problem, ProblemCode, Refused, Rejection};

/// Moves the services that follow the default. Refused, with the list, if one of them would lose something that it
/// has now, unless `allow_degraded`; the list is in the Delta then. A service that another engine of the configured
/// order can honour loses nothing.
pub(crate) fn set(desired: &Desired, engine: Option<EngineKind>, allow_degraded: bool) -> Result<Delta, Rejection> {
    if engine == desired.default_engine {
        return Ok(Delta { revision: desired.revision, ..Delta::default() });
    }
    let Some(target) = default_engine(&desired.engines, engine) else {
        return Err(Problem::new(ProblemCode::EngineUnusable, "engine", "no engine is configured").into());
    };
    if let Some(named) = engine {
        let ability = desired.engines.abilities.get(&named);
        if !ability.is_some_and(|a| a.usable) {
            let reason = ability.map_or("this build does not have it", |a| a.reason.as_str());
            let message = format!("{named} is not usable here: {reason}; name another engine");
            return Err(Problem::new(ProblemCode::EngineUnusable, "engine", message).into());
        }
    }
    let mut degraded: Vec<Refused> = Vec::new();
    let mut total = 0;
    for service in desired.services().filter(|s| s.definition.engine.is_none()) {
        let problems = lost(desired, engine, service);
        if problems.is_empty() {
            continue;
        }
        total += 1;
        if degraded.len() < REFUSED {
            let (owner, name) = (service.key.owner.to_string(), service.key.name.to_string());
            degraded.push(Refused { index: degraded.len() as u32, owner, name, problems });
        }
    }
    if !degraded.is_empty() && !allow_degraded {
        let head = Problem::new(
            ProblemCode::EngineLacks,
            "engine",
            format!("{total} services would lose something by {target}; say allow_degraded to accept that"),
        );
        let list = degraded.into_iter().flat_map(|r| r.problems).take(PROBLEMS - 1);
        return Err(Rejection { problems: std::iter::once(head).chain(list).collect() });
    }
    Ok(Delta {
        revision: desired.revision.next(),
        default_engine: Some(engine),
        refused: degraded,
        refused_total: total,
        ..Delta::default()
    })
}

/// What a service that is honoured now would lose under another default.
fn lost(desired: &Desired, engine: Option<EngineKind>, service: &crate::Service) -> Vec<Problem> {
    let Ok(now) = admit(&desired.engines, desired.default_engine, service) else { return Vec::new() };
    let under = |field: &str, message: String| Problem::new(ProblemCode::EngineLacks, field, message);
    match admit(&desired.engines, engine, service) {
        Ok(then) if then.replaced() && !now.replaced() => {
            vec![under(
                "engine",
                format!("service {}: {} would run instead of {}", service.key, then.algorithm, now.algorithm),
            )]
        }
        Ok(_) => Vec::new(),
        Err(refusal) => {
            let of = |blame| match blame {
                Blame::Definition(field) => field.into_owned(),
                Blame::Scheduler(field) => format!("scheduler.{field}"),
                Blame::Endpoint(key, field) => format!("endpoint {key} {field}"),
            };
            let problems = refusal.problems(of).into_iter();
            problems.map(|p| under("engine", format!("service {}, {}: {}", service.key, p.field, p.message))).collect()
        }
    }
}
