//! `vipctl describe`: everything about one service, from top to bottom.

use std::collections::BTreeMap;
use std::process::ExitCode;

use vipd_client::v1::{
    Drain, Endpoint, Engine, Frontend, Service, ServiceState, Status, drain, endpoint, frontend, service, status::State,
};

use crate::cli::Describe;
use crate::failure::Failure;
use crate::output;
use crate::session::Session;
use crate::table::Columns;
use crate::text::{self, name_of};

pub(super) async fn run(session: &Session, describe: &Describe) -> Result<ExitCode, Failure> {
    let state = super::get::one(session, &describe.owner, &describe.name).await?;
    output::reply(session.format, &state, || words(&state))?;
    Ok(ExitCode::SUCCESS)
}

fn words(state: &ServiceState) -> String {
    let service = state.service.clone().unwrap_or_default();
    let status = state.status.clone().unwrap_or_default();
    let mut words = String::new();
    let mut line = |head: &str, text: String| {
        if !text.is_empty() {
            words += &format!("{head:<12}{text}\n");
        }
    };
    line("Service", format!("{}, {}", text::key(&service.owner, &service.name), text::protocol(&service)));
    line("State", in_force(&status));
    line("Engine", engine(&status));
    line("Scheduler", text::algorithm(status.algorithm()));
    line("Affinity", affinity(&service));
    line("Drain", drain(service.drain.as_ref()));
    line("Group", service.group.clone());
    line("Labels", labels(&service));
    line("No endpoint", refusals(&service));
    line("Health port", if service.health_port == 0 { String::new() } else { service.health_port.to_string() });
    words += &format!("\nFrontends\n{}", frontends(&service.frontends, &status));
    let (usable, local) = (status.usable_endpoints, status.local_ready_endpoints);
    words += &format!("\nEndpoints ({usable} of {} usable, {local} local and ready)\n", state.endpoints.len());
    words += &endpoints(&state.endpoints);
    if !status.problems.is_empty() {
        words += &format!("\nProblems\n{}", text::problems(&status.problems, "  "));
    }
    words
}

fn in_force(status: &Status) -> String {
    let state = name_of!(State, status.state);
    let parts = [
        ("definition", status.definition_revision),
        ("endpoints", status.endpoints_revision),
        ("scheduler", status.scheduler_revision),
    ];
    let parts: Vec<String> = parts.iter().map(|(part, revision)| format!("{part} {revision}")).collect();
    let at = text::when(status.programmed_at.as_ref());
    let at = if at.is_empty() { at } else { format!(" since {at}") };
    format!(
        "{state}: revision {} is in force{at}; declared is {} ({})",
        status.programmed_revision,
        status.revision,
        parts.join(", ")
    )
}

fn engine(status: &Status) -> String {
    let engine = name_of!(Engine, status.engine);
    match status.draining_engine() {
        Engine::Unspecified => engine,
        old => format!("{engine}; {} still carries established flows", old.as_str_name()),
    }
}

fn affinity(service: &Service) -> String {
    let Some(affinity) = &service.client_affinity else { return String::new() };
    let timeout = affinity.timeout.as_ref().map_or_else(|| "3h".to_owned(), text::span);
    let (v4, v6) = (affinity.prefix_v4.unwrap_or(32), affinity.prefix_v6.unwrap_or(128));
    let clients =
        if (v4, v6) == (32, 128) { String::new() } else { format!(", clients of one /{v4} or /{v6} are one") };
    format!("by client address, for {timeout} since its last new flow{clients}")
}

fn drain(drain: Option<&Drain>) -> String {
    let Some(drain) = drain else { return String::new() };
    let then = match drain.on_expiry() {
        drain::OnExpiry::Reset => "then reset",
        drain::OnExpiry::Leave | drain::OnExpiry::Unspecified => "then left alone",
    };
    drain.timeout.as_ref().map_or_else(String::new, |timeout| format!("{}, {then}", text::span(timeout)))
}

fn labels(service: &Service) -> String {
    let labels: BTreeMap<_, _> = service.labels.iter().collect();
    labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

/// Only what is not as by default.
fn refusals(service: &Service) -> String {
    let nowhere = (service.on_no_endpoints() == service::Refusal::Drop).then_some("anywhere: DROP");
    let not_here = (service.on_no_local_endpoints() == service::Refusal::Reject).then_some("here: REJECT");
    [nowhere, not_here].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn frontends(frontends: &[Frontend], status: &Status) -> String {
    let mut columns = Columns::new(&["ADDRESS", "SCOPE", "POLICY", "SOURCE NAT", "SOURCES", "HELD"]);
    for (index, frontend) in frontends.iter().enumerate() {
        let is_waiting = status.waiting_frontends.iter().any(|&waiting| waiting as usize == index);
        columns.row([
            text::place(frontend),
            name_of!(frontend::Scope, frontend.scope),
            name_of!(frontend::Policy, frontend.policy),
            name_of!(frontend::SourceNat, frontend.source_nat),
            frontend.source_ranges.join(" "),
            if is_waiting { "by another service; waiting".to_owned() } else { String::new() },
        ]);
    }
    if frontends.is_empty() { "  none: declared, not reachable\n".to_owned() } else { columns.render("  ") }
}

fn endpoints(endpoints: &[Endpoint]) -> String {
    let mut columns =
        Columns::new(&["ADDRESS", "WEIGHT", "STATE", "LOCAL", "TIER", "MAX CONNECTIONS", "DRAIN", "TARGET"]);
    let number = |number: u32| if number == 0 { String::new() } else { number.to_string() };
    for endpoint in endpoints {
        columns.row([
            text::endpoint(endpoint),
            endpoint.weight.unwrap_or(1).to_string(),
            name_of!(endpoint::State, endpoint.state),
            if endpoint.local { "local".to_owned() } else { String::new() },
            number(endpoint.tier),
            number(endpoint.max_connections),
            drain(endpoint.drain.as_ref()),
            endpoint.target.clone(),
        ]);
    }
    columns.render("  ")
}
