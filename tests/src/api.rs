//! What a caller of vipd says, in few words: the generated client made blocking, and services built by chaining.
//!
//! Tests read better when they are not async; traffic is not async either. Nothing here decides anything: every method
//! is one call of the API.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use tokio::runtime::{Builder, Runtime};
use tonic::Status;
use tonic::transport::Channel;
use vipd_client::{Client, Target};
use vipd_proto::v1::dataplane_client::DataplaneClient;
use vipd_proto::v1::node_client::NodeClient;
use vipd_proto::v1::operation::Operation as Op;
use vipd_proto::v1::scheduler::Algorithm;
use vipd_proto::v1::{
    ApplyRequest, ApplyResponse, ClientAffinity, DeleteServiceRequest, DeleteServiceResponse, Endpoint, ExplainRequest,
    ExplainResponse, Frontend, GetInfoRequest, GetInfoResponse, GetServiceRequest, GetServiceResponse, NodePort,
    Operation, Owner, Protocol, Scheduler, Service, SetEndpointsRequest, SetOwnerRequest, SetSchedulerRequest,
    UpsertServiceRequest, endpoint, frontend, node_port,
};

/// A caller of one daemon. Cheap to clone; usable from several threads.
#[derive(Clone, Debug)]
pub struct Api {
    runtime: Arc<Runtime>,
    client: Client,
}

/// What a call answers: the generated reply, or the gRPC status as the caller sees it.
pub type Reply<T> = Result<T, Status>;

impl Api {
    /// Connects to the daemon's unix socket.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn connect(socket: &Path) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(Client::connect(&Target::Unix(socket.to_owned())))?;
        Ok(Self { runtime: Arc::new(runtime), client })
    }

    /// Waits for a future of the generated clients: for calls that have no method here.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// The generated client of `vipd.v1.Dataplane`.
    #[must_use]
    pub fn dataplane(&self) -> DataplaneClient<Channel> {
        self.client.dataplane()
    }

    /// The generated client of `vipd.v1.Node`.
    #[must_use]
    pub fn node(&self) -> NodeClient<Channel> {
        self.client.node()
    }

    /// `GetInfo`.
    ///
    /// # Errors
    /// The daemon's status.
    pub fn info(&self) -> Result<GetInfoResponse> {
        Ok(self.wait(self.node().get_info(GetInfoRequest {}))?.into_inner())
    }

    /// Declares a service with its endpoints, as one change in force.
    ///
    /// # Errors
    /// The daemon's status.
    pub fn put(&self, spec: &Spec) -> Reply<ApplyResponse> {
        self.apply(vec![spec.upsert(), spec.set_endpoints()])
    }

    /// `Apply`, atomic.
    ///
    /// # Errors
    /// The daemon's status.
    pub fn apply(&self, operations: Vec<Op>) -> Reply<ApplyResponse> {
        let operations = operations.into_iter().map(|operation| Operation { operation: Some(operation) }).collect();
        let request = ApplyRequest { operations, ..Default::default() };
        self.wait(self.dataplane().apply(request)).map(tonic::Response::into_inner)
    }

    /// `UpsertService` of the definition alone.
    ///
    /// # Errors
    /// The daemon's status.
    pub fn upsert(&self, service: Service) -> Reply<()> {
        let request = UpsertServiceRequest { service: Some(service), ..Default::default() };
        self.wait(self.dataplane().upsert_service(request)).map(|_| ())
    }

    /// `SetEndpoints`.
    ///
    /// # Errors
    /// The daemon's status.
    pub fn set_endpoints(&self, name: &str, endpoints: Vec<Endpoint>) -> Reply<()> {
        let request = SetEndpointsRequest { name: name.to_owned(), endpoints, ..Default::default() };
        self.wait(self.dataplane().set_endpoints(request)).map(|_| ())
    }

    /// `SetScheduler`.
    ///
    /// # Errors
    /// The daemon's status.
    pub fn set_scheduler(&self, name: &str, algorithm: Algorithm) -> Reply<()> {
        let scheduler = Some(Scheduler { algorithm: algorithm.into(), ..Default::default() });
        let request = SetSchedulerRequest { name: name.to_owned(), scheduler, ..Default::default() };
        self.wait(self.dataplane().set_scheduler(request)).map(|_| ())
    }

    /// `DeleteService`.
    ///
    /// # Errors
    /// The daemon's status.
    pub fn delete(&self, name: &str) -> Reply<DeleteServiceResponse> {
        let request = DeleteServiceRequest { name: name.to_owned(), ..Default::default() };
        self.wait(self.dataplane().delete_service(request)).map(tonic::Response::into_inner)
    }

    /// `GetService`.
    ///
    /// # Errors
    /// The daemon's status.
    pub fn get(&self, name: &str) -> Reply<GetServiceResponse> {
        let request = GetServiceRequest { name: name.to_owned(), ..Default::default() };
        self.wait(self.dataplane().get_service(request)).map(tonic::Response::into_inner)
    }

    /// `SetOwner`.
    ///
    /// # Errors
    /// The daemon's status.
    pub fn set_owner(&self, owner: Owner) -> Reply<()> {
        let request = SetOwnerRequest { owner: Some(owner), ..Default::default() };
        self.wait(self.dataplane().set_owner(request)).map(|_| ())
    }

    /// `Explain`.
    ///
    /// # Errors
    /// The daemon's status.
    pub fn explain(&self, request: ExplainRequest) -> Reply<ExplainResponse> {
        self.wait(self.node().explain(request)).map(tonic::Response::into_inner)
    }
}

