//! The adapter and its manifests against a real kube-apiserver with a real etcd: with the rights that the ClusterRole
//! gives and no others, and over a restart of the server. `tests/peers.sh` builds the two programs.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, outside of a #[test] function")]

#[path = "adapter/vipd.rs"]
#[expect(dead_code, reason = "the other test uses more of it")]
mod vipd;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use vipd_client::Target;
use vipd_k8s::config::Config;
use vipd_k8s::shared::Settings;
use vipd_k8s::translate::{LocalSources, NodePorts};

use vipd::Vipd;

const MANIFEST: &str = include_str!("../deploy/vipd.yaml");
/// Who the DaemonSet's pods are to the API server.
const ADAPTER: &str = "system:serviceaccount:kube-system:vipd";
const PATIENCE: Duration = Duration::from_secs(60);

/// etcd and kube-apiserver in a folder of their own; they end with it.
struct Cluster {
    dir: tempfile::TempDir,
    programs: PathBuf,
    etcd: Child,
    server: Option<Child>,
    ports: [u16; 3],
}

impl Cluster {
    fn start(programs: PathBuf) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let free: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = [0, 1, 2].map(|i| free[i].local_addr().unwrap().port());
        drop(free);
        let key = dir.path().join("sa.key");
        let made = Command::new("openssl").args(["genrsa", "-out"]).arg(&key).stderr(Stdio::null()).status();
        assert!(made.unwrap().success());
        let tokens =
            format!("admin,admin,admin,\"system:masters\"\nadapter,{ADAPTER},vipd,\"system:serviceaccounts\"\n");
        fs::write(dir.path().join("tokens.csv"), tokens).unwrap();
        let [clients, peers, _] = ports.map(|port| format!("http://127.0.0.1:{port}"));
        let etcd = Command::new(programs.join("etcd"))
            .args(["--unsafe-no-fsync", "--log-level", "error", "--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients, "--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers, "--initial-cluster", &format!("default={peers}")])
            .arg("--data-dir")
            .arg(dir.path().join("etcd"))
            .stderr(File::create(dir.path().join("etcd.log")).unwrap())
            .stdout(Stdio::null())
            .spawn();
        let mut cluster = Self { dir, programs, etcd: etcd.unwrap(), server: None, ports };
        cluster.start_server();
        cluster
    }

    fn start_server(&mut self) {
        let dir = self.dir.path();
        let key = dir.join("sa.key").display().to_string();
        let [etcd, _, port] = self.ports;
        let arguments = [
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", dir.join("certs").display()),
            format!("--token-auth-file={}", dir.join("tokens.csv").display()),
            format!("--service-account-key-file={key}"),
            format!("--service-account-signing-key-file={key}"),
        ];
        let fixed = [
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--service-cluster-ip-range=10.96.0.0/12",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
        ];
        let log = File::create(dir.join("server.log")).unwrap();
        let server = Command::new(self.programs.join("kube-apiserver")).args(arguments).args(fixed).stderr(log).spawn();
        self.server = Some(server.unwrap());
    }

    fn stop_server(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    fn kubeconfig(&self, token: &str) -> PathBuf {
        let server =
            json!({ "server": format!("https://127.0.0.1:{}", self.ports[2]), "insecure-skip-tls-verify": true });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": server }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": { "token": token } }],
        });
        let path = self.dir.path().join(token);
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    async fn client(&self, token: &str) -> Client {
        let file = kube::config::Kubeconfig::read_from(self.kubeconfig(token)).unwrap();
        let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        until("the API server", || async { client.apiserver_version().await.is_ok() }).await;
        client
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.server.iter_mut().chain([&mut self.etcd]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn until<F: Future<Output = bool>>(what: &str, so: impl Fn() -> F) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !so().await {
        assert!(tokio::time::Instant::now() < end, "{what} does not come");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// As `kubectl apply --server-side`, with the server's own judgement of every field.
async fn apply(client: &Client, object: &Value) {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("/apiVersion").rsplit_once('/').unwrap_or(("", text("/apiVersion")));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("/kind")));
    let api: Api<DynamicObject> = match text("/metadata/namespace") {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    let parameters =
        PatchParams { field_validation: Some(kube::api::ValidationDirective::Strict), ..PatchParams::apply("t") };
    let applied = api.patch(text("/metadata/name"), &parameters.force(), &Patch::Apply(object)).await;
    applied.unwrap_or_else(|error| panic!("{object}: {error}"));
}

fn slice(address: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "namespace": "default", "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4", "ports": [{ "name": "http", "port": 8080 }], "endpoints": [{ "addresses": [address] }],
    })
}

