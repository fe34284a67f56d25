//! A served API: in memory, and on a unix socket in a directory of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use vipd::api::{Access, Api, Listeners, Room};
use vipd::config::{Config, Sources};
use vipd::reconcile::{Balancer, Control, Forgetful, GuardLane, Lanes, Persist, Reconciler, Settings, Start, Worker};
use vipd::store::totals::Kept;
use vipd_engine::fake::{FakeEngine, FakeGuard, FakeKernel};
use vipd_engine::{Engine as _, Runner};
use vipd_model::{Desired, EngineKind, Engines, Limits, Millis, OwnerName};
use vipd_proto::v1;
use vipd_proto::v1::dataplane_client::DataplaneClient;
use vipd_proto::v1::node_client::NodeClient;

pub(crate) struct Rig {
    pub(crate) control: Control,
    pub(crate) kernel: FakeKernel,
    pub(crate) socket: std::path::PathBuf,
    pub(crate) api: Api,
    pub(crate) tls: Option<std::net::SocketAddr>,
    door: vipd::api::transport::listen::Door,
    stopping: CancellationToken,
    _directory: tempfile::TempDir,
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::with("").await
    }

    /// With a configuration beside the defaults.
    pub(crate) async fn with(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("vipd.sock");
        let flags = vec![("socket", socket.display().to_string())];
        let config = Config::parse(config, "test", &Sources { flags, ..Sources::default() }).unwrap();
        let kernel = FakeKernel::default();
        let engine = FakeEngine::new(EngineKind::Userspace, kernel.clone());
        let engines = Engines {
            abilities: BTreeMap::from([(EngineKind::Userspace, engine.ability())]),
            order: vec![EngineKind::Userspace],
            default_reason: "configured".to_owned(),
        };
        let balancer: Box<dyn Balancer> = Box::new(Runner::start(engine).unwrap());
        let guard: Box<dyn GuardLane> = Box::new(Runner::start(FakeGuard::new(kernel.clone())).unwrap());
        let lanes = Lanes {
            carriers: Default::default(),
            balancers: BTreeMap::from([(EngineKind::Userspace, Worker::thread("engine", balancer).unwrap())]),
            guard: Some(Worker::thread("guard", guard).unwrap()),
            cleaner: None,
        };
        let persist: Box<dyn Persist> = Box::new(Forgetful);
        let clock: vipd::reconcile::run::Clock = Arc::new(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            Millis(u64::try_from(since.as_millis()).unwrap())
        });
        let (control, reconciler) = Reconciler::new(Start {
            desired: Desired::new(engines, Limits::default()),
            epoch: "epoch-1".to_owned(),
            known: true,
            persist: Worker::thread("store", persist).unwrap(),
            store_problem: None,
            counted: Kept { services: Vec::new(), since: Millis(0), whole: false },
            lanes,
            kernel_objects: 0,
            addresses: vec!["192.0.2.7".parse().unwrap()],
            findings: Vec::new(),
            clock: Arc::clone(&clock),
            settings: Settings::default(),
        });
        tokio::spawn(reconciler.run());
        let own = Arc::new(|| vec!["192.0.2.7".parse().unwrap()]);
        let access = Access::new(config.access.clone(), OwnerName::new(&config.default_owner).unwrap(), true, own);
        let room = Room { calls: config.limits.calls, streams: config.limits.streams };
        let stopping = CancellationToken::new();
        let api = Api::new(control.clone(), clock, access, room, stopping.clone());
        let listeners = Listeners::open(&config).await.unwrap();
        let (door, tls) = (listeners.door(), listeners.tls);
        tokio::spawn(vipd::api::serve(api.clone(), listeners));
        Self { control, kernel, socket, api, tls, door, stopping, _directory: directory }
    }

    pub(crate) async fn channel(&self) -> Channel {
        self.door.channel().await.unwrap()
    }

    pub(crate) async fn dataplane(&self) -> DataplaneClient<Channel> {
        DataplaneClient::new(self.channel().await)
    }

    pub(crate) async fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel().await)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

pub(crate) fn vip(address: &str, port: u32) -> v1::Frontend {
    v1::Frontend { at: Some(v1::frontend::At::Address(address.to_owned())), port, ..Default::default() }
}

pub(crate) fn service(name: &str, address: &str) -> v1::Service {
    v1::Service { name: name.to_owned(), frontends: vec![vip(address, 80)], ..Default::default() }
}

pub(crate) fn upsert(name: &str, address: &str) -> v1::UpsertServiceRequest {
    v1::UpsertServiceRequest { service: Some(service(name, address)), ..Default::default() }
}

pub(crate) fn endpoint(address: &str) -> v1::Endpoint {
    v1::Endpoint { address: address.to_owned(), port: 8_080, ..Default::default() }
}

pub(crate) fn set(name: &str, addresses: &[&str]) -> v1::SetEndpointsRequest {
    let endpoints = addresses.iter().map(|address| endpoint(address)).collect();
    v1::SetEndpointsRequest { name: name.to_owned(), endpoints, ..Default::default() }
}

/// What an error names: the field and the code of each problem.
pub(crate) fn problems(status: &tonic::Status) -> Vec<(String, v1::problem::Code)> {
    vipd::api::status::problems(status).into_iter().map(|p| (p.field.clone(), p.code())).collect()
}