/// A service and its endpoints, as a test declares them.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// The definition.
    pub service: Service,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

impl Spec {
    /// A service that nobody reaches and that leads nowhere yet.
    #[must_use]
    pub fn new(name: &str, protocol: Protocol) -> Self {
        let service = Service { name: name.to_owned(), protocol: protocol.into(), ..Default::default() };
        Self { service, endpoints: Vec::new() }
    }

    /// One more frontend.
    #[must_use]
    pub fn frontend(mut self, frontend: Frontend) -> Self {
        self.service.frontends.push(frontend);
        self
    }

    /// One more frontend: an address and a port.
    #[must_use]
    pub fn at(self, address: IpAddr, port: u16) -> Self {
        self.frontend(at(address, port))
    }

    /// These endpoints and no others.
    #[must_use]
    pub fn to(mut self, endpoints: Vec<Endpoint>) -> Self {
        self.endpoints = endpoints;
        self
    }

    /// This algorithm.
    #[must_use]
    pub fn by(mut self, algorithm: Algorithm) -> Self {
        self.service.scheduler = Some(Scheduler { algorithm: algorithm.into(), ..Default::default() });
        self
    }

    /// Client affinity with a time-out in seconds.
    #[must_use]
    pub fn affine(mut self, seconds: i64) -> Self {
        let timeout = Some(pbjson_types::Duration { seconds, nanos: 0 });
        self.service.client_affinity = Some(ClientAffinity { timeout, ..Default::default() });
        self
    }

    /// Whatever has no method of its own.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Service)) -> Self {
        change(&mut self.service);
        self
    }

    /// The operation that writes the definition.
    #[must_use]
    pub fn upsert(&self) -> Op {
        Op::UpsertService(UpsertServiceRequest { service: Some(self.service.clone()), ..Default::default() })
    }

    /// The operation that writes the endpoints.
    #[must_use]
    pub fn set_endpoints(&self) -> Op {
        let (name, endpoints) = (self.service.name.clone(), self.endpoints.clone());
        Op::SetEndpoints(SetEndpointsRequest { name, endpoints, ..Default::default() })
    }
}

/// A frontend at an address.
#[must_use]
pub fn at(address: IpAddr, port: u16) -> Frontend {
    Frontend { at: Some(frontend::At::Address(address.to_string())), port: port.into(), ..Default::default() }
}

/// A node port for both families, on whatever addresses the daemon serves, or on those inside `addresses`.
#[must_use]
pub fn node_port(port: u16, addresses: &[&str]) -> Frontend {
    let addresses = addresses.iter().map(|&cidr| cidr.to_owned()).collect();
    let at = NodePort { family: node_port::Family::Both.into(), addresses };
    Frontend { at: Some(frontend::At::NodePort(at)), port: port.into(), ..Default::default() }
}

/// An endpoint that is READY, weight 1, elsewhere.
#[must_use]
pub fn endpoint(address: IpAddr, port: u16) -> Endpoint {
    Endpoint { address: address.to_string(), port: port.into(), ..Default::default() }
}

/// The same endpoint with another weight.
#[must_use]
pub fn weighted(endpoint: Endpoint, weight: u32) -> Endpoint {
    Endpoint { weight: Some(weight), ..endpoint }
}

/// The same endpoint in another state.
#[must_use]
pub fn in_state(endpoint: Endpoint, state: endpoint::State) -> Endpoint {
    Endpoint { state: state.into(), ..endpoint }
}

/// The same endpoint, said to be on this node.
#[must_use]
pub fn local(endpoint: Endpoint) -> Endpoint {
    Endpoint { local: true, ..endpoint }
}
