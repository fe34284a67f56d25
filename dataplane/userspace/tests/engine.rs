//! The proxy as an engine, driven by the runner as the reconciler drives it. Without a guard: on addresses of this host.

#![allow(clippy::unwrap_used, reason = "tests")]

mod kit;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use kit::*;
use vipd_engine::{Node, Runner};
use vipd_model::frontend::NodePort;
use vipd_model::{At, Network, NoEndpoints, Policy, PortRange, ProblemCode, Protocol, Scope, ServiceKey};
use vipd_userspace::{Userspace, Way};

fn runner() -> Runner<Userspace> {
    let mut runner = Runner::start(Userspace::new(Arc::new(proxy()), Way::Direct)).unwrap();
    let addresses = vec![IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    runner.set_node(Node { addresses, ..Node::default() }).unwrap();
    runner.release().unwrap();
    runner
}

fn make(runner: &mut Runner<Userspace>, build: &Build) -> Result<(), vipd_model::Problem> {
    let selected = Arc::unwrap_or_clone(build.selected());
    let made = runner.make(vec![(build.key.clone(), Some(selected))]);
    runner.finish(std::slice::from_ref(&build.key));
    made.outcomes.into_iter().next().unwrap().1
}

fn remove(runner: &mut Runner<Userspace>, key: &ServiceKey) {
    runner.make(vec![(key.clone(), None)]);
    runner.finish(std::slice::from_ref(key));
}

#[test]
fn what_is_made_is_what_is_observed_and_removal_leaves_nothing() {
    let mut runner = runner();
    let vip = free_address();
    let build = Build::tcp("web", vip, &[named("a")]);
    make(&mut runner, &build).unwrap();
    assert_eq!(ask(vip).unwrap(), "a");
    assert!(runner.check().unwrap().is_empty(), "observe equals render");
    remove(&mut runner, &build.key);
    assert_eq!(ask(vip).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert!(runner.check().unwrap().is_empty());
}

#[test]
fn a_taken_address_fails_its_service_alone() {
    let mut runner = runner();
    let taken = named("somebody else");
    let vip = free_address();
    let (good, bad) = (Build::tcp("good", vip, &[named("a")]), Build::tcp("bad", taken, &[named("b")]));
    let batch = [&bad, &good].map(|b| (b.key.clone(), Some(Arc::unwrap_or_clone(b.selected()))));
    let made = runner.make(batch.into());
    for (key, outcome) in made.outcomes {
        match outcome {
            Ok(()) => assert_eq!(key, good.key),
            Err(problem) => assert_eq!((key, problem.code), (bad.key.clone(), ProblemCode::AddressInUse)),
        }
    }
    assert_eq!(ask(vip).unwrap(), "a");
    assert_eq!(ask(taken).unwrap(), "somebody else");
    assert!(runner.check().unwrap().is_empty(), "nothing of the bad one is left");
}

#[test]
fn frontends_swap_in_one_batch() {
    let mut runner = runner();
    let (one, two) = (free_address(), free_address());
    let (a, b) = (named("a"), named("b"));
    let batch = |first, second| {
        [Build::tcp("a", first, &[a]), Build::tcp("b", second, &[b])]
            .map(|build| (build.key.clone(), Some(Arc::unwrap_or_clone(build.selected()))))
    };
    for (first, second) in [(one, two), (two, one), (one, two)] {
        let batch = batch(first, second);
        let keys = [batch[0].0.clone(), batch[1].0.clone()];
        assert!(runner.make(batch.into()).outcomes.iter().all(|(_, outcome)| outcome.is_ok()));
        runner.finish(&keys);
        assert_eq!((ask(first).unwrap(), ask(second).unwrap()), ("a".to_owned(), "b".to_owned()));
    }
}

#[test]
fn no_endpoint_means_refused_or_silence_as_declared() {
    let mut runner = runner();
    let vip = free_address();
    let mut build = Build::tcp("empty", vip, &[]);
    make(&mut runner, &build).unwrap();
    assert_eq!(ask(vip).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    build.definition.on_no_endpoints = NoEndpoints::Drop;
    make(&mut runner, &build).unwrap();
    assert_eq!(ask_from(Ipv4Addr::LOCALHOST.into(), vip).unwrap_err().kind(), ErrorKind::TimedOut);
    build.endpoints = Build::tcp("x", vip, &[named("back")]).endpoints;
    make(&mut runner, &build).unwrap();
    assert_eq!(ask(vip).unwrap(), "back");
}

#[test]
fn source_ranges_hold_without_privilege() {
    let mut runner = runner();
    let vip = free_address();
    let mut build = Build::tcp("ranged", vip, &[named("a")]);
    build.definition.frontends[0].source_ranges =
        vec!["127.0.0.2/32".parse().unwrap(), "127.0.4.0/22".parse().unwrap()];
    make(&mut runner, &build).unwrap();
    let from = |text: &str| ask_from(text.parse().unwrap(), vip);
    assert_eq!(from("127.0.0.2").unwrap(), "a");
    assert_eq!(from("127.0.7.255").unwrap(), "a");
    assert_eq!(from("127.0.0.1").unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(from("127.0.8.0").unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn source_ranges_hold_for_ipv6() {
    let mut runner = runner();
    let endpoint = backend_on(Ipv6Addr::LOCALHOST.into(), |mut stream| {
        let _ = std::io::Write::write_all(&mut stream, b"six");
    });
    let port = free_address().port();
    let vip = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port);
    for (range, comes_in) in
        [("::1/128", true), ("::/0", true), ("::/127", true), ("::/128", false), ("fd00::/8", false)]
    {
        let mut build = Build::tcp("six", vip, &[endpoint]);
        build.definition.frontends[0].source_ranges =
            vec!["2001:db8:1:2:3:4:5:6/128".parse().unwrap(), range.parse().unwrap()];
        make(&mut runner, &build).unwrap();
        assert_eq!(ask_from(Ipv6Addr::LOCALHOST.into(), vip).is_ok(), comes_in, "{range}");
    }
}

/// Policy LOCAL without local endpoints: who is inside is served, outsiders meet silence (case 70, EXTERNAL + LOCAL).
#[test]
fn outsiders_meet_silence_where_only_inside_is_served() {
    let mut runner = runner();
    let inside: IpAddr = "127.0.0.1".parse().unwrap();
    let vip = free_address();
    let mut build = Build::tcp("local", vip, &[named("far")]);
    build.definition.frontends[0].policy = Policy::Local;
    build.definition.frontends[0].scope = Scope::External;
    make(&mut runner, &build).unwrap();
    assert_eq!(ask_from(inside, vip).unwrap(), "far");
}

/// Case 66: node ports on loopback, both families.
#[test]
fn case_066_node_ports_are_served_on_loopback() {
    let mut runner = runner();
    let port = free_address().port();
    let endpoint6 = backend_on(Ipv6Addr::LOCALHOST.into(), |mut stream| {
        let _ = std::io::Write::write_all(&mut stream, b"six");
    });
    let mut build = Build::tcp("np", free_address(), &[named("four"), endpoint6]);
    let frontend = &mut build.definition.frontends[0];
    frontend.at = At::NodePort(NodePort { v4: true, v6: true, addresses: Vec::new() });
    frontend.ports = PortRange::one(port);
    make(&mut runner, &build).unwrap();
    assert_eq!(ask((Ipv4Addr::LOCALHOST, port).into()).unwrap(), "four");
    assert_eq!(ask((Ipv6Addr::LOCALHOST, port).into()).unwrap(), "six");
    let network = Network::default();
    let addresses = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
    runner.set_node(Node { network, addresses, ..Node::default() }).unwrap();
    make(&mut runner, &build).unwrap();
    assert_eq!(ask((Ipv6Addr::LOCALHOST, port).into()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_port_range_keeps_the_clients_port() {
    let mut runner = runner();
    let at = |port| SocketAddr::from((Ipv4Addr::new(127, 0, 0, 1), port));
    // Three ports in a row that are free here and at the endpoint's address.
    let first = (20_000..30_000)
        .step_by(7)
        .find(|first| {
            (*first..first + 3).all(|port| {
                std::net::TcpListener::bind(at(port)).is_ok()
                    && std::net::TcpListener::bind((Ipv4Addr::new(127, 0, 0, 9), port)).is_ok()
            })
        })
        .unwrap();
    for port in first..first + 3 {
        let listener = std::net::TcpListener::bind((Ipv4Addr::new(127, 0, 0, 9), port)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::io::Write::write_all(&mut stream.unwrap(), port.to_string().as_bytes()).unwrap();
            }
        });
    }
    let mut build =
        Build::new("range", Protocol::Tcp, at(first), &[SocketAddr::from((Ipv4Addr::new(127, 0, 0, 9), 0))]);
    build.definition.frontends[0].ports = PortRange { first, last: first + 2 };
    make(&mut runner, &build).unwrap();
    for port in first..first + 3 {
        assert_eq!(ask(at(port)).unwrap(), port.to_string());
    }
    build.definition.frontends[0].ports = PortRange { first: 1_024, last: 65_535 };
    let problem = make(&mut runner, &build).unwrap_err();
    assert_eq!((problem.code, problem.field.as_str()), (ProblemCode::Limit, "frontends[0].port_end"));
}
