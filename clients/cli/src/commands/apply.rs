//! `vipctl apply`.

use std::process::ExitCode;

use vipd_client::v1::{ApplyRequest, ApplyResponse, Refused, SetOwnerRequest, apply_request};
use vipd_client::{CallError, tonic};

use crate::cli::{Apply, Connection};
use crate::document::{self, Declared};
use crate::failure::{Failure, sentence};
use crate::output::{self, Format};
use crate::session::Session;
use crate::text;

/// Reads first: a file that cannot be understood is no reason to talk to anybody.
pub(super) async fn run(apply: &Apply, connection: &Connection, format: Format) -> Result<ExitCode, Failure> {
    let mut declared = document::read_all(&apply.files)?;
    let session = Session::open(connection, format).await?;
    for owner in std::mem::take(&mut declared.owners) {
        let name = owner.name.clone();
        let request = SetOwnerRequest { owner: Some(owner), options: apply.write.options() };
        let reply = session.client.dataplane().set_owner(session.ask(request)).await?.into_inner();
        let subject = format!("owner {}", if name.is_empty() { "default" } else { &name });
        output::message(format, &reply, || text::change(&subject, reply.change.as_ref()))?;
    }
    let services = declared.services();
    if services.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let reply = session.client.dataplane().apply(session.ask(request(apply, &mut declared))).await;
    let mut reply = reply.map_err(|status| in_the_file(&declared, status))?.into_inner();
    reply.refused.iter_mut().for_each(|refused| translate(&declared, refused));
    output::message(format, &reply, || said(&services, &reply))?;
    Ok(if reply.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn request(apply: &Apply, declared: &mut Declared) -> ApplyRequest {
    let mut request = declared
        .alone
        .take()
        .map_or_else(|| ApplyRequest { options: apply.write.options(), ..Default::default() }, |request| *request);
    request.operations = std::mem::take(&mut declared.operations);
    if apply.each {
        request.set_mode(apply_request::Mode::Each);
    }
    request
}

/// The same error with its fields as the reader of the file knows them.
pub(super) fn in_the_file(declared: &Declared, status: tonic::Status) -> Failure {
    let mut error = CallError::from(status);
    error.rename_fields(|field| declared.translate(field));
    Failure::Call(error)
}

fn translate(declared: &Declared, refused: &mut Refused) {
    for problem in &mut refused.problems {
        if let Some(field) = declared.translate(&problem.field) {
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
