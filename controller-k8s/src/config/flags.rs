//! The command line. kube-proxy's flags keep their names where they mean the same.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use super::File;

/// Tells vipd about the Services of a Kubernetes cluster: in kube-proxy's place, on every node.
#[derive(Clone, Debug, Parser)]
#[command(name = "vipd-k8s", version, after_help = EXAMPLES)]
pub struct Flags {
    /// Configuration, YAML: the keys are these flags, or a KubeProxyConfiguration as it stands. Flags stand over it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What a file may say too.
    #[command(flatten)]
    pub values: File,
    /// Let the first Sync remove more of what vipd holds for Kubernetes than its large-removal-percent.
    #[arg(long)]
    pub allow_large_removal: bool,
    /// How the log is written to standard error.
    #[arg(long, value_enum, default_value = "text")]
    pub log: LogFormat,
    /// error, warn, info, debug, trace, or a filter such as "info,vipd_k8s=debug".
    #[arg(long, value_name = "LEVEL", default_value = "info,kube=warn,kube_client=warn,kube_runtime=error")]
    pub log_level: String,
    /// Remove what kube-proxy left in the kernel of this node, nothing else, and end. Stop kube-proxy first.
    #[arg(long, conflicts_with = "cleanup")]
    pub cleanup_kube_proxy: bool,
    /// Delete everything that was declared for Kubernetes from vipd, and end: for going back.
    #[arg(long)]
    pub cleanup: bool,
}

const EXAMPLES: &str = "\
Examples:
  vipd-k8s                                             in a pod, beside a vipd whose socket is mounted
  vipd-k8s --kubeconfig FILE --node-name n1            anywhere else
  vipd-k8s --config /var/lib/kube-proxy/config.conf    with kube-proxy's configuration
  vipd-k8s --cleanup-kube-proxy                        after kube-proxy was stopped on this node";

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}
