//! The whole adapter between an API server that misbehaves on demand and a vipd that only remembers.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, outside of a #[test] function")]

mod api_server;
mod vipd;

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::{Code, Status};
use vipd_client::Target;
use vipd_k8s::config::Config;
use vipd_k8s::shared::Settings;
use vipd_k8s::translate::{LocalSources, NodePorts};
use vipd_proto::v1;

use api_server::ApiServer;
use vipd::Vipd;

const SERVICE: &str = "Service";
const SLICE: &str = "EndpointSlice";
const RANGE: &str = "ServiceCIDR";
const NODE: &str = "Node";

/// Longer than anything here takes; for what must not happen, [`QUIET`] is enough.
const PATIENCE: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_millis(400);

/// An API server with a node and two services, and a vipd.
struct Lab {
    api: ApiServer,
    vipd: Vipd,
    health: SocketAddr,
    adapter: Option<JoinHandle<()>>,
    dir: TempDir,
}

impl Lab {
    /// Everything but the adapter.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let api = ApiServer::start().await;
        let vipd = Vipd::new(dir.path().join("vipd.sock"));
        vipd.start();
        api.put(NODE, json!({ "metadata": { "name": "n1" }, "spec": { "podCIDRs": ["10.244.1.0/24"] } }));
        api.put(RANGE, json!({ "metadata": { "name": "kubernetes" }, "spec": { "cidrs": ["10.96.0.0/12"] } }));
        for (name, number) in [("web", 1), ("api", 2)] {
            api.put(SERVICE, service(name, number));
            api.put(SLICE, slice(&format!("{name}-1"), name, &[&format!("10.1.0.{number}")]));
        }
        let health = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self { api, vipd, health, adapter: None, dir }
    }

    /// With the adapter, when it has told everything.
    async fn started() -> Self {
        let mut lab = Self::new().await;
        lab.start();
        lab.until("the first Sync", |lab| lab.vipd.state().calls.contains(&"sync 2".to_owned())).await;
        lab
    }

    fn start(&mut self) {
        let kubeconfig = self.dir.path().join("kubeconfig");
        std::fs::write(&kubeconfig, self.api.kubeconfig()).unwrap();
        let config = Config {
            node_name: "n1".to_owned(),
            kubeconfig: Some(kubeconfig),
            vipd: Target::Unix(self.vipd.socket.clone()),
            settings: Settings {
                node_ports: NodePorts::default(),
                scheduler: None,
                local_sources: LocalSources::NodeRanges,
                source_nat_all: false,
            },
            health: Some(self.health),
            metrics: None,
            allow_large_removal: false,
            ignored: Vec::new(),
        };
        self.adapter = Some(tokio::spawn(async move { vipd_k8s::run(config).await.unwrap() }));
    }

    fn stop(&mut self) {
        self.adapter.take().unwrap().abort();
    }

    async fn until(&self, what: &str, so: impl Fn(&Self) -> bool) {
        let end = tokio::time::Instant::now() + PATIENCE;
        while !so(self) {
            assert!(
                tokio::time::Instant::now() < end,
                "{what} does not come; told: {:#?}, calls: {:#?}, requests: {:?}",
                self.vipd.told(),
                self.vipd.state().calls,
                self.api.state().requests
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_told(&self, lines: &[&str]) {
        self.until(&format!("{lines:?}"), |lab| lab.vipd.told() == lines).await;
    }

    async fn until_event(&self, reason: &str) -> Value {
        let found = |lab: &Self| lab.api.state().events.iter().find(|event| event["reason"] == reason).cloned();
        self.until(reason, |lab| found(lab).is_some()).await;
        found(self).unwrap()
    }

    /// The calls since the last time.
    fn calls(&self) -> Vec<String> {
        self.vipd.state().calls.drain(..).collect()
    }

    /// Status and body of a page.
    async fn page(&self, path: &str) -> (String, Value) {
        let mut stream = TcpStream::connect(self.health).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), serde_json::from_str(body).unwrap_or_default())
    }
}

