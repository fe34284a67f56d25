//! The configuration: flags, over a file, over defaults. The file is our own, or kube-proxy's as it stands.

mod file;
mod flags;
mod kube_proxy;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use vipd_client::Target;
use vipd_proto::v1::scheduler::Algorithm;

use crate::facts;
use crate::shared::Settings;
use crate::translate::{LocalSources, NodePorts};

pub use file::File;
pub use flags::{Flags, LogFormat};

/// kube-proxy's ports.
const HEALTH_PORT: u16 = 10_256;
const METRICS_PORT: u16 = 10_249;

/// Where the kernel tells the host's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Everything decided.
#[derive(Clone, Debug)]
pub struct Config {
    /// Of the Node object that we run on.
    pub node_name: String,
    /// How to reach the API server; absent: as a pod does, or as kubectl would.
    pub kubeconfig: Option<PathBuf>,
    /// How to reach vipd.
    pub vipd: Target,
    /// What translation needs.
    pub settings: Settings,
    /// `/healthz` and `/livez`.
    pub health: Option<SocketAddr>,
    /// `/metrics` and `/proxyMode`.
    pub metrics: Option<SocketAddr>,
    /// A Sync may remove most of what there is.
    pub allow_large_removal: bool,
    /// What the file says and has no meaning here, a sentence each.
    pub ignored: Vec<String>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Its text.
    #[error("{}: {why}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong, and where.
        why: String,
    },
    /// A value.
    #[error("{name}: {why}")]
    Value {
        /// The flag or key.
        name: &'static str,
        /// What is wrong, and what to write.
        why: String,
    },
}

impl Config {
    /// Puts flags over the file over defaults.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn load(flags: &Flags) -> Result<Self, ConfigError> {
        let (file, ignored) = match &flags.config {
            Some(path) => File::load(path)?,
            None => Default::default(),
        };
        let wrong = |name| move |why| ConfigError::Value { name, why };
        let file = flags.values.clone().over(file);
        let node_name = match file.node_name.as_deref().map(str::trim) {
            Some(name) if !name.is_empty() => name.to_lowercase(),
            _ => host_name().map_err(wrong("node-name"))?,
        };
        let vipd = file.vipd.as_deref().map_or_else(|| Ok(Target::default()), str::parse);
        let scheduler = file.scheduler.as_deref().filter(|name| !name.is_empty()).map(scheduler).transpose();
        let node_ports = NodePorts::parse(file.nodeport_addresses.iter().flatten().map(String::as_str));
        let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        Ok(Self {
            node_name,
            kubeconfig: file.kubeconfig.clone().filter(|path| !path.as_os_str().is_empty()),
            vipd: vipd.map_err(|error| ConfigError::Value { name: "vipd", why: error.to_string() })?,
            settings: Settings {
                node_ports: node_ports.map_err(wrong("nodeport-addresses"))?,
                scheduler: scheduler.map_err(wrong("scheduler"))?,
                local_sources: local_sources(&file).map_err(wrong("detect-local-mode"))?,
                source_nat_all: file.masquerade_all.unwrap_or(false),
            },
            health: address(file.healthz_bind_address.as_deref(), any, HEALTH_PORT)
                .map_err(wrong("healthz-bind-address"))?,
            metrics: address(file.metrics_bind_address.as_deref(), IpAddr::from([127, 0, 0, 1]), METRICS_PORT)
                .map_err(wrong("metrics-bind-address"))?,
            allow_large_removal: flags.allow_large_removal,
            ignored,
        })
    }
}

fn local_sources(file: &File) -> Result<LocalSources, String> {
    let text = |value: &Option<String>| value.clone().filter(|text| !text.is_empty());
    match file.detect_local_mode.as_deref().unwrap_or_default() {
        "" | "ClusterCIDR" => {
            let texts = file.cluster_cidr.as_deref().unwrap_or_default().split(',').map(str::trim);
            let range = |text: &str| facts::range(text).ok_or_else(|| format!("cluster-cidr: {text:?} is no range"));
            texts.filter(|text| !text.is_empty()).map(range).collect::<Result<_, _>>().map(LocalSources::Ranges)
        }
        "NodeCIDR" => Ok(LocalSources::NodeRanges),
        "BridgeInterface" => text(&file.pod_bridge_interface)
            .map(LocalSources::Interfaces)
            .ok_or("needs pod-bridge-interface".to_owned()),
        "InterfaceNamePrefix" => text(&file.pod_interface_name_prefix)
            .map(|prefix| LocalSources::Interfaces(format!("{prefix}*")))
            .ok_or("needs pod-interface-name-prefix".to_owned()),
        mode => Err(format!("{mode:?} is none of ClusterCIDR, NodeCIDR, BridgeInterface and InterfaceNamePrefix")),
    }
}

