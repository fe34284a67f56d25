//! Commands that change what is declared.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use vipd_client::v1::write_options::Wait;
use vipd_client::v1::{Endpoint, WriteOptions, scheduler};

use crate::words;

/// What every change may say.
#[derive(Args, Clone, Debug)]
pub(crate) struct WriteArguments {
    /// Why, for the journal (`vipctl events`): "INC-4211 roll back"
    #[arg(long, value_name = "TEXT", default_value_t, hide_default_value = true)]
    pub(crate) note: String,
    /// Return once the change is stored, not when it is in force
    #[arg(long)]
    pub(crate) no_wait: bool,
}

impl WriteArguments {
    /// As a request has it.
    pub(crate) fn options(&self) -> Option<WriteOptions> {
        let wait = if self.no_wait { Wait::Accepted } else { Wait::Programmed };
        Some(WriteOptions { wait: wait.into(), session: 0, note: self.note.clone() })
    }
}

/// Declare services and owners from files
///
/// Files hold YAML or JSON, one or more documents, in the API's own messages; `vipctl get -o yaml` prints what apply
/// reads. All services of all documents become one change: all of it is accepted, or nothing. Owners come first.
///
/// A service that exists keeps the parts that the document leaves out: its endpoints, its scheduler. A field that does
/// not exist is an error that names the nearest one.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl apply -f web.yaml
  vipctl get -o yaml > all.yaml; vipctl apply -f all.yaml
  vipctl apply -f - <<EOF
  service: {name: web, frontends: [{address: 10.96.0.10, port: 80}], scheduler: {algorithm: WRR}}
  endpoints:
  - {address: 10.1.0.2, port: 8080}
  - {address: 10.1.0.3, port: 8080, weight: 3}
  ---
  owner: {name: default, network: {virtualRanges: [10.96.0.0/16]}}
  EOF

A document is one of: {service, endpoints}; {owner}; {services: […]}; {operations: […]} (an ApplyRequest);
{name, endpoints}, {name, upsert, remove} or {name, scheduler} (requests for one part of a service).")]
pub(crate) struct Apply {
    /// A file, or - for standard input; may be repeated
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Accept service by service: those that are refused are reported, the others are changed. A file may then hold
    /// more than one call can (10,000 operations, 16 MiB): several calls are made
    #[arg(long)]
    pub(crate) each: bool,
    #[command(flatten)]
    pub(crate) write: WriteArguments,
}

/// Remove services with their endpoints
///
/// One change: all of them, or none. What is not there is no error.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl delete web
  vipctl delete --owner k8s shop/web:http shop/web:https")]
pub(crate) struct Delete {
    /// Services
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Whose [default: the caller's default owner]
    #[arg(long, default_value_t, hide_default_value = true)]
    pub(crate) owner: String,
    #[command(flatten)]
    pub(crate) write: WriteArguments,
}

/// Replace a service's endpoints, or change some of them
///
/// An endpoint is ADDRESS:PORT, then what is not as by default, with commas between: weight=N (1), state=READY,
/// DRAINING or NOT_READY, tier=N (0), local, max-connections=N, drain=DURATION, drain-then=LEAVE or RESET, target=WHO. Without a
/// port where the service has a range of ports. With --add an endpoint that is there already is replaced whole.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl set-endpoints web 10.1.1.2:8080,weight=4 '[fd20::2]:8080'
  vipctl set-endpoints web --add 10.1.1.3:8080,tier=1,target=standby --remove 10.1.1.2:8080
  vipctl set-endpoints web --add 10.1.1.2:8080,state=DRAINING,drain=30s,drain-then=RESET
  vipctl set-endpoints web --none")]
pub(crate) struct SetEndpoints {
    /// The service
    pub(crate) name: String,
    /// All its endpoints from now on
    #[arg(
        value_parser = words::endpoint,
        value_name = "ENDPOINT",
        required_unless_present_any = ["add", "remove", "none"],
        conflicts_with_all = ["add", "remove", "none"],
    )]
    pub(crate) endpoints: Vec<Endpoint>,
    /// Add these, or replace them if they are there
    #[arg(long, value_parser = words::endpoint, value_name = "ENDPOINT", num_args = 1.., conflicts_with = "none")]
    pub(crate) add: Vec<Endpoint>,
    /// Remove these; one that is not there is no error
    #[arg(long, value_parser = words::endpoint, value_name = "ADDRESS:PORT", num_args = 1.., conflicts_with = "none")]
    pub(crate) remove: Vec<Endpoint>,
    /// No endpoints at all
    #[arg(long)]
    pub(crate) none: bool,
    /// Whose service [default: the caller's default owner]
    #[arg(long, default_value_t, hide_default_value = true)]
    pub(crate) owner: String,
    #[command(flatten)]
    pub(crate) write: WriteArguments,
}

