//! vipd as a subject: told over gRPC, as an adapter would.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use vipd_proto::v1::operation::Operation as Op;
use vipd_proto::v1::sync_request::Step;
use vipd_proto::v1::{Declare, Endpoint, Protocol, SyncBegin, SyncCommit, SyncRequest};

use super::gauge::{self, Cost, Memory};
use super::scene::{self, PORT, Scene, Size};
use super::subject::{Sample, Subject, What};
use crate::api::{Api, Spec, endpoint};
use crate::conformance::Variant;
use crate::conformance::world::say;
use crate::lab::Daemon;

/// Changes of each kind, or as many as fit into [`CHANGING`].
const CHANGES: u32 = 300;
/// Legacy iptables rewrites its whole table for each: not all of them are waited for.
const CHANGING: Duration = Duration::from_secs(20);

/// A daemon of one engine.
pub struct Vipd {
    variant: Variant,
    size: Size,
    daemon: Option<Daemon>,
    scene: Scene,
}

impl Vipd {
    /// Starts it with nothing declared.
    ///
    /// # Errors
    /// When it cannot run here.
    pub fn new(variant: Variant, size: Size) -> Result<Self> {
        let scene = Scene::new()?;
        let daemon = variant.start(&scene.lab)?;
        Ok(Self { variant, size, daemon: Some(daemon), scene })
    }

    fn daemon(&self) -> Result<&Daemon> {
        self.daemon.as_ref().ok_or_else(|| anyhow!("vipd was stopped"))
    }

    fn api(&self) -> Result<Api> {
        self.daemon()?.api()
    }

    fn endpoints(&self, i: u32) -> Vec<Endpoint> {
        (0..self.size.endpoints).map(|k| endpoint(scene::endpoint(self.size, i, k), PORT)).collect()
    }

    fn declare(&self, i: u32) -> Declare {
        let spec = service(&format!("s{i}")).at(scene::virtual_ip(i), 80).to(self.endpoints(i));
        Declare { service: Some(spec.service), endpoints: spec.endpoints }
    }
}

fn service(name: &str) -> Spec {
    Spec::new(name, Protocol::Tcp)
}

fn apply(api: &Api, operations: Vec<Op>) -> Result<()> {
    api.apply(operations).map(|_| ()).map_err(|status| anyhow!("Apply: {}", say(&status)))
}

impl Subject for Vipd {
    fn name(&self) -> String {
        format!("vipd {}", self.variant.name)
    }

    fn scene(&self) -> &Scene {
        &self.scene
    }

    fn load(&mut self) -> Result<Cost> {
        let (api, pid) = (self.api()?, self.daemon()?.pid());
        let services = self.size.services;
        let mut steps = vec![Step::Begin(SyncBegin { take_over: true, ..SyncBegin::default() })];
        steps.extend((0..services).map(|i| Step::Declare(self.declare(i))));
        steps.push(Step::Commit(SyncCommit { declared: services.into() }));
        let steps = steps.into_iter().map(|step| SyncRequest { step: Some(step) });
        let (before, begin) = (gauge::when_quiet(pid)?, Instant::now());
        let reply = api.wait(api.dataplane().sync(tokio_stream::iter(steps)));
        let reply = reply.map_err(|status| anyhow!("Sync: {}", say(&status)))?.into_inner();
        ensure!(reply.created == u64::from(services), "{} of {services} services were taken", reply.created);
        let wall = begin.elapsed();
        Ok(Cost { wall, cpu: gauge::when_quiet(pid)? - before })
    }

    fn change(&mut self, what: What) -> Result<Sample> {
        let api = self.api()?;
        let (mut took, first) = (Vec::new(), Instant::now());
        for n in (0..CHANGES).take_while(|_| first.elapsed() < CHANGING) {
            let i = n * self.size.services / CHANGES;
            let fresh = endpoint(scene::fresh_endpoint(n), PORT);
            let operations = match what {
                What::Endpoint => {
                    let mut spec = service(&format!("s{i}"));
                    spec.endpoints = self.endpoints(i);
                    spec.endpoints.push(fresh);
                    vec![spec.set_endpoints()]
                }
                What::Service => {
                    let spec = service(&format!("fresh{n}")).at(scene::fresh_virtual_ip(n), 80).to(vec![fresh]);
                    vec![spec.upsert(), spec.set_endpoints()]
                }
            };
            let begin = Instant::now();
            apply(&api, operations)?;
            took.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        Ok(Sample::new(took))
    }

    fn memory(&self) -> Result<Memory> {
        gauge::memory(self.daemon()?.pid())
    }

    fn restart(&mut self) -> Result<Cost> {
        self.stop_process()?;
        let begin = Instant::now();
        self.daemon = Some(self.variant.start(&self.scene.lab)?);
        let wall = begin.elapsed();
        Ok(Cost { wall, cpu: gauge::when_quiet(self.daemon()?.pid())? })
    }

    fn stop(&mut self) -> Result<()> {
        if self.variant.engine != "userspace" {
            self.stop_process()?;
        }
        Ok(())
    }
}

impl Vipd {
    fn stop_process(&mut self) -> Result<()> {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.stop()?;
        }
        Ok(())
    }
}
