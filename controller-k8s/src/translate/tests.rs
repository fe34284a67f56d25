//! Golden tables: objects as the API server has them → messages, one line each.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vipd_proto::v1::frontend::{At, Policy, Scope};
use vipd_proto::v1::{endpoint, node_port};

use super::*;

/// Translates objects on node "n1" in zone "a" at 10.0.0.1 and fd00::1.
fn translated(service: Value, slices: &[Value], node_ports: &[&str]) -> Option<Translation> {
    let node = NodeFacts {
        zone: Some("a".into()),
        addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        ..Default::default()
    };
    on(&node, service, slices, node_ports)
}

fn on(node: &NodeFacts, service: Value, slices: &[Value], node_ports: &[&str]) -> Option<Translation> {
    let service = serde_json::from_value(service).unwrap();
    let facts = ServiceFacts::read(&service)?;
    let slices: Vec<SliceFacts> = slices
        .iter()
        .filter_map(|slice| SliceFacts::read(&serde_json::from_value(slice.clone()).unwrap(), "n1"))
        .collect();
    let slices: Vec<&SliceFacts> = slices.iter().collect();
    let node_ports = NodePorts::parse(node_ports.iter().copied()).unwrap();
    let context = Context { node, node_ports: &node_ports, scheduler: None };
    Some(translate(&Key::of(&service.metadata), &facts, &slices, context))
}

/// shop/web with these fields of its spec, port 80 called http unless it says otherwise.
fn service(spec: Value) -> Value {
    with_status(spec, json!([]))
}

fn with_status(spec: Value, ingress: Value) -> Value {
    let mut all = json!({ "clusterIP": "10.96.0.10", "ports": [{ "name": "http", "port": 80 }] });
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({
        "metadata": { "namespace": "shop", "name": "web", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": all,
        "status": { "loadBalancer": { "ingress": ingress } },
    })
}

fn slice(version: u64, ports: Value, endpoints: Value) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": format!("web-{version}"), "resourceVersion": version.to_string(),
            "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
    })
}

fn http_slice(version: u64, endpoints: Value) -> Value {
    slice(version, json!([{ "name": "http", "port": 8080 }]), endpoints)
}