/// "off", an address, or an address with a port.
fn address(text: Option<&str>, default: IpAddr, port: u16) -> Result<Option<SocketAddr>, String> {
    match text.unwrap_or_default() {
        "" => Ok(Some(SocketAddr::new(default, port))),
        "off" => Ok(None),
        text => {
            let bare = || text.parse().map(|address| SocketAddr::new(address, port));
            let parsed = text.parse().or_else(|_| bare());
            parsed.map(Some).map_err(|_| format!("{text:?} is neither an address with a port nor \"off\""))
        }
    }
}

fn scheduler(name: &str) -> Result<Algorithm, String> {
    let found = Algorithm::from_str_name(&name.to_uppercase()).filter(|&found| found != Algorithm::Unspecified);
    found.ok_or_else(|| format!("{name:?} is no algorithm of vipd; `vipctl node` lists them"))
}

fn host_name() -> Result<String, String> {
    let name =
        std::fs::read_to_string(HOST_NAME).map_err(|error| format!("{HOST_NAME}: {error}; say which Node it is"))?;
    let name = name.trim().to_lowercase();
    if name.is_empty() { Err("this host has no name; say which Node it is".to_owned()) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn load(arguments: &[&str], file: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, file).unwrap();
        let path = path.display().to_string();
        let mut all = vec!["vipd-k8s"];
        if !file.is_empty() {
            all.extend(["--config", &path]);
        }
        all.extend(arguments);
        Config::load(&Flags::try_parse_from(all).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_stand_over_the_file_and_that_over_defaults() {
        let config = load(&["--node-name", " N1 "], "node-name: n2\nmasquerade-all: true\n").unwrap();
        assert_eq!(config.node_name, "n1");
        assert!(config.settings.source_nat_all && config.ignored.is_empty());
        assert_eq!(config.health.unwrap().to_string(), "[::]:10256");
        assert_eq!(config.metrics.unwrap().to_string(), "127.0.0.1:10249");
        let config = load(&["--healthz-bind-address", "off", "--metrics-bind-address", "10.0.0.1"], "").unwrap();
        assert_eq!((config.health, config.metrics.unwrap().to_string().as_str()), (None, "10.0.0.1:10249"));
    }

    #[test]
    fn an_unknown_key_is_an_error_and_a_wrong_value_says_what_to_write() {
        assert!(load(&[], "node-nam: x\n").unwrap_err().contains("node-nam"));
        assert!(load(&["--detect-local-mode", "Best"], "").unwrap_err().contains("NodeCIDR"));
        assert!(load(&["--detect-local-mode", "BridgeInterface"], "").unwrap_err().contains("pod-bridge-interface"));
        assert!(load(&["--cluster-cidr", "10.0.0.0/99"], "").unwrap_err().contains("10.0.0.0/99"));
        assert!(load(&["--scheduler", "best"], "").unwrap_err().contains("best"));
    }

    #[test]
    fn kube_proxys_own_file_is_read_and_what_has_no_meaning_here_is_named() {
        let file = "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0, contentType: ''}
clusterCIDR: 10.244.0.0/16,fd00:10:244::/48
detectLocalMode: ''
hostnameOverride: ''
healthzBindAddress: ''
conntrack: {maxPerCore: null, min: null, tcpCloseWaitTimeout: 1h0m0s}
iptables: {masqueradeAll: true, masqueradeBit: 14, syncPeriod: 0s}
ipvs: {scheduler: wlc, strictARP: true, excludeCIDRs: null}
nftables: {masqueradeAll: false}
nodePortAddresses: [primary]
mode: ipvs
featureGates: {SomethingNew: true}
";
        let config = load(&["--node-name", "n"], file).unwrap();
        let ranges = ["10.244.0.0/16", "fd00:10:244::/48"].map(|text| text.parse().unwrap()).to_vec();
        assert_eq!(config.settings.local_sources, LocalSources::Ranges(ranges));
        assert_eq!(config.settings.scheduler, Some(Algorithm::Wlc));
        assert_eq!(config.settings.node_ports, NodePorts::parse(["primary"]).unwrap());
        assert!(config.settings.source_nat_all);
        assert_eq!(config.kubeconfig.unwrap().to_str(), Some("/var/lib/kube-proxy/kubeconfig.conf"));
        let named: Vec<&str> = config.ignored.iter().filter_map(|text| text.split(':').next()).collect();
        let wanted = [
            "bindAddress",
            "conntrack.tcpCloseWaitTimeout",
            "featureGates.SomethingNew",
            "iptables.masqueradeBit",
            "ipvs.strictARP",
            "mode",
        ];
        assert_eq!(named, wanted);
    }
}
