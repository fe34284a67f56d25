//! `vipctl plan`: what a change would do; and `vipctl verify`: whether all is as it should be.

use std::process::ExitCode;

use vipd_client::v1::plan_response::kernel_change::Action;
use vipd_client::v1::{PlanRequest, PlanResponse, VerifyRequest, VerifyResponse};

use super::apply::{in_the_file, refusals};
use crate::cli::{Connection, Plan, Verify};
use crate::document::{self, Declared};
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::session::Session;
use crate::text::{self, name_of};

pub(super) async fn run(plan: &Plan, connection: &Connection, format: Format) -> Result<ExitCode, Failure> {
    let declared = if plan.files.is_empty() { Declared::default() } else { document::read_all(&plan.files)? };
    let operations = declared.batch.operations().to_vec();
    let request = PlanRequest { operations, engine: plan.engine.unwrap_or_default().into() };
    let session = Session::open(connection, format).await?;
    let reply = session.client.node().plan(session.ask(request)).await;
    let reply = reply.map_err(|status| in_the_file(&declared.batch, status))?.into_inner();
    output::reply(format, &reply, || words(&reply))?;
    Ok(if reply.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn words(reply: &PlanResponse) -> String {
    let mut words = String::new();
    for change in &reply.changes {
        let sign = match change.action() {
            Action::Add => "+".to_owned(),
            Action::Remove => "-".to_owned(),
            Action::Change => "~".to_owned(),
            Action::Unspecified => name_of!(Action, change.action),
        };
        words += &format!("{sign} {}\n", change.object);
    }
    let hidden = reply.changes_total.saturating_sub(reply.changes.len() as u64);
    if hidden > 0 {
        words += &format!("  … and {hidden} more\n");
    }
    let changes = usize::try_from(reply.changes_total).unwrap_or(usize::MAX);
    words += &format!("{}, {} flows cut; nothing was changed\n", text::count(changes, "change"), reply.flows_cut);
    words + &refusals(&reply.refused)
}

pub(super) async fn verify(session: &Session, verify: &Verify) -> Result<ExitCode, Failure> {
    let request = VerifyRequest { owner: verify.owner.clone(), name: verify.name.clone() };
    let reply = session.client.node().verify(session.ask(request)).await?.into_inner();
    output::reply(session.format, &reply, || verdict(&reply))?;
    Ok(if reply.drift.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn verdict(reply: &VerifyResponse) -> String {
    if reply.drift.is_empty() {
        return format!("as programmed: {} kernel objects, revision {}\n", reply.objects, reply.revision);
    }
    let head = text::count(reply.drift.len(), "difference");
    format!(
        "{head} among {} kernel objects, revision {}; vipd repairs them\n{}",
        reply.objects,
        reply.revision,
        text::problems(&reply.drift, "  ")
    )
}
