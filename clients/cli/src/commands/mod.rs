//! One file for each command, or for a few that are alike: ask, and say what was answered.

mod apply;
mod describe;
mod events;
mod explain;
mod get;
mod node;
mod owner;
mod plan;
mod stats;
mod watch;
mod write;

use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::cli::{Arguments, Command};
use crate::failure::Failure;
use crate::output;
use crate::session::Session;

/// Runs the command that was typed.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    // What cannot be understood is said without a vipd to talk to.
    let command = match arguments.command {
        Command::Completions { shell } => return completions(shell),
        Command::Apply(apply) => return apply::run(&apply, &arguments.connection, arguments.output).await,
        Command::Plan(plan) => return plan::run(&plan, &arguments.connection, arguments.output).await,
        command => command,
    };
    let session = &Session::open(&arguments.connection, arguments.output).await?;
    match command {
        Command::Apply(_) | Command::Plan(_) | Command::Completions { .. } => Ok(ExitCode::SUCCESS),
        Command::Get(get) => get::run(session, &get).await,
        Command::Describe(describe) => describe::run(session, &describe).await,
        Command::Delete(delete) => write::delete(session, &delete).await,
        Command::SetEndpoints(set) => write::endpoints(session, &set).await,
        Command::SetScheduler(set) => write::scheduler(session, &set).await,
        Command::Watch(watch) => watch::run(session, &watch).await,
        Command::Events(events) => events::run(session, &events).await,
        Command::Explain(explain) => explain::run(session, &explain).await,
        Command::Verify(verify) => plan::verify(session, &verify).await,
        Command::Stats(stats) => stats::run(session, &stats).await,
        Command::Node(node) => node::run(session, &node).await,
        Command::Owner(owner) => owner::run(session, &owner).await,
    }
}

fn completions(shell: clap_complete::Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "vipctl", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
