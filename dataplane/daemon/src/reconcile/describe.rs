//! What changed about a service, in one line for the journal: old → new.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use vipd_model::{Endpoint, Service};

/// Endpoints named in a line before it only counts them.
const NAMED: usize = 4;

/// From `before` to `after`; one of them is there.
pub(super) fn describe(before: Option<&Service>, after: Option<&Service>) -> String {
    match (before, after) {
        (None, Some(after)) => {
            let frontends: Vec<_> = after.definition.frontends.iter().map(ToString::to_string).collect();
            let protocol = after.definition.protocol;
            format!("created: {protocol} {}, {} endpoints", list(&frontends), after.endpoints.len())
        }
        (Some(before), None) => format!("deleted, with {} endpoints", before.endpoints.len()),
        (Some(before), Some(after)) => {
            let mut parts = definition(before, after);
            parts.extend(endpoints(&before.endpoints, &after.endpoints));
            if before.scheduler != after.scheduler {
                parts.push(format!("scheduler {} → {}", before.scheduler.algorithm, after.scheduler.algorithm));
            }
            if before.waiting != after.waiting {
                parts.push(format!("waits for {} frontends → {}", before.waiting.len(), after.waiting.len()));
            }
            parts.join("; ")
        }
        (None, None) => String::new(),
    }
}

fn list(names: &[String]) -> String {
    let mut text = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        let _ = write!(text, " and {} more", names.len() - NAMED);
    }
    if text.is_empty() { "no frontends".to_owned() } else { text }
}

fn definition(before: &Service, after: &Service) -> Vec<String> {
    let (old, new) = (&before.definition, &after.definition);
    if old == new {
        return Vec::new();
    }
    let mut parts = Vec::new();
    let names = |service: &Service| service.definition.frontends.iter().map(ToString::to_string).collect::<Vec<_>>();
    if old.frontends != new.frontends {
        let (old, new) = (list(&names(before)), list(&names(after)));
        parts.push(if old == new { format!("rules of {new}") } else { format!("frontends {old} → {new}") });
    }
    if old.protocol != new.protocol {
        parts.push(format!("protocol {} → {}", old.protocol, new.protocol));
    }
    if old.client_affinity != new.client_affinity {
        let text = |a: &Option<vipd_model::ClientAffinity>| {
            a.map_or_else(|| "none".to_owned(), |a| format!("{} s", a.timeout.as_secs()))
        };
        parts.push(format!("affinity {} → {}", text(&old.client_affinity), text(&new.client_affinity)));
    }
    if old.engine != new.engine {
        let text = |e: Option<vipd_model::EngineKind>| e.map_or_else(|| "the node's".to_owned(), |e| e.to_string());
        parts.push(format!("engine {} → {}", text(old.engine), text(new.engine)));
    }
    if parts.is_empty() {
        parts.push("definition changed".to_owned());
    }
    parts
}

fn endpoints(before: &[Endpoint], after: &[Endpoint]) -> Option<String> {
    if before == after {
        return None;
    }
    let old: BTreeMap<_, _> = before.iter().map(|e| (e.key, e)).collect();
    let new: BTreeMap<_, _> = after.iter().map(|e| (e.key, e)).collect();
    let mut names = Vec::new();
    names.extend(new.keys().filter(|key| !old.contains_key(key)).map(|key| format!("+{key}")));
    names.extend(old.keys().filter(|key| !new.contains_key(key)).map(|key| format!("-{key}")));
    for (key, endpoint) in &new {
        if let Some(was) = old.get(key)
            && was != endpoint
        {
            names.push(if was.state == endpoint.state {
                format!("{key} weight {} → {}", was.weight, endpoint.weight)
            } else {
                format!("{key} {} → {}", was.state, endpoint.state)
            });
        }
    }
    Some(format!("endpoints {} → {}: {}", before.len(), after.len(), list(&names)))
}
