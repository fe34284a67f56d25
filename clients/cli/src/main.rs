//! `vipctl`: the command line of vipd. A thin client: every command is one or two calls of the API, and what it prints
//! is what vipd said.
//!
//! * [`cli`]: the words of the command line.
//! * [`document`]: what `apply -f` reads, checked against the API's own descriptor.
//! * [`commands`]: one file for each.
//! * [`output`], [`table`], [`text`]: how replies look. [`failure`]: how failures look, and the exit codes.

mod cli;
mod commands;
mod document;
mod failure;
mod output;
mod schema;
mod session;
mod table;
mod text;
mod words;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let arguments = cli::Arguments::parse();
    match run(arguments) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn run(arguments: cli::Arguments) -> Result<ExitCode, failure::Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failure::Failure::Usage(format!("cannot start: {error}")))?;
    runtime.block_on(commands::run(arguments))
}