fn endpoint(address: &str, more: Value) -> Value {
    let mut all = json!({ "addresses": [address] });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

fn frontends(declared: &Declared) -> Vec<String> {
    let line = |f: &v1::Frontend| {
        let at = match f.at.as_ref().unwrap() {
            At::Address(address) => address.clone(),
            At::NodePort(node_port) => {
                let family = node_port::Family::try_from(node_port.family).unwrap().as_str_name().to_lowercase();
                format!("node[{family} {}]", node_port.addresses.join(" "))
            }
        };
        let scope = if f.scope() == Scope::Internal { "internal" } else { "external" };
        let policy = if f.policy() == Policy::Local { "local" } else { "all" };
        format!("{at} {} {scope} {policy} {}", f.port, f.source_ranges.join(" ")).trim_end().to_owned()
    };
    declared.definition.frontends.iter().map(line).collect()
}

fn endpoints(declared: &Declared) -> Vec<String> {
    let line = |e: &v1::Endpoint| {
        let state = endpoint::State::try_from(e.state).unwrap().as_str_name().to_lowercase();
        let local = if e.local { " local" } else { "" };
        format!("{}:{} {state} {}{local}", e.address, e.port, e.tier)
    };
    declared.endpoints.iter().map(line).collect()
}

fn only(translation: Option<Translation>) -> Declared {
    let mut services = translation.unwrap().services;
    assert_eq!(services.len(), 1);
    services.remove(0)
}

#[test]
fn every_kind_of_address() {
    let table: &[(&str, Value, Value, &[&str])] = &[
        ("cluster address", json!({}), json!([]), &["10.96.0.10 80 internal all"]),
        ("leading zeros", json!({ "clusterIP": "010.096.000.010" }), json!([]), &["10.96.0.10 80 internal all"]),
        (
            "both families, IPv6 first",
            json!({ "clusterIPs": ["fd00:96::a", "10.96.0.10"], "ipFamilies": ["IPv6", "IPv4"] }),
            json!([]),
            &["fd00:96::a 80 internal all", "10.96.0.10 80 internal all"],
        ),
        (
            "node port, one family",
            json!({ "type": "NodePort", "ports": [{ "name": "http", "port": 80, "nodePort": 30080 }] }),
            json!([]),
            &["10.96.0.10 80 internal all", "node[ipv4 ] 30080 external all"],
        ),
        (
            "node port, both families",
            json!({
                "type": "NodePort", "ports": [{ "name": "http", "port": 80, "nodePort": 30080 }],
                "clusterIPs": ["10.96.0.10", "fd00:96::a"], "ipFamilies": ["IPv4", "IPv6"],
            }),
            json!([]),
            &["10.96.0.10 80 internal all", "fd00:96::a 80 internal all", "node[both ] 30080 external all"],
        ),
        (
            "external addresses of its families only, once; policies apart",
            json!({
                "externalIPs": ["192.0.2.1", "2001:db8::1", "192.0.2.1", " ", "010.0.0.9"],
                "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster",
            }),
            json!([]),
            &["10.96.0.10 80 internal all", "192.0.2.1 80 external local", "10.0.0.9 80 external local"],
        ),
        (
            "external policy does not count without a way in",
            json!({ "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local" }),
            json!([]),
            &["10.96.0.10 80 internal local"],
        ),
        (
            "balancer addresses by mode, ranges of the family and the address itself where the node may come in",
            json!({ "type": "LoadBalancer", "loadBalancerSourceRanges": [" 10.0.0.9/8 ", "2001:db8::/32"] }),
            json!([
                { "ip": "192.0.2.1" }, { "ip": "192.0.2.2", "ipMode": "VIP" }, { "ip": "192.0.2.3", "ipMode": "Proxy" },
                { "hostname": "lb.example" }, { "ip": "2001:db8::1" },
            ]),
            &[
                "10.96.0.10 80 internal all",
                "192.0.2.1 80 external all 10.0.0.0/8 192.0.2.1/32",
                "192.0.2.2 80 external all 10.0.0.0/8 192.0.2.2/32",
            ],
        ),
        (
            "ranges of the other family are no ranges",
            json!({ "type": "LoadBalancer", "loadBalancerSourceRanges": ["2001:db8::/32"] }),
            json!([{ "ip": "192.0.2.1" }]),
            &["10.96.0.10 80 internal all", "192.0.2.1 80 external all"],
        ),
        (
            "an address that is external and a balancer's is one, with the ranges",
            json!({
                "type": "LoadBalancer", "externalIPs": ["192.0.2.1"], "loadBalancerSourceRanges": ["198.51.100.0/24"],
            }),
            json!([{ "ip": "192.0.2.1" }]),
            &["10.96.0.10 80 internal all", "192.0.2.1 80 external all 198.51.100.0/24"],
        ),
    ];
    for (name, spec, ingress, wanted) in table {
        let found = only(translated(with_status(spec.clone(), ingress.clone()), &[], &[]));
        assert_eq!(frontends(&found), *wanted, "{name}");
    }
}

#[test]
fn node_ports_are_served_where_it_is_configured() {
    let web = service(json!({ "type": "NodePort", "ports": [{ "name": "http", "port": 80, "nodePort": 30080 }] }));
    for (configured, wanted) in [
        (&["primary"][..], "node[ipv4 10.0.0.1/32] 30080 external all"),
        (&["localhost", "172.16.0.0/12"], "node[ipv4 127.0.0.0/8 172.16.0.0/12] 30080 external all"),
        (&["2001:db8::/32"], "node[ipv4 0.0.0.0/0] 30080 external all"),
    ] {
        let found = only(translated(web.clone(), &[], configured));
        assert_eq!(frontends(&found)[1], wanted, "{configured:?}");
    }
    let nowhere = on(&NodeFacts::default(), web, &[], &["primary"]);
    assert_eq!(frontends(&only(nowhere)), ["10.96.0.10 80 internal all"], "an address that is not known is no address");
}

#[test]
fn what_is_left_alone() {
    for (name, object) in [
        ("headless", service(json!({ "clusterIP": "None" }))),
        ("no address yet", service(json!({ "clusterIP": "" }))),
        ("a name elsewhere", service(json!({ "type": "ExternalName" }))),
    ] {
        assert_eq!(translated(object, &[], &[]), None, "{name}");
    }
    for label in ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"] {
        let mut object = service(json!({}));
        object["metadata"]["labels"] = json!({ label: "" });
        assert_eq!(translated(object, &[], &[]), None, "{label}");
    }
}

