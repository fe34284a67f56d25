//! `vipctl stats`.

use std::process::ExitCode;

use vipd_client::v1::get_stats_response::{Counters, ServiceStats};
use vipd_client::v1::{GetStatsRequest, GetStatsResponse};

use crate::cli::Stats;
use crate::failure::Failure;
use crate::output;
use crate::session::Session;
use crate::table::Columns;
use crate::text;

pub(super) async fn run(session: &Session, stats: &Stats) -> Result<ExitCode, Failure> {
    let mut request = GetStatsRequest {
        owner: stats.owner.clone(),
        name: stats.name.clone(),
        per_endpoint: stats.endpoints,
        ..Default::default()
    };
    let mut all = GetStatsResponse::default();
    loop {
        let page = session.client.node().get_stats(session.ask(request.clone())).await?.into_inner();
        all.services.extend(page.services);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    output::reply(session.format, &all, || table(&all.services))?;
    Ok(ExitCode::SUCCESS)
}

fn table(services: &[ServiceStats]) -> String {
    if services.is_empty() {
        return "no services\n".to_owned();
    }
    let mut columns = Columns::new(&[
        "SERVICE",
        "ENDPOINT",
        "TARGET",
        "CONNECTIONS",
        "ACTIVE",
        "REFUSED",
        "BYTES IN",
        "BYTES OUT",
        "PACKETS IN",
        "PACKETS OUT",
        "SINCE",
    ]);
    for service in services {
        let name = text::key(&service.owner, &service.name);
        let since = text::when(service.since.as_ref());
        columns.row(row([name.clone(), String::new(), String::new()], service.total.as_ref(), since));
        for endpoint in &service.endpoints {
            let address = text::address(&endpoint.address, endpoint.port);
            let head = [name.clone(), address, endpoint.target.clone()];
            columns.row(row(head, endpoint.counters.as_ref(), String::new()));
        }
    }
    columns.render("")
}

fn row(head: [String; 3], counters: Option<&Counters>, since: String) -> Vec<String> {
    let counters = counters.copied().unwrap_or_default();
    let counted = [
        counters.connections,
        counters.active,
        counters.refused,
        counters.bytes_in,
        counters.bytes_out,
        counters.packets_in,
        counters.packets_out,
    ];
    let counted = counted.map(|number| number.map_or_else(|| "-".to_owned(), |number| number.to_string()));
    head.into_iter().chain(counted).chain([since]).collect()
}