fn service(name: &str, number: u8) -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": name, "uid": format!("uid-{name}") },
        "spec": { "clusterIP": format!("10.96.0.{number}"), "ports": [{ "name": "http", "port": 80 }] },
    })
}

fn slice(name: &str, of: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|address| json!({ "addresses": [address] })).collect();
    json!({
        "metadata": { "namespace": "shop", "name": name, "labels": { "kubernetes.io/service-name": of } },
        "addressType": "IPv4", "ports": [{ "name": "http", "port": 8080 }], "endpoints": endpoints,
    })
}

const BOTH: &[&str] = &["shop/api:http/tcp → 10.1.0.2:8080", "shop/web:http/tcp → 10.1.0.1:8080"];

#[tokio::test]
async fn nothing_is_told_before_every_kind_has_been_listed() {
    for held in [SERVICE, SLICE, RANGE, NODE] {
        let mut lab = Lab::new().await;
        lab.api.state().held.insert(held);
        lab.start();
        tokio::time::sleep(QUIET).await;
        assert_eq!(lab.calls(), [""; 0], "{held} is not known yet");
        lab.api.state().held.clear();
        lab.api.wake();
        lab.until_told(BOTH).await;
        assert_eq!(lab.calls(), ["sync 2"]);
        let owner = lab.vipd.state().owner.clone().unwrap();
        let network = owner.network.unwrap();
        assert_eq!(network.local_sources, ["10.244.1.0/24"]);
        assert_eq!(network.virtual_ranges, ["10.96.0.0/12"]);
    }
}

#[tokio::test]
async fn a_change_is_told_alone_and_what_means_nothing_is_not() {
    let lab = Lab::started().await;
    lab.calls();
    lab.api.put(SLICE, slice("web-1", "web", &["10.1.0.1", "10.1.0.3"]));
    lab.until_told(&[BOTH[0], "shop/web:http/tcp → 10.1.0.1:8080 10.1.0.3:8080"]).await;
    assert_eq!(lab.calls(), ["apply endpoints shop/web:http/tcp"]);

    let mut same = lab.api.get(SLICE, "web-1");
    same["metadata"]["annotations"] = json!({ "control-plane.alpha.kubernetes.io/leader": "x" });
    lab.api.put(SLICE, same);
    tokio::time::sleep(QUIET).await;
    assert_eq!(lab.calls(), [""; 0]);

    // A new Service and its endpoints go in one call, so that nobody is refused in between.
    lab.api.put(SLICE, slice("new-1", "new", &["10.1.0.9"]));
    lab.api.put(SERVICE, service("new", 9));
    lab.until("the new service", |lab| lab.vipd.told().len() == 3).await;
    assert_eq!(lab.calls(), ["apply upsert shop/new:http/tcp, endpoints shop/new:http/tcp"]);

    let mut hidden = lab.api.get(SERVICE, "web");
    hidden["spec"]["type"] = json!("ExternalName");
    lab.api.put(SERVICE, hidden);
    lab.until("its end", |lab| lab.vipd.told().len() == 2).await;
    assert_eq!(lab.calls(), ["apply delete shop/web:http/tcp"]);
}

#[tokio::test]
async fn an_endpoint_that_moves_between_slices_is_never_away() {
    let lab = Lab::started().await;
    lab.calls();
    lab.api.put(SLICE, slice("web-2", "web", &["10.1.0.1"]));
    lab.api.delete(SLICE, "web-1");
    lab.api.put(SLICE, slice("web-2", "web", &["10.1.0.1", "10.1.0.4"]));
    lab.until_told(&[BOTH[0], "shop/web:http/tcp → 10.1.0.1:8080 10.1.0.4:8080"]).await;
    assert_eq!(lab.calls(), ["apply endpoints shop/web:http/tcp"], "only the addition was one");
}

