//! `vipctl apply`.

use std::process::ExitCode;

use vipd_client::v1::{ApplyRequest, ApplyResponse, Refused, SetOwnerRequest, apply_request};
use vipd_client::{CallError, tonic};

use crate::cli::{Apply, Connection};
use crate::document::{self, Batch, Declared};
use crate::failure::{Failure, sentence};
use crate::output::{self, Format};
use crate::session::Session;
use crate::text;

/// Operations of one call, where a file may take several calls: half of what vipd accepts in one.
const BATCH: usize = 5_000;
/// Their bytes: likewise.
const BATCH_BYTES: usize = 8 << 20;

/// Reads first: a file that cannot be understood is no reason to talk to anybody.
pub(super) async fn run(apply: &Apply, connection: &Connection, format: Format) -> Result<ExitCode, Failure> {
    let declared = document::read_all(&apply.files)?;
    let session = Session::open(connection, format).await?;
    for owner in &declared.owners {
        let name = if owner.name.is_empty() { "default" } else { &owner.name };
        let request = SetOwnerRequest { owner: Some(owner.clone()), options: apply.write.options() };
        let reply = session.client.dataplane().set_owner(session.ask(request)).await?.into_inner();
        output::message(format, &reply, || text::change(&format!("owner {name}"), reply.change.as_ref()))?;
    }
    let mut are_all_accepted = true;
    let request = request(apply, &declared);
    for batch in batches(declared.batch, request.mode()) {
        are_all_accepted &= services(&session, request.clone(), &batch).await?;
    }
    Ok(if are_all_accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The call, without its operations.
fn request(apply: &Apply, declared: &Declared) -> ApplyRequest {
    let mut request = declared
        .alone
        .as_deref()
        .cloned()
        .unwrap_or_else(|| ApplyRequest { options: apply.write.options(), ..Default::default() });
    if apply.each {
        request.set_mode(apply_request::Mode::Each);
    }
    request
}

/// What is one change stays one call, and is refused by vipd if it is too large for one.
fn batches(all: Batch, mode: apply_request::Mode) -> Vec<Batch> {
    match mode {
        _ if all.len() == 0 => Vec::new(),
        apply_request::Mode::Each => all.split(BATCH, BATCH_BYTES),
        apply_request::Mode::Atomic | apply_request::Mode::Unspecified => vec![all],
    }
}

/// One call; tells whether every service was accepted.
async fn services(session: &Session, mut request: ApplyRequest, batch: &Batch) -> Result<bool, Failure> {
    request.operations = batch.operations().to_vec();
    let reply = session.client.dataplane().apply(session.ask(request)).await;
    let mut reply = reply.map_err(|status| in_the_file(batch, status))?.into_inner();
    reply.refused.iter_mut().for_each(|refused| translate(batch, refused));
    output::message(session.format, &reply, || said(&batch.services(), &reply))?;
    Ok(reply.refused.is_empty())
}

/// The same error with its fields as the reader of the file knows them.
pub(super) fn in_the_file(batch: &Batch, status: tonic::Status) -> Failure {
    let mut error = CallError::from(status);
    error.rename_fields(|field| batch.translate(field));
    Failure::Call(error)
}

fn translate(batch: &Batch, refused: &mut Refused) {
    for problem in &mut refused.problems {
        if let Some(field) = batch.translate(&problem.field) {
            problem.field = field;
        }
    }
}

fn said(services: &[String], reply: &ApplyResponse) -> String {
    let refused: Vec<String> = reply.refused.iter().map(|one| text::key(&one.owner, &one.name)).collect();
    let accepted: Vec<&String> = services.iter().filter(|key| !refused.iter().any(|one| is_same(one, key))).collect();
    let mut words = match accepted.as_slice() {
        [] => String::new(),
        [only] => text::change(only, reply.change.as_ref()),
        many => text::change(&text::count(many.len(), "service"), reply.change.as_ref()),
    };
    words += &refusals(&reply.refused);
    words
}

/// A refusal tells the owner also where the document left it to the caller's default.
fn is_same(refused: &str, written: &str) -> bool {
    refused == written || (!written.contains('/') && refused.ends_with(&format!("/{written}")))
}

/// Services that were refused, and why.
pub(super) fn refusals(refused: &[Refused]) -> String {
    let mut words = String::new();
    for one in refused {
        words += &format!("{}: refused\n", text::key(&one.owner, &one.name));
        one.problems.iter().for_each(|problem| words += &format!("  {}\n", sentence(problem)));
    }
    words
}
