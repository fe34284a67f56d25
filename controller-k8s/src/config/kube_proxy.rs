//! A KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1): read where its fields mean something here. Every other
//! field that says something other than "the default" is named, with where the matter is decided instead.

use serde_json::Value;

use super::File;

/// How the file says what it is.
pub(super) const KIND: &str = "KubeProxyConfiguration";

/// Where what has no meaning here is decided, by the beginning of its path.
const ELSEWHERE: &[(&str, &str)] = &[
    ("mode", "vipd's `engine` decides"),
    ("conntrack.", "a setting of the node: use sysctl"),
    ("iptables.masqueradeBit", "vipd marks no packets"),
    ("nftables.masqueradeBit", "vipd marks no packets"),
    ("iptables.localhostNodePorts", "vipd's engine decides"),
    ("iptables.", "changes are told at once, and retried as vipd is configured"),
    ("nftables.", "changes are told at once, and retried as vipd is configured"),
    ("ipvs.strictARP", "vipd puts no address on an interface"),
    ("ipvs.excludeCIDRs", "vipd touches nothing that is not its own"),
    ("ipvs.", "vipd's configuration decides"),
    ("bindAddress", "the Node object tells the node's addresses"),
    ("configSyncPeriod", "watches need no resync"),
    ("clientConnection.", "only kubeconfig counts"),
    ("featureGates.", "there are none here"),
    ("oomScoreAdj", "the unit or the pod decides"),
    ("portRange", "nothing here uses it"),
    ("winkernel.", "Windows is not served"),
    ("windowsRunAsService", "Windows is not served"),
    ("logging.", "--log and --log-level decide"),
];

/// What it says to us, and what it says besides.
pub(super) fn read(value: &Value) -> Result<(File, Vec<String>), String> {
    let text = |path: &str| match value.pointer(path) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(other) => Err(format!("{path}: {other} is no text")),
    };
    let nft = text("/mode")?.as_deref() == Some("nftables");
    let all = value.pointer(if nft { "/nftables/masqueradeAll" } else { "/iptables/masqueradeAll" });
    let addresses = value.pointer("/nodePortAddresses").and_then(Value::as_array);
    let addresses = addresses.map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    let file = File {
        node_name: text("/hostnameOverride")?,
        kubeconfig: text("/clientConnection/kubeconfig")?.map(Into::into),
        vipd: None,
        detect_local_mode: text("/detectLocalMode")?,
        cluster_cidr: text("/clusterCIDR")?,
        pod_bridge_interface: text("/detectLocal/bridgeInterface")?,
        pod_interface_name_prefix: text("/detectLocal/interfaceNamePrefix")?,
        nodeport_addresses: addresses,
        masquerade_all: all.and_then(Value::as_bool),
        scheduler: text("/ipvs/scheduler")?,
        healthz_bind_address: text("/healthzBindAddress")?,
        metrics_bind_address: text("/metricsBindAddress")?,
    };
    let mut ignored = Vec::new();
    said("", value, &mut |path| {
        if !HONOURED.contains(&path) {
            let elsewhere = ELSEWHERE.iter().find(|(begin, _)| path.starts_with(begin));
            let why = elsewhere.map_or("nothing here corresponds to it", |(_, why)| why);
            ignored.push(format!("{path}: is ignored: {why}"));
        }
    });
    ignored.sort();
    Ok((file, ignored))
}

const HONOURED: &[&str] = &[
    "apiVersion",
    "kind",
    "hostnameOverride",
    "clientConnection.kubeconfig",
    "detectLocalMode",
    "clusterCIDR",
    "detectLocal.bridgeInterface",
    "detectLocal.interfaceNamePrefix",
    "nodePortAddresses",
    "iptables.masqueradeAll",
    "nftables.masqueradeAll",
    "ipvs.scheduler",
    "healthzBindAddress",
    "metricsBindAddress",
];

/// Every leaf that says something: what is empty, zero, false or null is a default to kube-proxy as well.
fn said(path: &str, value: &Value, visit: &mut impl FnMut(&str)) {
    let empty = match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                said(&path, value, visit);
            }
            return;
        }
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "0s",
        Value::Array(list) => list.is_empty(),
    };
    if !empty {
        visit(path);
    }
}
