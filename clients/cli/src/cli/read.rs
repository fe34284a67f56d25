//! Commands that look at what is declared.

use clap::Args;

use crate::words;

/// List services, or show some
///
/// With -o yaml or json the endpoints are there too, and what is printed can be applied again.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl get
  vipctl get web -o yaml
  vipctl get --frontend 10.96.0.10:80      who has it
  vipctl get --problems -o wide
  vipctl get --owner k8s -l app=shop")]
pub(crate) struct Get {
    /// Only these
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Only of this owner; with NAME: whose [default: every owner; with NAME the caller's default owner]
    #[arg(long, default_value_t, hide_default_value = true)]
    pub(crate) owner: String,
    /// Only with this label; repeated: with all of them
    #[arg(short, long = "label", value_parser = words::label, value_name = "KEY=VALUE", conflicts_with = "names")]
    pub(crate) labels: Vec<(String, String)>,
    /// Only what holds or waits for this frontend
    #[arg(long, default_value_t, hide_default_value = true, value_name = "ADDRESS[:PORT]", conflicts_with = "names")]
    pub(crate) frontend: String,
    /// Only what somebody should look at
    #[arg(long, conflicts_with = "names")]
    pub(crate) problems: bool,
}

/// Show all there is to know about a service
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl describe web
  vipctl describe --owner k8s shop/web:http")]
pub(crate) struct Describe {
    /// The service
    pub(crate) name: String,
    /// Whose [default: the caller's default owner]
    #[arg(long, default_value_t, hide_default_value = true)]
    pub(crate) owner: String,
}

/// Follow the state of services as it changes
///
/// First everything there is, then what changes. A slow reader misses states between, never the last one. For who
/// changed what, and what happened by itself, see `vipctl events`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl watch
  vipctl watch --owner k8s -o json | jq .")]
pub(crate) struct Watch {
    /// Only of this owner
    #[arg(long, default_value_t, hide_default_value = true)]
    pub(crate) owner: String,
    /// Go on after this revision of --epoch instead of beginning with everything
    #[arg(long, default_value_t, hide_default_value = true, value_name = "REVISION", requires = "epoch")]
    pub(crate) from: u64,
    /// The epoch that a SYNCED named
    #[arg(long, default_value_t, hide_default_value = true)]
    pub(crate) epoch: String,
}

/// Read the journal: who changed what, and what happened by itself
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl events
  vipctl events -f --name web
  vipctl events --after 4211 -o json")]
pub(crate) struct Events {
    /// Stay, and print what comes
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only events after this number
    #[arg(long, default_value_t, hide_default_value = true, value_name = "SEQUENCE")]
    pub(crate) after: u64,
    /// Only about this owner
    #[arg(long, default_value_t, hide_default_value = true)]
    pub(crate) owner: String,
    /// Only about this service
    #[arg(long, default_value_t, hide_default_value = true)]
    pub(crate) name: String,
}

/// Count connections, packets and bytes
///
/// A dash stands where the engine cannot count; that is not zero.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  vipctl stats
  vipctl stats web --endpoints")]
pub(crate) struct Stats {
    /// Only this service
    #[arg(default_value_t, hide_default_value = true)]
    pub(crate) name: String,
    /// Only of this owner
    #[arg(long, default_value_t, hide_default_value = true)]
    pub(crate) owner: String,
    /// Each endpoint too
    #[arg(long)]
    pub(crate) endpoints: bool,
}