#[test]
fn what_is_said_of_a_service() {
    let object = with_status(
        json!({
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 60 } },
            "ports": [
                { "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "dns-tcp", "port": 53 },
                { "name": "sig", "port": 3868, "protocol": "SCTP" },
            ],
        }),
        json!([]),
    );
    let translation = translated(object, &[], &[]).unwrap();
    let line = |declared: &Declared| {
        let d = &declared.definition;
        let timeout = d.client_affinity.as_ref().and_then(|affinity| affinity.timeout.as_ref()).unwrap().seconds;
        format!("{}/{} {:?} {} {} {timeout} {}", d.owner, d.name, d.protocol(), d.group, d.health_port, d.precedence)
    };
    assert_eq!(
        translation.services.iter().map(line).collect::<Vec<_>>(),
        [
            "k8s/shop/web:dns/udp Udp shop/web 32000 60 1767225600",
            "k8s/shop/web:dns-tcp/tcp Tcp shop/web 32000 60 1767225600",
            "k8s/shop/web:sig/sctp Sctp shop/web 32000 60 1767225600",
        ]
    );
    let d = only(translated(service(json!({ "sessionAffinity": "ClientIP", "healthCheckNodePort": 1 })), &[], &[]));
    assert_eq!(d.definition.health_port, 0, "only of a load balancer with policy Local");
    assert_eq!(d.definition.client_affinity.unwrap().timeout.unwrap().seconds, 10_800);
    assert_eq!(d.definition.scheduler, None, "an operator's choice is kept");
    assert_eq!(service_key("shop/web:http/tcp"), Some(Key::new("shop", "web")));
}

#[test]
fn conditions_are_states() {
    let conditions = [
        (json!({}), "ready"),
        (json!({ "ready": true, "terminating": true }), "ready"),
        (json!({ "ready": false }), "not_ready"),
        (json!({ "ready": false, "serving": true, "terminating": true }), "draining"),
        (json!({ "ready": false, "terminating": true }), "draining"),
        (json!({ "ready": false, "serving": false, "terminating": true }), "not_ready"),
    ];
    for (conditions, wanted) in conditions {
        let slices = [http_slice(1, json!([endpoint("10.1.0.1", json!({ "conditions": conditions }))]))];
        let found = endpoints(&only(translated(service(json!({})), &slices, &[])));
        let tier = if wanted == "ready" { 2 } else { 0 };
        assert_eq!(found, [format!("10.1.0.1:8080 {wanted} {tier}")], "{conditions}");
    }
}

