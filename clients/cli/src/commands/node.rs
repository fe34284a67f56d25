//! `vipctl node`.

use std::process::ExitCode;

use vipd_client::v1::{
    Drain, Engine, EngineInfo, Feature, GetInfoRequest, GetInfoResponse, ReleaseHoldRequest, SetDefaultEngineRequest,
    SetDefaultEngineResponse, scheduler::Algorithm,
};

use super::apply::refusals;
use crate::cli::{Node, NodeCommand};
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::session::Session;
use crate::table::Columns;
use crate::text::{self, name_of};
use crate::words;

pub(super) async fn run(session: &Session, node: &Node) -> Result<ExitCode, Failure> {
    let mut client = session.client.node();
    match &node.command {
        None => {
            let reply = client.get_info(session.ask(GetInfoRequest {})).await?.into_inner();
            output::reply(session.format, &reply, || info(&reply, session.format == Format::Wide))?;
        }
        Some(NodeCommand::DefaultEngine { engine, allow_degraded, drain, note }) => {
            let request = SetDefaultEngineRequest {
                engine: (*engine).into(),
                allow_degraded: *allow_degraded,
                drain: drain.map(|time| Drain { timeout: Some(words::message_of(time)), on_expiry: 0 }),
                note: note.clone(),
            };
            let reply = client.set_default_engine(session.ask(request)).await?.into_inner();
            output::reply(session.format, &reply, || moved(&reply))?;
        }
        Some(NodeCommand::ReleaseHold { note }) => {
            let reply = client.release_hold(session.ask(ReleaseHoldRequest { note: note.clone() })).await?.into_inner();
            let said = || format!("released; {} kernel objects removed\n", reply.objects_removed);
            output::reply(session.format, &reply, said)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn moved(reply: &SetDefaultEngineResponse) -> String {
    let (from, to) = (name_of!(Engine, reply.from), name_of!(Engine, reply.to));
    let mut words = format!("default engine {from} → {to}: {} services moved", reply.services_moved);
    if reply.flows_left > 0 {
        words += &format!(", {} established flows stay with {from} for now", reply.flows_left);
    }
    words += "\n";
    if !reply.degraded.is_empty() {
        words += "these lack something there:\n";
        words += &refusals(&reply.degraded);
    }
    words
}

fn info(node: &GetInfoResponse, wide: bool) -> String {
    let mut words = format!("vipd {}, API level {}, kernel {}\n", node.version, node.api_level, node.kernel);
    let failed = match node.failed_services {
        0 => String::new(),
        failed => format!("; {failed} FAILED: see `vipctl get --problems`"),
    };
    words += &format!(
        "revision {}, in force up to {}{failed}; epoch {}\n",
        node.revision, node.programmed_revision, node.epoch
    );
    if node.holding {
        words += "HOLDING: started without a store over a kernel that has objects of ours; nothing is removed until \
                  the owners have synced or `vipctl node release-hold`\n";
    }
    let engine = name_of!(Engine, node.default_engine);
    words += &format!("default engine {engine}: {}\n\n", node.default_engine_reason);
    words += &engines(&node.engines);
    if wide {
        words += &details(node);
    }
    if !node.findings.is_empty() {
        words += &format!("\nfindings about this host\n{}", text::problems(&node.findings, "  "));
    }
    words
}

fn engines(engines: &[EngineInfo]) -> String {
    let mut columns = Columns::new(&["ENGINE", "USABLE", "SERVICES", "ALGORITHMS", "WHY NOT"]);
    for engine in engines {
        // Every engine has the default.
        let named = engine.algorithms.iter().filter(|&&number| number != Algorithm::Unspecified as i32);
        let algorithms: Vec<String> = named.map(|&number| name_of!(Algorithm, number)).collect();
        columns.row([
            name_of!(Engine, engine.engine),
            if engine.usable { "yes".to_owned() } else { "no".to_owned() },
            engine.services.to_string(),
            algorithms.join(" "),
            engine.reason.clone(),
        ]);
    }
    columns.render("")
}

fn details(node: &GetInfoResponse) -> String {
    let mut words = String::from("\nfeatures\n");
    for engine in node.engines.iter().filter(|engine| !engine.features.is_empty()) {
        let features = engine.features.iter().map(|&number| name_of!(Feature, number));
        let features: Vec<String> = features.map(|name| name.trim_start_matches("FEATURE_").to_owned()).collect();
        words += &format!("  {}: {}\n", name_of!(Engine, engine.engine), features.join(" "));
    }
    if let Some(limits) = &node.limits {
        words += &format!(
            "\nlimits\n  {} services; of each {} frontends, {} endpoints, {} bytes; {} bytes in a request, {} \
             operations in an Apply\n",
            limits.services,
            limits.frontends_per_service,
            limits.endpoints_per_service,
            limits.service_bytes,
            limits.request_bytes,
            limits.operations_per_apply
        );
    }
    if !node.sysctls.is_empty() {
        words += "\nkernel settings that vipd has made\n";
        node.sysctls.iter().for_each(|s| words += &format!("  {} = {} (was {})\n", s.name, s.value, s.before));
    }
    words + &format!("\ndigest of what is declared: {}\n", node.digest)
}
