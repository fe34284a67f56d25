//! The runner on the fake kernel: what packets would meet at every step, and what is left when steps fail.

mod failures;
mod laws;
mod restart;

use std::collections::BTreeMap;
use std::sync::Arc;

use vipd_model::{
    Algorithm, Definition, Endpoint, EngineKind, Frontend, Protocol, Revisions, Scheduler, Selected, Service,
    ServiceKey, select,
};

use super::{Change, Made, Runner};
use crate::fake::{FakeEngine, FakeKernel};
use crate::node::Node;
use crate::steps::Steps;

const KIND: EngineKind = EngineKind::Nftables;

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("ops", name).unwrap()
}

/// A TCP service at these VIPs (10.96.0.n:80), with these endpoints (10.1.0.n:8080).
fn service(name: &str, vips: &[u8], endpoints: &[u8]) -> Arc<Service> {
    let frontends = vips.iter().map(|n| Frontend::vip([10, 96, 0, *n].into(), 80)).collect();
    let mut endpoints: Vec<_> = endpoints.iter().map(|n| Endpoint::new([10, 1, 0, *n].into(), 8080)).collect();
    endpoints.sort();
    endpoints.dedup();
    Arc::new(Service {
        key: key(name),
        definition: Arc::new(Definition { frontends, ..Definition::default() }),
        scheduler: Scheduler::default(),
        endpoints: endpoints.into(),
        leaving: Arc::from([]),
        revisions: Revisions::default(),
        waiting: Vec::new(),
    })
}

fn udp(service: &Arc<Service>) -> Arc<Service> {
    let definition = Definition { protocol: Protocol::Udp, ..Definition::clone(&service.definition) };
    Arc::new(Service { definition: Arc::new(definition), ..Service::clone(service) })
}

fn to(service: &Arc<Service>) -> Change<Selected> {
    (service.key.clone(), Some(select(service, KIND, Algorithm::Rr)))
}

fn gone(name: &str) -> Change<Selected> {
    (key(name), None)
}

/// A runner on an empty kernel, the start behind it.
fn runner(kernel: &FakeKernel) -> Runner<FakeEngine> {
    let mut runner = Runner::start(FakeEngine::new(KIND, kernel.clone())).unwrap();
    runner.set_node(Node::default()).unwrap();
    runner.release().unwrap();
    runner
}

/// Both halves of a change; the names of those that failed.
fn change<S: Steps>(runner: &mut Runner<S>, batch: Vec<Change<S::Input>>) -> Vec<String> {
    let made = runner.make(batch);
    let mut failed = failures(&made);
    let ok: Vec<_> = made.outcomes.iter().filter(|(_, o)| o.is_ok()).map(|(key, _)| key.clone()).collect();
    failed.extend(failures(&runner.finish(&ok)));
    failed
}

fn failures(made: &Made) -> Vec<String> {
    made.outcomes.iter().filter(|(_, outcome)| outcome.is_err()).map(|(key, _)| key.name.to_string()).collect()
}

/// What the kernel is to have for these services and nothing else.
fn rendered<'a>(services: impl IntoIterator<Item = &'a Arc<Service>>) -> BTreeMap<String, String> {
    let engine = FakeEngine::new(KIND, FakeKernel::default());
    let mut numbers = crate::Assignments::default();
    let mut objects = BTreeMap::new();
    for service in services {
        let selected = select(service, KIND, Algorithm::Rr);
        objects.extend(engine.render(&Node::default(), &selected, &mut numbers).unwrap());
    }
    objects
}

#[test]
fn a_repeated_change_sends_the_kernel_nothing() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    let web = service("web", &[1, 2], &[1, 2, 3]);
    assert!(change(&mut runner, vec![to(&web)]).is_empty());
    let (messages, transactions) = (kernel.messages(), kernel.transactions());
    assert_eq!(messages, 5);
    assert!(change(&mut runner, vec![to(&web)]).is_empty());
    assert_eq!((kernel.messages(), kernel.transactions()), (messages, transactions));
}

#[test]
fn one_endpoint_more_is_one_message_at_any_size() {
    let mut costs = Vec::new();
    for size in [10, 2000] {
        let kernel = FakeKernel::default();
        let mut runner = runner(&kernel);
        let all: Vec<_> = (0..size).map(|n| service(&format!("s{n}"), &[], &[1, 2])).collect();
        assert!(change(&mut runner, all.iter().map(to).collect()).is_empty());
        let before = (kernel.messages(), kernel.reads());
        assert!(change(&mut runner, vec![to(&service("s7", &[], &[1, 2, 3]))]).is_empty());
        costs.push((kernel.messages() - before.0, kernel.reads() - before.1));
    }
    assert_eq!(costs, [(1, 0), (1, 0)]);
}

#[test]
fn what_services_share_goes_with_the_last_of_them() {
    let kernel = FakeKernel::default();
    let mut runner = Runner::start(Shared(kernel.clone())).unwrap();
    runner.release().unwrap();
    assert!(change(&mut runner, vec![(key("a"), Some(())), (key("b"), Some(()))]).is_empty());
    assert_eq!(kernel.messages(), 3, "the route is made once");
    assert!(change(&mut runner, vec![(key("a"), None)]).is_empty());
    assert!(kernel.get("shared route").is_some());
    assert!(change(&mut runner, vec![(key("b"), None)]).is_empty());
    assert_eq!(kernel.dump(), "");
    // Both at once.
    assert!(change(&mut runner, vec![(key("a"), Some(())), (key("b"), Some(()))]).is_empty());
    let (plan, _) = runner.dry_run(vec![(key("a"), None), (key("b"), None)]);
    assert_eq!(plan.finish.len(), 3);
    assert!(change(&mut runner, vec![(key("a"), None), (key("b"), None)]).is_empty());
    assert_eq!(kernel.dump(), "");
}

