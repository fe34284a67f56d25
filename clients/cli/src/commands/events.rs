//! `vipctl events`.

use std::process::ExitCode;

use vipd_client::v1::{EventsRequest, EventsResponse, events_response::Kind};

use crate::cli::Events;
use crate::failure::Failure;
use crate::output;
use crate::session::Session;
use crate::text::{self, name_of};

pub(super) async fn run(session: &Session, events: &Events) -> Result<ExitCode, Failure> {
    let request = EventsRequest {
        after: events.after,
        follow: events.follow,
        owner: events.owner.clone(),
        name: events.name.clone(),
    };
    let mut stream = session.client.node().events(request).await?.into_inner();
    while let Some(event) = stream.message().await? {
        output::message(session.format, &event, || line(&event))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn line(event: &EventsResponse) -> String {
    let lost = match event.lost {
        0 => String::new(),
        lost => format!("({lost} older events are not kept any more)\n"),
    };
    let about = text::key(&event.owner, &event.name);
    let about = if about.is_empty() { about } else { format!(" {about}") };
    let actor = if event.actor.is_empty() { String::new() } else { format!(" [{}]", event.actor) };
    format!(
        "{lost}{} {} {:<14}{about} revision {}{actor}: {}\n",
        event.sequence,
        text::when(event.at.as_ref()),
        name_of!(Kind, event.kind),
        event.revision,
        event.text,
    )
}
