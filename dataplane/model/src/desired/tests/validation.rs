//! Every refusal has its field, and says what to write instead.

use super::*;
use crate::frontend::{At, NodePort, PortRange};
use crate::service::ClientAffinity;

/// The fields and texts that a definition is refused for.
fn refused(definition: Definition) -> Vec<(String, String)> {
    let problems = Node::new().one(upsert("web", definition)).unwrap_err().problems;
    problems.into_iter().map(|p| (p.field, p.message)).collect()
}

fn frontend(frontend: Frontend) -> (String, String) {
    refused(serving(vec![frontend])).remove(0)
}

#[test]
fn an_address_is_that_of_one_host() {
    for (text, advice) in [
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("::ffff:10.0.0.1", "write 10.0.0.1"),
    ] {
        let (field, message) = frontend(vip(text, 80));
        assert_eq!(field, "service.frontends[0].address");
        assert!(message.contains(advice), "{text}: {message}");
        let mut node = Node::new();
        node.one(upsert("web", serving(vec![]))).unwrap();
        let sent = node.one(set("web", vec![endpoint("10.1.0.1", 80), endpoint(text, 80)]));
        assert_eq!(fields(sent), [(ProblemCode::Invalid, "endpoints[1].address".into())]);
    }
}

#[test]
fn ports_fit_one_another() {
    assert_eq!(frontend(vip("10.0.0.1", 0)).0, "service.frontends[0].port");
    let backwards = Frontend { ports: PortRange { first: 90, last: 80 }, ..vip("10.0.0.1", 90) };
    assert_eq!(frontend(backwards).0, "service.frontends[0].port_end");
    let mut node = Node::new();
    let range = Frontend { ports: PortRange { first: 80, last: 90 }, ..vip("10.0.0.1", 80) };
    node.one(upsert("web", serving(vec![vip("10.0.0.1", 80)]))).unwrap();
    let port = |path: &str| vec![(ProblemCode::Invalid, path.to_owned())];
    assert_eq!(fields(node.one(set("web", vec![endpoint("10.1.0.1", 0)]))), port("endpoints[0].port"));
    node.one(set("web", vec![endpoint("10.1.0.1", 80)])).unwrap();
    let alone = node.one(upsert("web", serving(vec![range.clone()])));
    assert_eq!(fields(alone), port("service.frontends[0].port_end"));
    let together = vec![upsert("web", serving(vec![range])), set("web", vec![endpoint("10.1.0.1", 0)])];
    node.apply(Mode::Atomic, together).unwrap();
    assert_eq!(fields(node.one(set("web", vec![endpoint("10.1.0.1", 80)]))), port("endpoints[0].port"));
    assert_eq!(fields(node.one(upsert("web", serving(vec![])))), port("service.frontends"));
}

#[test]
fn prefixes_end_where_they_say() {
    let ranges = vec!["10.0.0.0/8".parse().unwrap(), "10.0.0.5/24".parse().unwrap()];
    let (field, message) = frontend(Frontend { source_ranges: ranges, ..vip("10.0.0.1", 80) });
    assert_eq!(field, "service.frontends[0].source_ranges[1]");
    assert!(message.contains("write 10.0.0.0/24"), "{message}");
    let node_port = NodePort { v4: true, v6: false, addresses: vec!["127.0.0.1/8".parse().unwrap()] };
    let (field, _) = frontend(Frontend { at: At::NodePort(node_port), ..vip("10.0.0.1", 80) });
    assert_eq!(field, "service.frontends[0].node_port.addresses[0]");
}

#[test]
fn all_violations_come_at_once_and_bounded() {
    let affinity = ClientAffinity { timeout: Duration::from_millis(10), prefix_v4: 33, prefix_v6: 129 };
    let definition = Definition {
        client_affinity: Some(affinity),
        idle_timeout: Some(Duration::ZERO),
        ..serving(vec![vip("0.0.0.0", 0), vip("10.0.0.1", 80), vip("10.0.0.1", 80)])
    };
    let fields: Vec<_> = refused(definition).into_iter().map(|p| p.0).collect();
    assert_eq!(
        fields,
        [
            "frontends[0].address",
            "frontends[0].port",
            "frontends[2]",
            "client_affinity.timeout",
            "client_affinity.prefix_v4",
            "client_affinity.prefix_v6",
            "idle_timeout"
        ]
        .map(|f| format!("service.{f}"))
    );

    let mut node = Node::new();
    node.one(upsert("web", serving(vec![]))).unwrap();
    let bad = vec![endpoint("0.0.0.0", 0); 10_000];
    let problems = node.one(set("web", bad)).unwrap_err().problems;
    assert_eq!(problems.len(), 100);
    assert!(problems[99].message.contains("19900 more"), "{}", problems[99]);
}

#[test]
fn limits_are_said_with_their_numbers() {
    let many: Vec<_> = (1..=1001).map(|port| vip("10.0.0.1", port)).collect();
    let (field, message) = refused(serving(many)).remove(0);
    assert_eq!(field, "service.frontends");
    assert!(message.contains("1001") && message.contains("1000"), "{message}");

    let mut node = Node::new();
    node.desired.limits.services = 2;
    node.desired.limits.endpoints_per_service = 10;
    for name in ["a", "b"] {
        node.one(upsert(name, serving(vec![]))).unwrap();
    }
    assert_eq!(fields(node.one(upsert("c", serving(vec![])))), [(ProblemCode::Limit, "service.name".into())]);
    node.apply(Mode::Atomic, vec![delete("a"), upsert("c", serving(vec![]))]).unwrap();
    let eleven: Vec<_> = (1..=11).map(|port| endpoint("10.1.0.1", port)).collect();
    assert_eq!(fields(node.one(set("c", eleven))), [(ProblemCode::Limit, "endpoints".into())]);
    node.desired.limits.operations_per_apply = 1;
    let two = vec![delete("a"), delete("b")];
    assert_eq!(fields(node.apply(Mode::Each, two)), [(ProblemCode::Limit, "operations".into())]);
}

#[test]
fn sixty_thousand_plain_endpoints_fit_and_three_megabytes_of_text_do_not() {
    let mut node = Node::new();
    node.one(upsert("web", serving(vec![]))).unwrap();
    let list: Vec<_> =
        (0..60_000u32).map(|i| Endpoint::new(std::net::Ipv4Addr::from(0x0a01_0000 + i).into(), 8080)).collect();
    node.one(set("web", list.clone())).unwrap();
    let named = |e: Endpoint| Endpoint { target: Some("x".repeat(60).into()), ..e };
    let text: Vec<_> = list.into_iter().map(named).collect();
    assert_eq!(fields(node.one(set("web", text))), [(ProblemCode::Limit, "endpoints".into())]);
}
