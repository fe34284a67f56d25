//! A vipd that answers what a test tells it to, and remembers what it was asked. Requests and replies are JSON, as the
//! API's own types read and write it: a reply that the API could not give does not parse.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use vipd_client::tonic::transport::Server;
use vipd_client::tonic::{self, Request, Response, Status};
use vipd_client::v1::dataplane_server::{Dataplane, DataplaneServer};
use vipd_client::v1::node_server::{Node, NodeServer};
use vipd_client::v1::*;

/// What a call is answered.
type Answer = Result<Vec<Value>, Status>;

#[derive(Default)]
struct Script {
    answers: BTreeMap<&'static str, Answer>,
    asked: Vec<(&'static str, Value)>,
}

#[derive(Clone, Default)]
struct Served(Arc<Mutex<Script>>);

/// The fake, running, until it is dropped.
pub(crate) struct Fake {
    served: Served,
    dir: tempfile::TempDir,
    _runtime: Runtime,
}

/// How `vipctl` ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Fake {
    pub(crate) fn start() -> Self {
        let (served, dir) = (Served::default(), tempfile::tempdir().unwrap());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(async { tokio::net::UnixListener::bind(dir.path().join("vipd.sock")) });
        let router = Server::builder()
            .add_service(DataplaneServer::new(served.clone()))
            .add_service(NodeServer::new(served.clone()));
        runtime.spawn(router.serve_with_incoming(UnixListenerStream::new(listener.unwrap())));
        Self { served, dir, _runtime: runtime }
    }

    /// Answers a call so from now on. Several replies are for streams, and for pages.
    pub(crate) fn answers(&self, call: &'static str, replies: impl IntoIterator<Item = Value>) -> &Self {
        self.served.0.lock().unwrap().answers.insert(call, Ok(replies.into_iter().collect()));
        self
    }

    pub(crate) fn refuses(&self, call: &'static str, status: Status) -> &Self {
        self.served.0.lock().unwrap().answers.insert(call, Err(status));
        self
    }

    /// What was asked since the last time, in order.
    pub(crate) fn asked(&self) -> Vec<(&'static str, Value)> {
        std::mem::take(&mut self.served.0.lock().unwrap().asked)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("vipd.sock")
    }

    /// Runs `vipctl` with these words; a `'…'` is one word.
    pub(crate) fn vipctl(&self, line: &str) -> Ended {
        run(&self.socket(), line, None)
    }

    /// The same, reading this.
    pub(crate) fn vipctl_reading(&self, line: &str, input: &str) -> Ended {
        let file = self.dir.path().join("input");
        std::fs::write(&file, input).unwrap();
        run(&self.socket(), line, Some(&file))
    }
}

pub(crate) fn run(socket: &Path, line: &str, input: Option<&Path>) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vipctl"));
    command.arg("--socket").arg(socket).args(words(line)).env_remove("VIPD_SOCKET");
    if let Some(input) = input {
        command.stdin(std::fs::File::open(input).unwrap());
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: status.code(), out: text(stdout), err: text(stderr) }
}

fn words(line: &str) -> Vec<String> {
    let quoted = line.split('\'').enumerate();
    let apart = |(at, part): (usize, &str)| -> Vec<String> {
        if at % 2 == 1 { vec![part.to_owned()] } else { part.split_whitespace().map(str::to_owned).collect() }
    };
    quoted.flat_map(apart).collect()
}

impl Served {
    fn heard<Q: Serialize>(&self, call: &'static str, request: &Q) -> Answer {
        let mut script = self.0.lock().unwrap();
        script.asked.push((call, serde_json::to_value(request).unwrap()));
        let answer = script.answers.get_mut(call);
        answer.map_or_else(|| Err(Status::unimplemented(format!("the test says nothing about {call}"))), |a| a.clone())
    }

    /// One reply; of several the first, and the rest stay for the next calls.
    fn one<Q: Serialize, R: DeserializeOwned>(&self, call: &'static str, request: &Q) -> Result<Response<R>, Status> {
        let mut replies = self.heard(call, request)?;
        let reply = replies.remove(0);
        if !replies.is_empty() {
            self.0.lock().unwrap().answers.insert(call, Ok(replies));
        }
        Ok(Response::new(serde_json::from_value(reply).unwrap()))
    }

    fn stream<Q: Serialize, R: DeserializeOwned>(&self, call: &'static str, request: &Q) -> Result<Stream<R>, Status> {
        let replies = self.heard(call, request)?.into_iter();
        let replies: Vec<Result<R, Status>> = replies.map(|reply| Ok(serde_json::from_value(reply).unwrap())).collect();
        Ok(tokio_stream::iter(replies))
    }
}

type Stream<R> = tokio_stream::Iter<std::vec::IntoIter<Result<R, Status>>>;

macro_rules! unary {
    ($($call:ident($request:ty) -> $reply:ty;)*) => {
        $(
            fn $call<'life, 'future>(
                &'life self,
                request: Request<$request>,
            ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<$reply>, Status>> + Send + 'future>>
            where
                'life: 'future,
                Self: 'future,
            {
                Box::pin(async move { self.one(stringify!($call), request.get_ref()) })
            }
        )*
    };
}

#[tonic::async_trait]
impl Dataplane for Served {
    type WatchStream = Stream<WatchResponse>;

    unary! {
        upsert_service(UpsertServiceRequest) -> UpsertServiceResponse;
        delete_service(DeleteServiceRequest) -> DeleteServiceResponse;
        set_endpoints(SetEndpointsRequest) -> SetEndpointsResponse;
        patch_endpoints(PatchEndpointsRequest) -> PatchEndpointsResponse;
        set_scheduler(SetSchedulerRequest) -> SetSchedulerResponse;
        apply(ApplyRequest) -> ApplyResponse;
        get_service(GetServiceRequest) -> GetServiceResponse;
        list_services(ListServicesRequest) -> ListServicesResponse;
        set_owner(SetOwnerRequest) -> SetOwnerResponse;
        delete_owner(DeleteOwnerRequest) -> DeleteOwnerResponse;
        list_owners(ListOwnersRequest) -> ListOwnersResponse;
        renew_lease(RenewLeaseRequest) -> RenewLeaseResponse;
    }

    async fn sync(&self, _: Request<tonic::Streaming<SyncRequest>>) -> Result<Response<SyncResponse>, Status> {
        Err(Status::unimplemented("vipctl does not sync"))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.stream("watch", request.get_ref()).map(Response::new)
    }
}

#[tonic::async_trait]
impl Node for Served {
    type EventsStream = Stream<EventsResponse>;

    unary! {
        get_info(GetInfoRequest) -> GetInfoResponse;
        set_default_engine(SetDefaultEngineRequest) -> SetDefaultEngineResponse;
        explain(ExplainRequest) -> ExplainResponse;
        plan(PlanRequest) -> PlanResponse;
        verify(VerifyRequest) -> VerifyResponse;
        get_stats(GetStatsRequest) -> GetStatsResponse;
        release_hold(ReleaseHoldRequest) -> ReleaseHoldResponse;
    }

    async fn events(&self, request: Request<EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        self.stream("events", request.get_ref()).map(Response::new)
    }
}