#[test]
fn ports_are_found_by_name_and_protocol_slice_by_slice() {
    let web = service(json!({ "ports": [
        { "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "dns-tcp", "port": 53 }, { "name": "none", "port": 1 },
    ] }));
    let slices = [
        slice(
            1,
            json!([{ "name": "dns", "port": 5353, "protocol": "UDP" }, { "name": "dns-tcp", "port": 5354 }]),
            json!([endpoint("10.1.0.1", json!({ "nodeName": "n1" }))]),
        ),
        slice(
            2,
            json!([
                { "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "dns-tcp", "protocol": "UDP", "port": 9 },
                { "name": "none" }, { "port": 7 },
            ]),
            json!([endpoint("10.1.0.2", json!({ "nodeName": "n2" }))]),
        ),
    ];
    let services = translated(web, &slices, &[]).unwrap().services;
    let found: Vec<Vec<String>> = services.iter().map(endpoints).collect();
    assert_eq!(found[0], ["10.1.0.1:5353 ready 2 local", "10.1.0.2:53 ready 2"]);
    assert_eq!(found[1], ["10.1.0.1:5354 ready 2 local"]);
    assert!(found[2].is_empty());

    let unnamed = service(json!({ "ports": [{ "port": 80 }] }));
    let slices = [slice(1, json!([{ "name": "", "port": 8080 }]), json!([endpoint("10.1.0.1", json!({}))]))];
    let found = only(translated(unnamed, &slices, &[]));
    assert_eq!(found.definition.name, "shop/web:/tcp");
    assert_eq!(endpoints(&found), ["10.1.0.1:8080 ready 2"]);
}

/// Cases 93 and 94: a pod that stands in two slices, and two pods with one address.
#[test]
fn of_one_pod_the_newest_slice_counts_and_of_two_the_better() {
    let of = |uid: &str, ready: bool| {
        let conditions = json!({ "ready": ready, "serving": true, "terminating": !ready });
        let target = json!({ "kind": "Pod", "namespace": "shop", "name": uid, "uid": uid });
        json!([endpoint("10.1.0.1", json!({ "conditions": conditions, "targetRef": target }))])
    };
    let web = || service(json!({}));
    for (name, slices, wanted, target) in [
        ("it became ready", [http_slice(1, of("p", false)), http_slice(2, of("p", true))], "ready 2", "p"),
        ("it leaves", [http_slice(1, of("p", true)), http_slice(2, of("p", false))], "draining 0", "p"),
        ("a ghost, told of later", [http_slice(1, of("new", true)), http_slice(2, of("old", false))], "ready 2", "new"),
        (
            "a ghost, told of before",
            [http_slice(1, of("old", false)), http_slice(2, of("new", true))],
            "ready 2",
            "new",
        ),
    ] {
        let [first, second] = slices;
        for order in [[first.clone(), second.clone()], [second, first]] {
            let found = only(translated(web(), &order, &[]));
            assert_eq!(endpoints(&found), [format!("10.1.0.1:8080 {wanted}")], "{name}");
            assert_eq!(found.endpoints[0].target, format!("pod shop/{target}"), "{name}");
        }
    }
}

#[test]
fn hints_are_tiers_if_every_ready_endpoint_has_them() {
    let zone = |name: &str| json!({ "hints": { "forZones": [{ "name": name }] } });
    let both =
        |node: &str, zone: &str| json!({ "hints": { "forNodes": [{ "name": node }], "forZones": [{ "name": zone }] } });
    let not_ready = json!({ "conditions": { "ready": false } });
    type Case<'a> = (&'a str, Vec<Value>, &'a [u32], Option<&'a str>);
    let cases: Vec<Case<'_>> = vec![
        ("none", vec![json!({}), json!({})], &[2, 2], None),
        ("zones", vec![zone("a"), zone("b")], &[1, 2], None),
        ("no endpoint of ours", vec![zone("b"), zone("c")], &[2, 2], None),
        ("one is missing", vec![zone("a"), json!({})], &[2, 2], Some("1 of 2 ready endpoints have no hint")),
        ("the one that misses is not ready", vec![zone("a"), not_ready], &[1, 0], None),
        ("nodes and zones", vec![both("n1", "a"), both("n2", "a"), both("n3", "b")], &[0, 1, 2], None),
        ("no node of ours", vec![both("n2", "a"), both("n3", "b")], &[1, 2], None),
        ("nodes in part", vec![both("n1", "a"), zone("b")], &[1, 2], Some("1 of 2 ready endpoints have no hint")),
    ];
    let slices = |all: &[Value]| {
        let all: Vec<Value> =
            all.iter().zip(1..).map(|(more, i)| endpoint(&format!("10.1.0.{i}"), more.clone())).collect();
        [http_slice(1, all.into())]
    };
    for (name, all, wanted, ignored) in cases {
        let translation = translated(service(json!({})), &slices(&all), &[]).unwrap();
        let found: Vec<u32> = translation.services[0].endpoints.iter().map(|e| e.tier).collect();
        assert_eq!(found, wanted, "{name}");
        let said = translation.remarks.first().map(|remark| remark.text.as_str());
        assert_eq!(said.is_some(), ignored.is_some(), "{name}: {said:?}");
        assert!(said.is_none_or(|said| said.contains(ignored.unwrap())), "{name}: {said:?}");
    }
    let nowhere = on(&NodeFacts::default(), service(json!({})), &slices(&[zone("a")]), &[]).unwrap();
    assert_eq!(nowhere.services[0].endpoints[0].tier, 2);
    assert_eq!(nowhere.remarks[0].reason, "TopologyHintsIgnored");
    assert!(nowhere.remarks[0].text.contains("topology.kubernetes.io/zone"));
}