/// Change how a live service picks endpoints
///
/// Established connections stay where they are. `vipctl node` says which engine has which algorithm.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl set-scheduler web WRR
  vipctl set-scheduler web MH --hash-source-port
  vipctl set-scheduler web SED --fallback nearest
  vipctl set-scheduler web DEFAULT")]
pub(crate) struct SetScheduler {
    /// The service
    pub(crate) name: String,
    /// RR, WRR, RANDOM, LC, WLC, SH, MH, DH, SED, NQ, LBLC, LBLCR, FO, OVF, P2C; DEFAULT: an even spread
    #[arg(value_parser = words::algorithm)]
    pub(crate) algorithm: scheduler::Algorithm,
    /// SH and MH: also hash the client's port
    #[arg(long)]
    pub(crate) hash_source_port: bool,
    /// If the engine does not have the algorithm: refuse, or run the nearest one and say so
    #[arg(long, value_enum)]
    pub(crate) fallback: Option<FallbackWord>,
    /// Whose service [default: the caller's default owner]
    #[arg(long, default_value_t, hide_default_value = true)]
    pub(crate) owner: String,
    #[command(flatten)]
    pub(crate) write: WriteArguments,
}

/// `--fallback`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FallbackWord {
    /// The call fails, naming the engines that have the algorithm
    Refused,
    /// The documented nearest one runs
    Nearest,
}

/// Who declares: see, set and remove owners
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl owner get
  vipctl owner set k8s --virtual-range 10.96.0.0/12 --local-source 10.244.1.0/24 --lease 5m
  vipctl owner renew k8s
  vipctl owner delete nomad")]
pub(crate) struct Owner {
    #[command(subcommand)]
    pub(crate) command: OwnerCommand,
}

/// What to do with an owner.
#[derive(Debug, Subcommand)]
pub(crate) enum OwnerCommand {
    /// List owners, or show one
    Get {
        /// Only this one
        name: Option<String>,
    },
    /// Change settings of an owner; what is not named stays as it is
    Set(Box<OwnerSet>),
    /// Remove an owner and everything it declared
    Delete {
        /// The owner
        name: String,
        #[command(flatten)]
        write: WriteArguments,
    },
    /// Say "still here" for an owner with a lease
    Renew {
        /// The owner
        name: String,
        /// The session that its last Sync opened
        #[arg(long, default_value_t, hide_default_value = true)]
        session: u64,
    },
}

/// Settings of an owner.
#[derive(Args, Debug)]
pub(crate) struct OwnerSet {
    /// The owner; it need not exist
    pub(crate) name: String,
    /// Networks that hold nothing but VIPs: unknown addresses and ports there are refused
    #[arg(long = "virtual-range", value_name = "CIDR", num_args = 1..)]
    pub(crate) virtual_ranges: Option<Vec<String>>,
    /// Networks of clients that live on this node
    #[arg(long = "local-source", value_name = "CIDR", num_args = 1..)]
    pub(crate) local_sources: Option<Vec<String>>,
    /// Interfaces at which clients of this node come in: cni0, veth*
    #[arg(long = "local-interface", value_name = "NAME", num_args = 1..)]
    pub(crate) local_interfaces: Option<Vec<String>>,
    /// Translate the source of every client, not only of those from outside
    #[arg(long, value_name = "BOOL")]
    pub(crate) source_nat_all: Option<bool>,
    /// Take part only while the owner writes or renews at least this often; 0: no lease
    #[arg(long, value_parser = words::duration, value_name = "DURATION")]
    pub(crate) lease: Option<Duration>,
    /// When the lease is over, stop serving (true), or only report it (false)
    #[arg(long, value_name = "BOOL")]
    pub(crate) lease_withdraws: Option<bool>,
    /// After a restart of vipd serve nothing new before the owner's first Sync (true), or all that is stored (false)
    #[arg(long, value_name = "BOOL")]
    pub(crate) await_sync: Option<bool>,
    /// After a restart of vipd serve only what is younger than this; 0: of any age
    #[arg(long, value_parser = words::duration, value_name = "DURATION")]
    pub(crate) restore_max_age: Option<Duration>,
    /// The node takes no new traffic from outside: /healthz says 503
    #[arg(long, value_name = "BOOL")]
    pub(crate) node_draining: Option<bool>,
    #[command(flatten)]
    pub(crate) write: WriteArguments,
}
