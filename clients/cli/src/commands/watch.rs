//! `vipctl watch`.

use std::process::ExitCode;

use vipd_client::v1::watch_response::Event;
use vipd_client::v1::{ServiceState, WatchRequest, WatchResponse, status::State};

use crate::cli::Watch;
use crate::failure::Failure;
use crate::output;
use crate::session::Session;
use crate::text::{self, name_of};

/// Until the reader or vipd ends it.
pub(super) async fn run(session: &Session, watch: &Watch) -> Result<ExitCode, Failure> {
    let request = WatchRequest {
        owner: watch.owner.clone(),
        epoch: watch.epoch.clone(),
        from_revision: watch.from,
        omit_endpoints: session.format.is_for_people(),
    };
    let mut stream = session.client.dataplane().watch(request).await?.into_inner();
    // A heartbeat that says nothing new is no line.
    let mut last = None;
    while let Some(message) = stream.message().await? {
        if let (Some(Event::Synced(synced)), true) = (&message.event, session.format.is_for_people()) {
            let heard = Some((synced.epoch.clone(), synced.revision));
            if heard == last {
                continue;
            }
            last = heard;
        }
        output::message(session.format, &message, || line(&message))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn line(message: &WatchResponse) -> String {
    match &message.event {
        Some(Event::Reset(reset)) => format!("RESET      {}\n", reset.reason),
        Some(Event::Service(state)) => service(state),
        Some(Event::Deleted(gone)) => {
            format!("DELETED    {}  revision {}\n", text::key(&gone.owner, &gone.name), gone.revision)
        }
        Some(Event::Synced(synced)) => format!("SYNCED     revision {}, epoch {}\n", synced.revision, synced.epoch),
        None => String::new(),
    }
}

fn service(state: &ServiceState) -> String {
    let service = state.service.clone().unwrap_or_default();
    let status = state.status.clone().unwrap_or_default();
    let line = format!(
        "{:<10} {}  revision {}, in force {}; {} usable\n",
        name_of!(State, status.state),
        text::key(&service.owner, &service.name),
        status.revision,
        status.programmed_revision,
        text::count(status.usable_endpoints as usize, "endpoint"),
    );
    line + &text::problems(&status.problems, "           ")
}
