//! What both the command line and a file may say.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::{ConfigError, kube_proxy};

/// Keys of a file, flags of the command line; what is absent is not said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct File {
    /// Name of the Node that this is [default: the host's name].
    #[arg(long, alias = "hostname-override", value_name = "NAME", env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// How to reach the API server [default: as a pod does].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Where vipd listens: a socket's path, or http://127.0.0.1:PORT [default: /run/vipd/vipd.sock].
    #[arg(long, value_name = "TARGET", env = "VIPD_TARGET")]
    pub vipd: Option<String>,
    /// How pods of this node are known: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    /// [default: ClusterCIDR].
    #[arg(long, value_name = "MODE")]
    pub detect_local_mode: Option<String>,
    /// Where pods are, for ClusterCIDR: one range, or one of each family with a comma.
    #[arg(long, value_name = "CIDRS")]
    pub cluster_cidr: Option<String>,
    /// The bridge that pods come in at, for BridgeInterface.
    #[arg(long, value_name = "NAME")]
    pub pod_bridge_interface: Option<String>,
    /// How the interfaces that pods come in at begin, for InterfaceNamePrefix.
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,
    /// Where node ports are served: CIDRs, primary, localhost, all [default: vipd's node-ports.addresses].
    #[arg(long, value_name = "LIST", value_delimiter = ',', alias = "node-port-addresses")]
    pub nodeport_addresses: Option<Vec<String>>,
    /// Source NAT for all traffic to cluster addresses.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub masquerade_all: Option<bool>,
    /// The algorithm of every service, or the nearest that the node has [default: vipd's, or what an operator set].
    #[arg(long, alias = "ipvs-scheduler", value_name = "NAME")]
    pub scheduler: Option<String>,
    /// Address of /healthz and /livez; off: none [default: [::]:10256].
    #[arg(long, value_name = "ADDR")]
    pub healthz_bind_address: Option<String>,
    /// Address of /metrics and /proxyMode; off: none [default: 127.0.0.1:10249].
    #[arg(long, value_name = "ADDR")]
    pub metrics_bind_address: Option<String>,
}

impl File {
    /// Reads a file; also what of it has no meaning here.
    pub(super) fn load(path: &Path) -> Result<(Self, Vec<String>), ConfigError> {
        let text =
            fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        let wrong = |why| ConfigError::File { path: path.to_owned(), why };
        let value: Value = serde_saphyr::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if value.get("kind").and_then(Value::as_str) == Some(kube_proxy::KIND) {
            return kube_proxy::read(&value).map_err(wrong);
        }
        serde_saphyr::from_str(&text).map(|file| (file, Vec::new())).map_err(|error| wrong(error.to_string()))
    }

    /// What this says, and where it says nothing, what `under` says.
    pub(super) fn over(self, under: Self) -> Self {
        Self {
            node_name: self.node_name.or(under.node_name),
            kubeconfig: self.kubeconfig.or(under.kubeconfig),
            vipd: self.vipd.or(under.vipd),
            detect_local_mode: self.detect_local_mode.or(under.detect_local_mode),
            cluster_cidr: self.cluster_cidr.or(under.cluster_cidr),
            pod_bridge_interface: self.pod_bridge_interface.or(under.pod_bridge_interface),
            pod_interface_name_prefix: self.pod_interface_name_prefix.or(under.pod_interface_name_prefix),
            nodeport_addresses: self.nodeport_addresses.or(under.nodeport_addresses),
            masquerade_all: self.masquerade_all.or(under.masquerade_all),
            scheduler: self.scheduler.or(under.scheduler),
            healthz_bind_address: self.healthz_bind_address.or(under.healthz_bind_address),
            metrics_bind_address: self.metrics_bind_address.or(under.metrics_bind_address),
        }
    }
}