#[tokio::test]
async fn what_the_server_forgot_is_listed_again() {
    for no_streaming in [false, true] {
        let mut lab = Lab::new().await;
        lab.api.state().no_streaming = no_streaming;
        lab.start();
        lab.until_told(BOTH).await;
        lab.calls();
        // While nobody watches, one goes and another comes; that past is forgotten.
        lab.api.state().held.extend([SERVICE, SLICE]);
        lab.api.hang_up();
        tokio::time::sleep(QUIET).await;
        lab.api.delete(SERVICE, "web");
        lab.api.put(SERVICE, service("new", 9));
        lab.api.compact();
        lab.api.state().held.clear();
        lab.api.wake();
        lab.until_told(&[BOTH[0], "shop/new:http/tcp → "]).await;
        let mut calls = lab.calls().join("; ");
        calls.retain(|letter| letter != ',' && letter != ';');
        assert!(!calls.contains("shop/api") && !calls.contains("sync"), "only differences: {calls}");
    }
}

#[tokio::test]
async fn a_server_without_streaming_lists_is_listed_and_watched() {
    let mut lab = Lab::new().await;
    lab.api.state().no_streaming = true;
    lab.start();
    lab.until_told(BOTH).await;
    assert!(lab.api.state().requests.contains(&"Service list".to_owned()));
    lab.api.put(SLICE, slice("web-1", "web", &["10.1.0.7"]));
    lab.until_told(&[BOTH[0], "shop/web:http/tcp → 10.1.0.7:8080"]).await;
}

/// As Kubernetes' own test of the status leaves one (a null time), and as nothing leaves one.
#[tokio::test]
async fn an_object_that_cannot_be_read_holds_up_nobody_and_stays_as_it_was() {
    for no_streaming in [false, true] {
        let mut lab = Lab::new().await;
        lab.api.state().no_streaming = no_streaming;
        let mut loose = service("loose", 3);
        loose["status"] = json!({ "conditions": [{ "type": "X", "status": "True", "lastTransitionTime": null }] });
        lab.api.put(SERVICE, loose);
        let mut broken = service("broken", 4);
        broken["spec"]["ports"] = json!("eighty");
        lab.api.put(SERVICE, broken.clone());
        lab.start();
        lab.until_told(&[BOTH[0], "shop/loose:http/tcp → ", BOTH[1]]).await;

        broken["metadata"]["name"] = json!("web");
        lab.api.put(SERVICE, broken);
        lab.api.compact();
        lab.api.put(SLICE, slice("loose-1", "loose", &["10.1.0.3"]));
        lab.until_told(&[BOTH[0], "shop/loose:http/tcp → 10.1.0.3:8080", BOTH[1]]).await;
    }
}

#[tokio::test]
async fn a_server_without_service_ranges_is_served_without_them() {
    let mut lab = Lab::new().await;
    lab.api.state().missing.insert(RANGE);
    lab.start();
    lab.until_told(BOTH).await;
    assert!(lab.vipd.state().owner.clone().unwrap().network.unwrap().virtual_ranges.is_empty());
}

#[tokio::test]
async fn watches_that_break_go_on_where_they_were() {
    let lab = Lab::started().await;
    lab.calls();
    for round in 1..4 {
        lab.api.hang_up();
        lab.api.put(SLICE, slice("web-1", "web", &[&format!("10.1.1.{round}")]));
        lab.until_told(&[BOTH[0], &format!("shop/web:http/tcp → 10.1.1.{round}:8080")]).await;
    }
    assert_eq!(lab.calls().len(), 3);
}

#[tokio::test]
async fn a_server_that_repeats_the_past_changes_nothing() {
    let lab = Lab::started().await;
    let old = lab.api.get(SLICE, "web-1");
    lab.api.put(SLICE, slice("web-1", "web", &["10.1.0.8"]));
    lab.until_told(&[BOTH[0], "shop/web:http/tcp → 10.1.0.8:8080"]).await;
    lab.calls();
    lab.api.lie(SLICE, "MODIFIED", old.clone());
    lab.api.lie(SLICE, "DELETED", old);
    tokio::time::sleep(QUIET).await;
    assert_eq!(lab.calls(), [""; 0]);
}

