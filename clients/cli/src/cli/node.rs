//! Commands about the node: what it can do, why it does what it does.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use vipd_client::v1;

use crate::words;

/// Say where a packet goes, and why
///
/// Every decision about one packet, from the state that is in force: which service, which endpoints are out and why,
/// and with what probability each of the others gets a new connection.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl explain 172.16.1.2 10.96.0.10:80
  vipctl explain 172.16.1.2 10.96.0.10:53 --udp
  vipctl explain fd10:1::2 '[fd96::10]:80' --interface eth0 --source-port 40000")]
pub(crate) struct Explain {
    /// The client's address
    pub(crate) source: String,
    /// Where it connects to: ADDRESS:PORT
    #[arg(value_parser = words::destination, value_name = "ADDRESS:PORT")]
    pub(crate) destination: (String, u32),
    /// UDP, not TCP
    #[arg(long, conflicts_with = "sctp")]
    pub(crate) udp: bool,
    /// SCTP, not TCP
    #[arg(long)]
    pub(crate) sctp: bool,
    /// The client's port [default: any]
    #[arg(long, default_value_t, hide_default_value = true, value_name = "PORT")]
    pub(crate) source_port: u16,
    /// The interface of this node where it comes in [default: sent by a process of this node]
    #[arg(long, default_value_t, hide_default_value = true, value_name = "NAME")]
    pub(crate) interface: String,
}

/// Say what a change would do in the kernel, and change nothing
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("what").required(true).multiple(true),
    after_help = "\
Examples:
  vipctl plan -f web.yaml
  vipctl plan --engine ipvs                if this became the default engine")]
pub(crate) struct Plan {
    /// The same files as for apply
    #[arg(short, long = "file", value_name = "FILE", group = "what")]
    pub(crate) files: Vec<PathBuf>,
    /// If this engine were the default
    #[arg(long, value_parser = words::engine, value_name = "ENGINE", group = "what")]
    pub(crate) engine: Option<v1::Engine>,
}

/// Compare the kernel with what should be in force, now
///
/// Exit code 1 if something differs; vipd repairs it by itself.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl verify
  vipctl verify web")]
pub(crate) struct Verify {
    /// Only this service
    #[arg(default_value_t, hide_default_value = true)]
    pub(crate) name: String,
    /// Only of this owner
    #[arg(long, default_value_t, hide_default_value = true)]
    pub(crate) owner: String,
}

/// Say what this node can do and how it is; choose the default engine
///
/// -o wide adds the Features of each engine, the limits and the kernel settings that vipd has made.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl node
  vipctl node default-engine nftables
  vipctl node default-engine auto          back to the configuration
  vipctl node release-hold")]
pub(crate) struct Node {
    #[command(subcommand)]
    pub(crate) command: Option<NodeCommand>,
}

/// What to do with the node.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Move the services that follow the default to another engine, traffic running; kept over restarts
    DefaultEngine {
        /// userspace, iptables, nftables, ipvs; auto: what the configuration says
        #[arg(value_parser = words::engine)]
        engine: v1::Engine,
        /// Also if a service then lacks something; those are listed
        #[arg(long)]
        allow_degraded: bool,
        /// How long the old engine may carry its established flows [default: until they end]
        #[arg(long, value_parser = words::duration, value_name = "DURATION")]
        drain: Option<Duration>,
        /// Why, for the journal
        #[arg(long, value_name = "TEXT", default_value_t, hide_default_value = true)]
        note: String,
    },
    /// After a start without a store: what is declared now is complete; what else is ours in the kernel may go
    ReleaseHold {
        /// Why, for the journal
        #[arg(long, value_name = "TEXT", default_value_t, hide_default_value = true)]
        note: String,
    },
}
