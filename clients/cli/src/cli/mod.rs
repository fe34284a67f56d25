//! The words of the command line, and the help that teaches them.

mod node;
mod read;
mod write;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

pub(crate) use node::{Explain, Node, NodeCommand, Plan, Verify};
pub(crate) use read::{Describe, Events, Get, Stats, Watch};
pub(crate) use write::{Apply, Delete, FallbackWord, Owner, OwnerCommand, OwnerSet, SetEndpoints, SetScheduler};

use crate::failure::EXIT_CODES;
use crate::output::Format;
use crate::words;

/// Declares virtual IPs on this node, and says what became of them.
///
/// A command that changes something returns when the change is in force: the next connection obeys it.
#[derive(Debug, Parser)]
#[command(name = "vipctl", version, after_long_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// How replies look.
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT", help_heading = EVERYWHERE)]
    pub(crate) output: Format,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command has stand apart from its own.
const EVERYWHERE: &str = "Options of every command";

/// Which vipd, and how long to wait for it.
#[derive(Args, Debug)]
#[command(next_help_heading = EVERYWHERE)]
pub(crate) struct Connection {
    /// The unix socket of vipd [default: /run/vipd/vipd.sock; without root $XDG_RUNTIME_DIR/vipd/vipd.sock]
    #[arg(long, global = true, env = "VIPD_SOCKET", value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Instead of the socket: a vipd on another machine, HOST:PORT, by mutual TLS; or http://127.0.0.1:PORT
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub(crate) server: Option<String>,
    /// Our certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Who signed vipd's certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// How long to wait for an answer. Streams (watch, events -f) last as long as they last
    #[arg(long, global = true, value_parser = words::duration, default_value = "30s", value_name = "DURATION")]
    pub(crate) timeout: Duration,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Apply(Apply),
    Get(Get),
    Describe(Describe),
    Delete(Delete),
    SetEndpoints(SetEndpoints),
    SetScheduler(SetScheduler),
    Watch(Watch),
    Events(Events),
    Explain(Explain),
    Plan(Plan),
    Verify(Verify),
    Stats(Stats),
    Node(Node),
    Owner(Owner),
    /// Print completions for a shell
    ///
    /// bash: vipctl completions bash > /etc/bash_completion.d/vipctl
    Completions {
        /// Whose completions
        shell: Shell,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Arguments::command().get_subcommands_mut() {
            let (name, help) = (command.get_name().to_owned(), command.render_long_help().to_string());
            assert!(help.contains("  vipctl ") || help.contains(": vipctl "), "{name} has no example:\n{help}");
        }
    }
}
