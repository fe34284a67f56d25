//! `vipctl get`.

use std::process::ExitCode;

use vipd_client::v1::{
    Engine, GetServiceRequest, ListServicesRequest, ListServicesResponse, ServiceState, status::State,
};

use crate::cli::Get;
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::session::Session;
use crate::table::Columns;
use crate::text::{self, name_of};

/// vipd ends a page at 1 MiB whatever is asked for.
const PAGE: u32 = 1_000;
/// Frontends that a line of the narrow table shows.
const FRONTENDS: usize = 2;

pub(super) async fn run(session: &Session, get: &Get) -> Result<ExitCode, Failure> {
    if let [name] = get.names.as_slice() {
        let state = one(session, &get.owner, name).await?;
        output::reply(session.format, &state, || table(std::slice::from_ref(&state), session.format))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut all = ListServicesResponse::default();
    for name in &get.names {
        all.services.push(one(session, &get.owner, name).await?);
    }
    if get.names.is_empty() {
        all = list(session, get).await?;
    }
    match session.format {
        // One document for each service, as people write them.
        Format::Yaml => {
            all.services.iter().try_for_each(|state| output::message(session.format, state, String::new))?;
        }
        format => output::reply(format, &all, || table(&all.services, format))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// One service, as a list has it.
pub(super) async fn one(session: &Session, owner: &str, name: &str) -> Result<ServiceState, Failure> {
    let request = GetServiceRequest { owner: owner.to_owned(), name: name.to_owned() };
    let reply = session.client.dataplane().get_service(session.ask(request)).await?.into_inner();
    Ok(ServiceState { service: reply.service, endpoints: reply.endpoints, status: reply.status })
}

async fn list(session: &Session, get: &Get) -> Result<ListServicesResponse, Failure> {
    let mut request = ListServicesRequest {
        owner: get.owner.clone(),
        labels: get.labels.iter().cloned().collect(),
        frontend: get.frontend.clone(),
        only_problems: get.problems,
        omit_endpoints: session.format.is_for_people(),
        page_size: PAGE,
        page_token: String::new(),
    };
    let mut all = ListServicesResponse::default();
    loop {
        let page = session.client.dataplane().list_services(session.ask(request.clone())).await?.into_inner();
        all.services.extend(page.services);
        all.revision = page.revision;
        if page.next_page_token.is_empty() {
            return Ok(all);
        }
        request.page_token = page.next_page_token;
    }
}

fn table(services: &[ServiceState], format: Format) -> String {
    if services.is_empty() {
        return "no services\n".to_owned();
    }
    let wide = format == Format::Wide;
    let narrow = ["OWNER", "NAME", "PROTOCOL", "FRONTENDS", "USABLE", "SCHEDULER", "ENGINE", "STATE"];
    let more = ["REVISION", "IN FORCE", "GROUP", "LABELS"];
    let heads = if wide { [&narrow[..], &more[..]].concat() } else { narrow.to_vec() };
    let mut columns = Columns::new(&heads);
    for state in services {
        columns.row(cells(state, wide));
    }
    let mut words = columns.render("");
    for state in services.iter().filter(|_| wide) {
        let (owner, name) = state.service.as_ref().map_or(("", ""), |s| (&s.owner, &s.name));
        let problems = state.status.as_ref().map(|status| status.problems.as_slice()).unwrap_or_default();
        words += &text::problems(problems, &format!("{}: ", text::key(owner, name)));
    }
    words
}

fn cells(state: &ServiceState, wide: bool) -> Vec<String> {
    let service = state.service.clone().unwrap_or_default();
    let status = state.status.clone().unwrap_or_default();
    let shown = if wide { service.frontends.len() } else { FRONTENDS };
    let mut frontends: Vec<String> = service.frontends.iter().take(shown).map(text::place).collect();
    if service.frontends.len() > shown {
        frontends.push(format!("+{}", service.frontends.len() - shown));
    }
    let look = match status.problems.len() {
        0 => String::new(),
        n => format!(" ({})", text::count(n, "problem")),
    };
    let mut cells = vec![
        service.owner.clone(),
        service.name.clone(),
        text::protocol(&service),
        frontends.join(" "),
        status.usable_endpoints.to_string(),
        text::algorithm(status.algorithm()),
        name_of!(Engine, status.engine),
        name_of!(State, status.state) + &look,
    ];
    if wide {
        let labels: std::collections::BTreeMap<_, _> = service.labels.iter().collect();
        let labels: Vec<String> = labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        cells.extend([
            status.revision.to_string(),
            status.programmed_revision.to_string(),
            service.group,
            labels.join(","),
        ]);
    }
    cells
}
