//! The binary: command line, log, signals, systemd. Everything else is the library.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use vipd::cli::{Cli, Command};
use vipd::{Config, Daemon, check, config, logging, node, notify};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Check { example: true }) => {
            print!("{}", config::example::example());
            return ExitCode::SUCCESS;
        }
        Some(Command::Check { example: false }) => run_check(&cli),
        Some(Command::Cleanup) => run_cleanup(&cli),
        None => run_daemon(&cli),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("vipd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_check(cli: &Cli) -> anyhow::Result<ExitCode> {
    let config = cli.flags.load()?;
    let found = node::inspect(&config);
    let host = check::Host {
        engines: found.engines.as_ref().map_err(ToString::to_string),
        no_guard: found.no_guard.as_deref(),
        findings: &found.findings,
    };
    let report = check::report(&config, &host);
    print!("{}", report.text);
    Ok(if report.usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_cleanup(cli: &Cli) -> anyhow::Result<ExitCode> {
    let config = cli.flags.load()?;
    let removed = node::cleanup(&config).map_err(anyhow::Error::msg).context("not everything could be removed")?;
    println!("removed {removed} objects of vipd from the kernel; declared state stays in the store");
    Ok(ExitCode::SUCCESS)
}

fn run_daemon(cli: &Cli) -> anyhow::Result<ExitCode> {
    let config = cli.flags.load()?;
    logging::start(config.log, &config.log_level).map_err(anyhow::Error::msg)?;
    // One thread: what needs more (traffic, engines, the store) has threads of its own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> anyhow::Result<ExitCode> {
    // Before anything else, so that a signal during the start is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let socket = config.socket.clone();
    let mut handle = Daemon::start(config).await?;
    tracing::info!(socket = %socket.display(), metrics = ?handle.metrics_address, "serving");
    let notify = tokio::spawn(notify::follow(handle.control().clone(), Arc::clone(handle.clock())));
    let ended = tokio::select! {
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
        ended = handle.ended() => Err(ended),
    };
    notify.abort();
    match ended {
        Ok(signal) => {
            tracing::info!("stopping: {signal}");
            notify::stopping();
            handle.stop().await;
            Ok(ExitCode::SUCCESS)
        }
        Err(ended) => {
            ended?;
            anyhow::bail!("the daemon ended by itself")
        }
    }
}
