//! The log on standard error. Only the binary calls this: a program that holds the daemon as a library has its own.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::value::LogFormat;

/// Begins to log.
///
/// # Errors
/// If the filter is none.
pub fn start(format: LogFormat, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|why| {
        format!("log-level {filter:?}: {why}; write error, warn, info, debug, trace, or a filter such as \"info,vipd::api=debug\"")
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        // systemd's journal has its own time.
        LogFormat::Text if std::env::var_os("JOURNAL_STREAM").is_some() => {
            builder.without_time().with_ansi(false).try_init()
        }
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| error.to_string())
}