#[tokio::test]
async fn a_vipd_that_was_away_is_told_what_it_missed() {
    let lab = Lab::started().await;
    lab.vipd.stop();
    lab.api.put(SLICE, slice("web-1", "web", &["10.1.0.5"]));
    tokio::time::sleep(QUIET).await;
    lab.calls();
    lab.vipd.start();
    lab.until_told(&[BOTH[0], "shop/web:http/tcp → 10.1.0.5:8080"]).await;
    let calls = lab.calls().join("; ");
    assert!(!calls.contains("sync") && !calls.contains("api"), "its store was not lost: {calls}");
}

#[tokio::test]
async fn a_vipd_that_lost_its_store_is_told_everything() {
    let lab = Lab::started().await;
    lab.vipd.stop();
    lab.vipd.forget("second");
    lab.calls();
    lab.vipd.start();
    // Nothing changed in the cluster; that vipd is another one is seen all the same.
    lab.until_told(BOTH).await;
    assert_eq!(lab.calls(), ["sync 2"]);
}

#[tokio::test]
async fn who_is_superseded_begins_again_with_a_sync() {
    let lab = Lab::started().await;
    lab.vipd.state().session += 1;
    lab.calls();
    lab.api.put(SLICE, slice("web-1", "web", &["10.1.0.5"]));
    lab.until_told(&[BOTH[0], "shop/web:http/tcp → 10.1.0.5:8080"]).await;
    assert_eq!(lab.calls(), ["sync 2"]);
}

#[tokio::test]
async fn a_sync_that_fails_is_tried_again_and_what_changed_meanwhile_is_not_lost() {
    let mut lab = Lab::new().await;
    let large = Status::failed_precondition("this Sync would remove 90 % of the services");
    lab.vipd.state().failures.extend([large, Status::unavailable("starting")]);
    lab.start();
    lab.until("the first try", |lab| !lab.vipd.state().calls.is_empty()).await;
    lab.api.put(SLICE, slice("web-1", "web", &["10.1.0.6"]));
    lab.until_told(&[BOTH[0], "shop/web:http/tcp → 10.1.0.6:8080"]).await;
    assert_eq!(lab.calls()[..3], ["sync 2", "sync 2", "sync 2"]);
}

#[tokio::test]
async fn a_call_without_an_answer_is_repeated_whole() {
    let lab = Lab::started().await;
    lab.calls();
    lab.vipd.state().failures.push(Status::unavailable("gone"));
    lab.api.put(SLICE, slice("web-1", "web", &["10.1.0.6"]));
    lab.until("a repetition", |lab| lab.vipd.state().calls.len() == 2).await;
    let calls = lab.calls();
    assert_eq!(calls[1], "apply upsert shop/web:http/tcp, endpoints shop/web:http/tcp", "nobody knows what arrived");
}

#[tokio::test]
async fn what_is_refused_holds_up_nobody_and_is_said() {
    let mut lab = Lab::new().await;
    lab.vipd.state().refused.insert("api");
    lab.start();
    lab.until_told(&[BOTH[1]]).await;
    let event = lab.until_event("Refused").await;
    assert_eq!(event["regarding"]["name"], "api");
    assert_eq!(event["regarding"]["uid"], "uid-api");
    assert!(event["note"].as_str().unwrap().contains("no engine of this node can do that"), "{event}");
    lab.api.put(SLICE, slice("web-1", "web", &["10.1.0.6"]));
    lab.until_told(&["shop/web:http/tcp → 10.1.0.6:8080"]).await;

    lab.vipd.state().refused.clear();
    lab.api.put(SLICE, slice("api-1", "api", &["10.1.0.2", "10.1.0.3"]));
    lab.until_told(&["shop/api:http/tcp → 10.1.0.2:8080 10.1.0.3:8080", "shop/web:http/tcp → 10.1.0.6:8080"]).await;
}

