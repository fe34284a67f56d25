//! A vipd that only remembers: what it was told, by which calls; and that can be made to refuse, to fail and to go away.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};
use vipd_proto::v1;
use vipd_proto::v1::dataplane_server::{Dataplane, DataplaneServer};
use vipd_proto::v1::operation::Operation as Kind;
use vipd_proto::v1::sync_request::Step;

/// What it knows, and how it behaves.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) services: BTreeMap<String, (v1::Service, Vec<v1::Endpoint>)>,
    pub(crate) owner: Option<v1::Owner>,
    /// "sync 3", "apply upsert shop/web:http/tcp, endpoints shop/web:http/tcp", "owner".
    pub(crate) calls: Vec<String>,
    /// Services with these words in their names are refused.
    pub(crate) refused: BTreeSet<&'static str>,
    /// The next calls are answered so, first to last.
    pub(crate) failures: Vec<Status>,
    /// Statuses that a Watch tells.
    pub(crate) statuses: Vec<(String, v1::Problem)>,
    pub(crate) epoch: String,
    pub(crate) session: u64,
    revision: u64,
    /// How often it went away.
    ends: u64,
}

#[derive(Clone)]
pub(crate) struct Vipd {
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<u64>>,
    pub(crate) socket: PathBuf,
    serving: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Vipd {
    /// Not serving yet.
    pub(crate) fn new(socket: PathBuf) -> Self {
        let state = State { epoch: "first".to_owned(), ..State::default() };
        Self {
            state: Arc::new(Mutex::new(state)),
            changed: Arc::new(watch::channel(0).0),
            socket,
            serving: Arc::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn start(&self) {
        let _ = std::fs::remove_file(&self.socket);
        let listener = UnixListener::bind(&self.socket).unwrap();
        let server = tonic::transport::Server::builder().add_service(DataplaneServer::new(self.clone()));
        let serving = tokio::spawn(async move {
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        });
        *self.serving.lock().unwrap() = Some(serving);
    }

    /// Goes away; connections break.
    pub(crate) fn stop(&self) {
        let serving = self.serving.lock().unwrap().take().unwrap();
        serving.abort();
        self.state().ends += 1;
        self.changed.send_modify(|count| *count += 1);
    }

    /// Loses everything, as with its disk.
    pub(crate) fn forget(&self, epoch: &str) {
        let mut state = self.state();
        *state = State { epoch: epoch.to_owned(), ends: state.ends, ..State::default() };
    }

    /// Says it of a service by itself.
    pub(crate) fn say(&self, name: &str, problem: v1::Problem) {
        self.state().statuses.push((name.to_owned(), problem));
        self.changed.send_modify(|count| *count += 1);
    }

    /// `shop/web:http/tcp → 10.1.0.1:8080`, for everything that has been told.
    pub(crate) fn told(&self) -> Vec<String> {
        let line = |(name, (_, endpoints)): (&String, &(v1::Service, Vec<v1::Endpoint>))| {
            let endpoints: Vec<String> = endpoints.iter().map(|e| format!("{}:{}", e.address, e.port)).collect();
            format!("{name} → {}", endpoints.join(" "))
        };
        self.state().services.iter().map(line).collect()
    }
}

impl State {
    fn change(&mut self) -> Option<v1::Change> {
        self.revision += 1;
        Some(v1::Change { revision: self.revision, epoch: self.epoch.clone(), ..Default::default() })
    }

    fn refusal(&self, index: usize, name: &str) -> Option<v1::Refused> {
        let refused = self.refused.iter().any(|word| name.contains(word));
        let message = "no engine of this node can do that".to_owned();
        let problem = v1::Problem { code: v1::problem::Code::EngineLacks.into(), message, ..Default::default() };
        refused.then(|| v1::Refused {
            index: u32::try_from(index).unwrap(),
            owner: "k8s".to_owned(),
            name: name.to_owned(),
            problems: vec![problem],
        })
    }

    fn failure(&mut self) -> Result<(), Status> {
        if self.failures.is_empty() { Ok(()) } else { Err(self.failures.remove(0)) }
    }

    fn fenced(&self, options: Option<&v1::WriteOptions>) -> Result<(), Status> {
        let session = options.map_or(0, |options| options.session);
        if session == self.session { Ok(()) } else { Err(Status::aborted("another session")) }
    }
}

#[tonic::async_trait]
impl Dataplane for Vipd {
    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Result<Response<v1::ApplyResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        let mut words = Vec::new();
        let mut refused = Vec::new();
        state.fenced(request.options.as_ref())?;
        for (index, operation) in request.operations.into_iter().enumerate() {
            let (word, name) = match operation.operation.as_ref().unwrap() {
                Kind::UpsertService(upsert) => ("upsert", upsert.service.as_ref().unwrap().name.clone()),
                Kind::SetEndpoints(set) => ("endpoints", set.name.clone()),
                Kind::DeleteService(delete) => ("delete", delete.name.clone()),
                other => panic!("unexpected {other:?}"),
            };
            words.push(format!("{word} {name}"));
            if let Some(refusal) = state.refusal(index, &name) {
                refused.push(refusal);
                continue;
            }
            match operation.operation.unwrap() {
                Kind::UpsertService(upsert) => {
                    let service = upsert.service.unwrap();
                    state.services.entry(name).or_default().0 = service;
                }
                Kind::SetEndpoints(set) => match state.services.get_mut(&name) {
                    Some(service) => service.1 = set.endpoints,
                    None => panic!("endpoints of {name}, which is not there"),
                },
                _ => drop(state.services.remove(&name)),
            }
        }
        state.calls.push(format!("apply {}", words.join(", ")));
        state.failure()?;
        Ok(Response::new(v1::ApplyResponse { change: state.change(), refused }))
    }

    async fn sync(&self, request: Request<Streaming<v1::SyncRequest>>) -> Result<Response<v1::SyncResponse>, Status> {
        let mut messages = request.into_inner();
        let (mut begin, mut declared) = (None, Vec::new());
        let commit = loop {
            match messages.message().await?.and_then(|message| message.step) {
                Some(Step::Begin(step)) => begin = Some(step),
                Some(Step::Declare(declare)) => declared.push(declare),
                Some(Step::Commit(commit)) => break commit,
                None => return Err(Status::aborted("no commit")),
            }
        };
        let begin = begin.unwrap();
        assert!(begin.take_over);
        assert_eq!(commit.declared, declared.len() as u64);
        let mut state = self.state();
        state.calls.push(format!("sync {}", declared.len()));
        state.failure()?;
        let mut refused = Vec::new();
        let mut services = BTreeMap::new();
        for (index, declare) in declared.into_iter().enumerate() {
            let service = declare.service.unwrap();
            match state.refusal(index, &service.name) {
                Some(refusal) => refused.push(refusal),
                None => drop(services.insert(service.name.clone(), (service, declare.endpoints))),
            }
        }
        state.services = services;
        state.owner = begin.settings;
        state.session += 1;
        let session = state.session;
        let change = state.change();
        Ok(Response::new(v1::SyncResponse { change, refused, session, ..Default::default() }))
    }

    async fn set_owner(&self, request: Request<v1::SetOwnerRequest>) -> Result<Response<v1::SetOwnerResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        state.fenced(request.options.as_ref())?;
        state.calls.push("owner".to_owned());
        state.owner = request.owner;
        Ok(Response::new(v1::SetOwnerResponse { change: state.change() }))
    }

    type WatchStream = ReceiverStream<Result<v1::WatchResponse, Status>>;

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = tokio::sync::mpsc::channel(16);
        let (vipd, mut changes) = (self.clone(), self.changed.subscribe());
        tokio::spawn(async move {
            let (epoch, ends) = {
                let state = vipd.state();
                (state.epoch.clone(), state.ends)
            };
            let synced = v1::watch_response::Synced { epoch, revision: 0 };
            let mut said = 0;
            let mut next = vec![v1::watch_response::Event::Synced(synced)];
            loop {
                for event in next.drain(..) {
                    if sender.send(Ok(v1::WatchResponse { event: Some(event) })).await.is_err() {
                        return;
                    }
                }
                if changes.changed().await.is_err() {
                    return;
                }
                let state = vipd.state();
                if state.ends != ends {
                    return;
                }
                for (name, problem) in &state.statuses[said.min(state.statuses.len())..] {
                    let service = v1::Service { name: name.clone(), ..Default::default() };
                    let status = v1::Status { problems: vec![problem.clone()], ..Default::default() };
                    let told = v1::ServiceState { service: Some(service), status: Some(status), ..Default::default() };
                    next.push(v1::watch_response::Event::Service(told));
                }
                said = state.statuses.len();
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn upsert_service(
        &self,
        _: Request<v1::UpsertServiceRequest>,
    ) -> Result<Response<v1::UpsertServiceResponse>, Status> {
        Err(unexpected())
    }
    async fn delete_service(
        &self,
        _: Request<v1::DeleteServiceRequest>,
    ) -> Result<Response<v1::DeleteServiceResponse>, Status> {
        Err(unexpected())
    }
    async fn set_endpoints(
        &self,
        _: Request<v1::SetEndpointsRequest>,
    ) -> Result<Response<v1::SetEndpointsResponse>, Status> {
        Err(unexpected())
    }
    async fn patch_endpoints(
        &self,
        _: Request<v1::PatchEndpointsRequest>,
    ) -> Result<Response<v1::PatchEndpointsResponse>, Status> {
        Err(unexpected())
    }
    async fn set_scheduler(
        &self,
        _: Request<v1::SetSchedulerRequest>,
    ) -> Result<Response<v1::SetSchedulerResponse>, Status> {
        Err(unexpected())
    }
    async fn get_service(&self, _: Request<v1::GetServiceRequest>) -> Result<Response<v1::GetServiceResponse>, Status> {
        Err(unexpected())
    }
    async fn list_services(
        &self,
        _: Request<v1::ListServicesRequest>,
    ) -> Result<Response<v1::ListServicesResponse>, Status> {
        Err(unexpected())
    }
    async fn delete_owner(
        &self,
        _: Request<v1::DeleteOwnerRequest>,
    ) -> Result<Response<v1::DeleteOwnerResponse>, Status> {
        Err(unexpected())
    }
    async fn list_owners(&self, _: Request<v1::ListOwnersRequest>) -> Result<Response<v1::ListOwnersResponse>, Status> {
        Err(unexpected())
    }
    async fn renew_lease(&self, _: Request<v1::RenewLeaseRequest>) -> Result<Response<v1::RenewLeaseResponse>, Status> {
        Err(unexpected())
    }
}

fn unexpected() -> Status {
    Status::unimplemented("the adapter does not make this call")
}