fn service(name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "default", "name": name },
        "spec": { "clusterIP": address, "ports": [{ "name": "http", "port": 80 }] },
    })
}

fn adapter(cluster: &Cluster, vipd: &Vipd) -> Config {
    let (node_ports, local_sources) = (NodePorts::default(), LocalSources::NodeRanges);
    Config {
        node_name: "n1".to_owned(),
        kubeconfig: Some(cluster.kubeconfig("adapter")),
        vipd: Target::Unix(vipd.socket.clone()),
        settings: Settings { node_ports, scheduler: None, local_sources, source_nat_all: false },
        health: None,
        metrics: None,
        allow_large_removal: false,
        ignored: Vec::new(),
    }
}

/// Where `tests/peers.sh` puts them; where they are not, says so loudly, or fails if nothing may be skipped.
fn programs() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let peers =
        std::env::var_os("VIPD_PEERS").map_or_else(|| Path::new(&home).join(".cache/vipd-peers"), PathBuf::from);
    let programs = peers.join("k8s/bin");
    if programs.join("kube-apiserver").exists() && programs.join("etcd").exists() {
        return Some(programs);
    }
    let why = format!("no kube-apiserver and etcd in {}: run tests/peers.sh", programs.display());
    assert_ne!(std::env::var("VIPD_TESTS_REQUIRE").as_deref(), Ok("all"), "{why}");
    println!("SKIPPED: {why}");
    None
}

#[tokio::test]
async fn with_the_rights_of_the_manifest_and_over_a_restart_of_the_server() {
    let Some(programs) = programs() else { return };
    let mut cluster = Cluster::start(programs);
    let admin = cluster.client("admin").await;
    until("namespaces", || async {
        Api::<k8s_openapi::api::core::v1::Namespace>::all(admin.clone()).get("kube-system").await.is_ok()
    })
    .await;
    for document in MANIFEST.split("\n---\n") {
        apply(&admin, &serde_saphyr::from_str(document).unwrap()).await;
    }
    apply(&admin, &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } })).await;
    apply(&admin, &service("web", "10.96.0.10")).await;
    apply(&admin, &service("no", "10.96.0.11")).await;
    apply(&admin, &slice("10.1.0.1")).await;

    let vipd = Vipd::new(cluster.dir.path().join("vipd.sock"));
    vipd.state().refused.insert("/no:");
    vipd.start();
    let config = adapter(&cluster, &vipd);
    let running = tokio::spawn(async move { vipd_k8s::run(config).await.unwrap() });
    let web = |address: &str| format!("default/web:http/tcp → {address}:8080");
    until("the first Sync", || async { vipd.told().contains(&web("10.1.0.1")) }).await;
    assert_eq!(vipd.state().owner.clone().unwrap().network.unwrap().virtual_ranges, ["10.96.0.0/12"]);
    let events = Api::<k8s_openapi::api::events::v1::Event>::namespaced(admin.clone(), "default");
    until("the event", || async {
        let events = events.list(&Default::default()).await.unwrap().items;
        let regards = |name| move |r: &k8s_openapi::api::core::v1::ObjectReference| r.name.as_deref() == Some(name);
        events.iter().any(|e| e.reason.as_deref() == Some("Refused") && e.regarding.as_ref().is_some_and(regards("no")))
    })
    .await;

    cluster.stop_server();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(vipd.told().contains(&web("10.1.0.1")), "nothing changes while it is away");
    vipd.state().calls.clear();
    cluster.start_server();
    let admin = cluster.client("admin").await;
    apply(&admin, &slice("10.1.0.2")).await;
    until("the change", || async { vipd.told().contains(&web("10.1.0.2")) }).await;
    let calls = vipd.state().calls.join("; ");
    assert!(!calls.contains("sync"), "only what changed: {calls}");
    running.abort();
}
