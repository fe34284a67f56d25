//! The program `vipd-k8s`.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use vipd_k8s::config::{Config, Flags, LogFormat};

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Err(why) = log(&flags) {
        eprintln!("vipd-k8s: {why}");
        return ExitCode::from(2);
    }
    match start(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vipd-k8s: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(flags: &Flags) -> anyhow::Result<()> {
    if flags.cleanup_kube_proxy {
        for line in vipd_k8s::cleanup_kube_proxy()? {
            println!("{line}");
        }
        return Ok(());
    }
    let config = Config::load(flags)?;
    // One thread: what there is to do is to read, to compare and to write to sockets.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        if flags.cleanup {
            println!("{} services removed from vipd", vipd_k8s::withdraw(&config).await?);
            return Ok(());
        }
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            ended = vipd_k8s::run(config) => ended,
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    })
}

fn log(flags: &Flags) -> Result<(), String> {
    let level = &flags.log_level;
    let filter = EnvFilter::try_new(level).map_err(|why| format!("log-level {level:?}: {why}"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match flags.log {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| error.to_string())
}