#[tokio::test]
async fn what_vipd_says_by_itself_is_said_on_the_service() {
    let lab = Lab::started().await;
    let code = v1::problem::Code::AddressInUse.into();
    let (field, message) = ("service.health_port".to_owned(), "32000 is taken".to_owned());
    // Until the stream is open nobody hears.
    tokio::time::sleep(QUIET).await;
    lab.vipd.say("shop/web:http/tcp", v1::Problem { code, field, message, since: None });
    let event = lab.until_event("FailedToStartServiceHealthcheck").await;
    assert_eq!((&event["regarding"]["name"], &event["type"]), (&json!("web"), &json!("Warning")));
}

#[tokio::test]
async fn a_new_adapter_over_the_same_state_only_syncs() {
    let mut lab = Lab::started().await;
    lab.stop();
    lab.calls();
    lab.start();
    lab.until("its Sync", |lab| !lab.vipd.state().calls.is_empty()).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(lab.calls(), ["sync 2"]);
}

#[tokio::test]
async fn pages_mean_what_kube_proxys_mean() {
    let lab = Lab::started().await;
    let (status, body) = lab.page("/healthz").await;
    assert_eq!((status.as_str(), &body["healthy"], &body["nodeEligible"]), ("200", &json!(true), &json!(true)));
    assert!(body["lastUpdated"].is_string());

    let mut node = lab.api.get(NODE, "n1");
    node["spec"]["taints"] = json!([{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }]);
    lab.api.put(NODE, node.clone());
    lab.until("draining", |lab| lab.vipd.state().owner.clone().unwrap().node_draining).await;
    assert_eq!(lab.page("/healthz").await.0, "503");
    assert_eq!(lab.page("/livez").await.0, "200");
    assert_eq!(lab.page("/other").await.0, "404");

    node["spec"]["taints"] = json!([]);
    lab.api.put(NODE, node);
    lab.until("serving again", |lab| !lab.vipd.state().owner.clone().unwrap().node_draining).await;
    assert_eq!(lab.page("/healthz").await.0, "200");
    lab.api.delete(NODE, "n1");
    lab.until("its end", |lab| lab.vipd.state().owner.clone().unwrap().node_draining).await;
    assert_eq!((lab.page("/healthz").await.0, lab.page("/livez").await.0), ("503".to_owned(), "200".to_owned()));
    assert_eq!(lab.vipd.state().owner.clone().unwrap().network.unwrap().local_sources, ["10.244.1.0/24"]);
}

#[tokio::test]
async fn accepted_and_not_in_force_is_neither_refused_nor_repeated_for_ever() {
    let lab = Lab::started().await;
    lab.calls();
    let problem = v1::Problem { code: v1::problem::Code::NotProgrammed.into(), ..Default::default() };
    lab.vipd.state().failures.push(with_problem(Code::Unavailable, &problem));
    lab.api.put(SLICE, slice("web-1", "web", &["10.1.0.6"]));
    lab.until("both calls", |lab| lab.vipd.state().calls.len() == 2).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(lab.calls(), ["apply endpoints shop/web:http/tcp"; 2], "the second asks what was accepted");
}

/// As vipd sends its problems: among the details of the status.
fn with_problem(code: Code, problem: &v1::Problem) -> Status {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Any {
        #[prost(string, tag = "1")]
        type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        value: Vec<u8>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Details {
        #[prost(int32, tag = "1")]
        code: i32,
        #[prost(string, tag = "2")]
        message: String,
        #[prost(message, repeated, tag = "3")]
        details: Vec<Any>,
    }
    let value = prost::Message::encode_to_vec(problem);
    let details = vec![Any { type_url: "type.googleapis.com/vipd.v1.Problem".to_owned(), value }];
    let all = Details { code: code.into(), message: String::new(), details };
    Status::with_details(code, "accepted", prost::Message::encode_to_vec(&all).into())
}