/// Renders an object of its own for every service and one that all share.
struct Shared(FakeKernel);

impl Steps for Shared {
    type Input = ();
    type Key = String;
    type Value = String;

    fn render_node(&self, _: &Node, _: &mut crate::Assignments) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn render(
        &self,
        _: &Node,
        (): &(),
        numbers: &mut crate::Assignments,
    ) -> Result<BTreeMap<String, String>, crate::RenderError> {
        let next = numbers.pool("own").count();
        numbers.set("own", next.to_string(), 0);
        let own = (format!("shared own {next}"), String::new());
        Ok(BTreeMap::from([own, ("shared route".to_owned(), "lo".to_owned())]))
    }

    fn observe(&mut self) -> Result<crate::Observed<String, String>, crate::EngineError> {
        Ok(crate::Observed { objects: self.0.objects(), numbers: crate::Assignments::default() })
    }

    fn apply(
        &mut self,
        operations: &[crate::Operation<String, String>],
        numbers: &mut crate::Assignments,
    ) -> Result<(), crate::ApplyError> {
        FakeEngine::new(KIND, self.0.clone()).apply(operations, numbers)
    }
}

#[test]
fn frontends_swap_and_are_handed_over_within_a_batch() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    assert!(change(&mut runner, vec![to(&service("a", &[1], &[1])), to(&service("b", &[2], &[2]))]).is_empty());
    let (a, b) = (service("a", &[2], &[1]), service("b", &[1], &[2]));
    assert!(change(&mut runner, vec![to(&a), to(&b)]).is_empty(), "swapped");
    assert_eq!(kernel.objects(), rendered([&a, &b]));
    let b = service("b", &[1, 2], &[2]);
    assert!(change(&mut runner, vec![gone("a"), to(&b)]).is_empty(), "taken over from a removed one");
    assert_eq!(kernel.objects(), rendered([&b]));
}

#[test]
fn a_frontend_is_not_taken_from_one_that_keeps_it() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    let a = service("a", &[1], &[1]);
    assert!(change(&mut runner, vec![to(&a)]).is_empty());
    assert_eq!(change(&mut runner, vec![to(&service("b", &[1], &[2]))]), ["b"]);
    assert_eq!(kernel.objects(), rendered([&a]));
    // The one that should give it up cannot: the other waits.
    kernel.refuse("nftables frontend 10.96.0.9 . tcp . 80");
    assert_eq!(change(&mut runner, vec![to(&service("a", &[9], &[1])), to(&service("b", &[1], &[2]))]), ["a", "b"]);
    assert_eq!(kernel.objects(), rendered([&a]));
    kernel.accept("nftables frontend 10.96.0.9 . tcp . 80");
    let (a, b) = (service("a", &[9], &[1]), service("b", &[1], &[2]));
    assert!(change(&mut runner, vec![to(&b), to(&a)]).is_empty());
    assert_eq!(kernel.objects(), rendered([&a, &b]));
}

#[test]
fn what_one_gives_up_another_may_take_before_it_is_removed() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    change(&mut runner, vec![to(&service("a", &[1], &[1]))]);
    assert!(failures(&runner.make(vec![gone("a")])).is_empty());
    let b = service("b", &[1], &[2]);
    assert!(failures(&runner.make(vec![to(&b)])).is_empty(), "not opposed by one that is leaving");
    runner.finish(&[key("a"), key("b")]);
    assert_eq!(kernel.objects(), rendered([&b]));
    assert!(runner.is_settled());
}

#[test]
fn what_is_retired_goes_with_finish_and_not_before() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    let (two, one) = (service("web", &[1], &[1, 2]), service("web", &[1], &[1]));
    assert!(change(&mut runner, vec![to(&two)]).is_empty());
    let made = runner.make(vec![to(&one)]);
    assert!(failures(&made).is_empty());
    assert_eq!(kernel.objects(), rendered([&two]), "still there");
    assert!(!runner.is_settled());
    runner.finish(&[key("web")]);
    assert_eq!(kernel.objects(), rendered([&one]));
    // Taken back between the halves: nothing happens at all.
    let messages = kernel.messages();
    runner.make(vec![gone("web")]);
    runner.make(vec![to(&one)]);
    runner.finish(&[key("web")]);
    assert_eq!(kernel.messages(), messages);
    assert!(runner.is_settled());
}

#[test]
fn flows_to_a_udp_endpoint_that_goes_are_named() {
    let kernel = FakeKernel::default();
    let mut runner = runner(&kernel);
    change(&mut runner, vec![to(&udp(&service("dns", &[1], &[1, 2])))]);
    assert_eq!(runner.make(vec![to(&udp(&service("dns", &[1], &[2])))]).stale, []);
    let stale = runner.finish(&[key("dns")]).stale;
    assert_eq!(stale.iter().map(|f| f.reply_source.unwrap().0.to_string()).collect::<Vec<_>>(), ["10.1.0.1"]);
}
