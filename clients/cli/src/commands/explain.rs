//! `vipctl explain`.

use std::process::ExitCode;

use vipd_client::v1::explain_response::{Candidate, Verdict};
use vipd_client::v1::{Engine, ExplainRequest, ExplainResponse, Protocol};

use crate::cli::Explain;
use crate::failure::Failure;
use crate::output;
use crate::session::Session;
use crate::table::Columns;
use crate::text::{self, name_of};

pub(super) async fn run(session: &Session, explain: &Explain) -> Result<ExitCode, Failure> {
    let protocol = match (explain.udp, explain.sctp) {
        (true, _) => Protocol::Udp,
        (_, true) => Protocol::Sctp,
        _ => Protocol::Tcp,
    };
    let (destination, port) = explain.destination.clone();
    let request = ExplainRequest {
        source: explain.source.clone(),
        destination,
        protocol: protocol.into(),
        source_port: explain.source_port.into(),
        destination_port: port,
        in_interface: explain.interface.clone(),
    };
    let packet =
        format!("{} from {} to {}", protocol.as_str_name(), explain.source, text::address(&request.destination, port));
    let reply = session.client.node().explain(session.ask(request)).await?.into_inner();
    output::reply(session.format, &reply, || words(&packet, &reply))?;
    Ok(ExitCode::SUCCESS)
}

fn words(packet: &str, reply: &ExplainResponse) -> String {
    let by = match reply.verdict() {
        Verdict::NotOurs => String::new(),
        _ if reply.service.is_empty() => String::new(),
        _ => format!(
            " by {} (frontend {}, engine {})",
            text::key(&reply.owner, &reply.service),
            reply.frontend,
            name_of!(Engine, reply.engine)
        ),
    };
    let mut words = format!("{packet}: {}{by}, as of revision {}\n", name_of!(Verdict, reply.verdict), reply.revision);
    let mut steps = Columns::new(&["DECISION", "OUTCOME"]);
    reply.steps.iter().for_each(|step| steps.row([step.stage.clone(), step.outcome.clone()]));
    words += &steps.render("  ");
    if !reply.candidates.is_empty() {
        words += &format!("\n{}", candidates(&reply.candidates));
    }
    words
}

fn candidates(candidates: &[Candidate]) -> String {
    let mut columns = Columns::new(&["ENDPOINT", "CHANCE", "TARGET", "WHY"]);
    for candidate in candidates {
        let endpoint = candidate.endpoint.clone().unwrap_or_default();
        let chance = if candidate.why_not.is_empty() || candidate.probability > 0.0 {
            format!("{:.1} %", candidate.probability * 100.0)
        } else {
            "-".to_owned()
        };
        let pinned = if candidate.pinned { "pinned to this client" } else { "" };
        let why = [pinned, candidate.why_not.as_str()].into_iter().filter(|why| !why.is_empty()).collect::<Vec<_>>();
        columns.row([text::endpoint(&endpoint), chance, endpoint.target.clone(), why.join("; ")]);
    }
    columns.render("  ")
}