#[test]
fn what_cannot_be_understood_is_left_out_and_said() {
    let object = with_status(
        json!({
            "type": "LoadBalancer", "externalIPs": ["example.org", "192.0.2.9"],
            "loadBalancerSourceRanges": ["10.0.0.0/99"],
            "ports": [{ "name": "http", "port": 80 }, { "name": "odd", "port": 80, "protocol": "QUIC" }],
        }),
        json!([{ "ip": "?" }]),
    );
    let endpoints_of =
        json!([endpoint("0.0.0.0", json!({})), endpoint("fd00::1", json!({})), json!({ "addresses": [] })]);
    let translation = translated(object, &[http_slice(1, endpoints_of)], &[]).unwrap();
    let mut said: BTreeMap<&str, usize> = BTreeMap::new();
    for remark in &translation.remarks {
        *said.entry(remark.reason).or_default() += 1;
    }
    let wanted = ["InvalidEndpoint", "InvalidExternalIP", "InvalidLoadBalancerIP", "InvalidPort", "InvalidSourceRange"];
    assert_eq!(said.into_keys().collect::<Vec<_>>(), wanted);
    assert_eq!(translation.services.len(), 1);
    assert!(translation.services[0].endpoints.is_empty());
}

#[test]
fn slices_of_other_kinds_and_of_no_service_are_nothing() {
    let read = |change: &dyn Fn(&mut Value)| {
        let mut object = http_slice(1, json!([endpoint("10.1.0.1", json!({}))]));
        change(&mut object);
        SliceFacts::read(&serde_json::from_value(object).unwrap(), "n1")
    };
    assert!(read(&|_| {}).is_some());
    assert!(read(&|object| object["addressType"] = json!("FQDN")).is_none());
    assert!(read(&|object| object["metadata"]["labels"] = json!({})).is_none());
    assert!(read(&|object| object["metadata"]["labels"]["service.kubernetes.io/headless"] = json!("")).is_none());
}

#[test]
fn the_owner_knows_the_network() {
    let node = NodeFacts { pod_ranges: vec!["10.244.1.0/24".parse().unwrap()], going: true, ..Default::default() };
    let ranges = ["fd00:96::/112", "10.96.0.0/12", "10.96.0.0/12"].map(|text| text.parse().unwrap());
    let of = |local: LocalSources| owner(&node, &local, &ranges, false);
    let network = |owner: v1::Owner| owner.network.unwrap();
    let by_node = of(LocalSources::NodeRanges);
    assert!(by_node.node_draining && by_node.lease.is_none());
    assert_eq!(network(by_node.clone()).local_sources, ["10.244.1.0/24"]);
    assert_eq!(network(by_node).virtual_ranges, ["10.96.0.0/12", "fd00:96::/112"]);
    assert_eq!(network(of(LocalSources::Interfaces("veth*".to_owned()))).local_source_interfaces, ["veth*"]);
    let cluster = vec!["10.244.0.0/16".parse().unwrap()];
    assert_eq!(network(of(LocalSources::Ranges(cluster))).local_sources, ["10.244.0.0/16"]);
}
