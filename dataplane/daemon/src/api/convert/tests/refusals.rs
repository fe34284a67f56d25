//! Every refusal: its path, and what it says to write instead.

use pbjson_types::Duration;
use vipd_proto::v1;

use super::super::{endpoint, operation, owner, scalar, service, sync};
use super::{ops, refused};

#[test]
fn addresses_have_one_form() {
    for (text, advice) in [
        ("", "give an IPv4 or IPv6 address"),
        ("010.0.0.1", "octal; write 10.0.0.1"),
        ("10.0.0.00", "write 10.0.0.0"),
        ("::ffff:10.0.0.1", "write 10.0.0.1"),
        ("::FFFF:0a00:0001", "write 10.0.0.1"),
        ("fe80::1%eth0", "zone id, which means something on one host only; write fe80::1"),
        ("10.0.0.1:80", "write 10.0.0.1 here and 80 into the port"),
        ("[fd00::1]:80", "write fd00::1 here and 80 into the port"),
        ("[fd00::1]", "write fd00::1"),
        ("10.0.0.0/24", "is a prefix"),
        (" 10.0.0.1", "write 10.0.0.1"),
        ("example.org", "resolves no host names"),
        ("10.0.0", "not an IPv4 or IPv6 address"),
        ("10.0.0.256", "not an IPv4 or IPv6 address"),
        ("0x0a.0.0.1", "not an IPv4 or IPv6 address"),
    ] {
        let why = scalar::address(text).unwrap_err();
        assert!(why.contains(advice), "{text:?}: {why}");
    }
    for text in ["10.0.0.1", "0.0.0.0", "fd00::1", "2001:DB8::1", "::1"] {
        assert!(scalar::address(text).is_ok(), "{text}");
    }
}

#[test]
fn prefixes_have_a_length_and_nothing_behind_it() {
    for (text, advice) in [
        ("10.0.0.1", "write 10.0.0.1/32"),
        ("fd00::1", "write fd00::1/128"),
        ("10.0.0.1/8", "write 10.0.0.0/8, or 10.0.0.1/32 for one host"),
        ("10.0.0.0/33", "from 0 to 32"),
        ("10.0.0.0/08x", "from 0 to 32"),
        ("10.0.0.0/+8", "from 0 to 32"),
        ("10.0.0.0/", "from 0 to 32"),
        ("fd00::/129", "from 0 to 128"),
        ("::ffff:10.0.0.0/104", "write 10.0.0.0"),
        ("all", "write one such as 10.0.0.0/8"),
    ] {
        let why = scalar::prefix(text).unwrap_err();
        assert!(why.contains(advice), "{text:?}: {why}");
    }
    for text in ["0.0.0.0/0", "10.0.0.0/8", "::/0", "fd00::1/128"] {
        assert!(scalar::prefix(text).is_ok(), "{text}");
    }
}

#[test]
fn a_name_of_a_mebibyte_is_answered_in_a_line() {
    let long = "x".repeat(1024 * 1024);
    let request = v1::SetEndpointsRequest {
        owner: long.clone(),
        name: long.clone(),
        endpoints: vec![v1::Endpoint { address: long.clone(), target: long, port: 1, ..Default::default() }],
        ..Default::default()
    };
    let problems = refused(|at, p| operation::parse_set_endpoints(&request, &ops(), at, p));
    let fields: Vec<_> = problems.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(fields, ["owner", "name", "endpoints[0].address", "endpoints[0].target"]);
    assert!(problems.iter().all(|p| p.message.len() < 200), "{problems:?}");
    assert_eq!(problems[1].message, "has 1048576 bytes; the most is 253");
}

#[test]
fn many_bad_endpoints_are_counted_and_not_all_listed() {
    let bad = v1::Endpoint { address: "x".to_owned(), port: 70_000, ..Default::default() };
    let problems = refused(|at, p| endpoint::parse_list(&vec![bad; 10_000], &at.field("endpoints"), p));
    assert_eq!(problems.len(), vipd_model::limits::PROBLEMS + 1);
    assert_eq!(problems.last().unwrap().message, "and 19900 more problems like these, not listed");
}

#[test]
fn an_endpoint_names_every_field_that_is_wrong() {
    let message = v1::Endpoint {
        address: "ten".to_owned(),
        port: 65_536,
        weight: Some(65_536),
        state: 9,
        target: "a\nb".to_owned(),
        drain: Some(v1::Drain { timeout: Some(Duration { seconds: -1, nanos: 0 }), on_expiry: 3 }),
        ..Default::default()
    };
    let problems = refused(|at, p| endpoint::parse(&message, at, p));
    let fields: Vec<_> = problems.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(fields, ["address", "port", "weight", "state", "target", "drain.timeout", "drain.on_expiry"]);
}

#[test]
fn a_service_names_every_field_that_is_wrong() {
    let frontend = v1::Frontend {
        at: Some(v1::frontend::At::Address("0.0.0".to_owned())),
        port: 65_536,
        port_end: 70_000,
        scope: 7,
        policy: 7,
        source_ranges: vec!["10.0.0.0/8".to_owned(), "10.0.0.1".to_owned()],
        source_nat: 7,
    };
    let backwards = v1::Frontend {
        at: Some(v1::frontend::At::NodePort(v1::NodePort { family: 9, addresses: vec!["x".to_owned()] })),
        port: 80,
        ..Default::default()
    };
    let message = v1::Service {
        name: "we\u{202e}b".to_owned(),
        protocol: 17,
        frontends: vec![frontend, v1::Frontend { port: 80, ..Default::default() }, backwards],
        scheduler: Some(v1::Scheduler { algorithm: 99, hash_source_port: false, fallback: 9 }),
        client_affinity: Some(v1::ClientAffinity {
            timeout: Some(Duration { seconds: -1, nanos: 0 }),
            prefix_v4: Some(33),
            prefix_v6: Some(129),
        }),
        group: "g".repeat(1_025),
        labels: [("zone".to_owned(), "a\u{7}".to_owned())].into(),
        on_no_endpoints: 5,
        on_no_local_endpoints: 5,
        drain: Some(v1::Drain { timeout: Some(Duration { seconds: 1, nanos: -1 }), on_expiry: 0 }),
        on_contest: 5,
        health_port: 65_536,
        health_check: Some(v1::HealthCheck {
            probe: Some(v1::health_check::Probe::Http(v1::health_check::Http {
                path: "x".to_owned(),
                host: "a\nb".to_owned(),
                port: 65_536,
            })),
            interval: Some(Duration { seconds: 0, nanos: -1 }),
            timeout: Some(Duration { seconds: -1, nanos: 0 }),
            rise: 101,
            fall: 101,
            remote_too: false,
        }),
        engine: 5,
        idle_timeout: Some(Duration { seconds: 0, nanos: 2_000_000_000 }),
        proxy_protocol: 3,
        ..Default::default()
    };
    let problems = refused(|at, p| service::parse(message, &ops(), &at.field("service"), p));
    let fields: Vec<_> = problems.iter().map(|p| p.field.strip_prefix("service.").unwrap()).collect();
    assert_eq!(
        fields,
        [
            "name",
            "scheduler.algorithm",
            "scheduler.fallback",
            "protocol",
            "frontends[0].address",
            "frontends[0].port",
            "frontends[0].port_end",
            "frontends[0].scope",
            "frontends[0].policy",
            "frontends[0].source_nat",
            "frontends[0].source_ranges[1]",
            "frontends[1]",
            "frontends[2].node_port.family",
            "frontends[2].node_port.addresses[0]",
            "client_affinity.timeout",
            "client_affinity.prefix_v4",
            "client_affinity.prefix_v6",
            "group",
            "labels",
            "on_no_endpoints",
            "on_no_local_endpoints",
            "drain.timeout",
            "on_contest",
            "health_port",
            "health_check.http.path",
            "health_check.http.host",
            "health_check.http.port",
            "health_check.interval",
            "health_check.timeout",
            "health_check.rise",
            "health_check.fall",
            "engine",
            "idle_timeout",
            "proxy_protocol",
        ]
    );
}

#[test]
fn an_owner_names_every_field_that_is_wrong() {
    let message = v1::Owner {
        name: "o".repeat(300),
        lease: Some(v1::Lease { ttl: None, on_expiry: 9 }),
        network: Some(v1::Network {
            local_sources: vec!["10.0.0.1/8".to_owned()],
            local_source_interfaces: Vec::new(),
            virtual_ranges: vec!["10.96.0.0".to_owned()],
            source_nat_all: false,
        }),
        on_restart: 9,
        restore_max_age: Some(Duration { seconds: -1, nanos: 0 }),
        node_draining: false,
    };
    let problems = refused(|at, p| owner::parse(message, &ops(), &at.field("owner"), p));
    let fields: Vec<_> = problems.iter().map(|p| p.field.strip_prefix("owner.").unwrap()).collect();
    assert_eq!(
        fields,
        [
            "name",
            "lease.ttl",
            "lease.on_expiry",
            "network.local_sources[0]",
            "network.virtual_ranges[0]",
            "on_restart",
            "restore_max_age",
        ]
    );
}

#[test]
fn options_inside_an_apply_must_be_absent() {
    let operation = v1::Operation {
        operation: Some(v1::operation::Operation::DeleteService(v1::DeleteServiceRequest {
            name: "web".to_owned(),
            options: Some(v1::WriteOptions::default()),
            ..Default::default()
        })),
    };
    let empty = v1::Operation { operation: None };
    let mode = vipd_model::command::Mode::Atomic;
    let problems = refused(|_, p| operation::parse_operations(vec![operation, empty], mode, &ops(), p));
    assert_eq!(problems[0].field, "operations[0].delete_service.options");
    assert_eq!(problems[1].field, "operations[1]");
}

#[test]
fn a_note_is_short_and_a_wait_is_known() {
    let options = v1::WriteOptions { wait: 9, session: 0, note: "n".repeat(257) };
    let problems = refused(|at, p| operation::parse_options(Some(options), at, p));
    let fields: Vec<_> = problems.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(fields, ["options.wait", "options.note"]);
}

#[test]
fn a_sync_declares_its_own_owner_only() {
    let settings = v1::Owner { name: "nomad".to_owned(), ..Default::default() };
    let begin = v1::SyncBegin { owner: "k8s".to_owned(), settings: Some(settings), ..Default::default() };
    assert_eq!(refused(|_, p| sync::parse_begin(begin, &ops(), p))[0].field, "begin.settings.name");

    let service = v1::Service { owner: "nomad".to_owned(), name: "web".to_owned(), ..Default::default() };
    let declare = v1::Declare { service: Some(service), endpoints: Vec::new() };
    let refusal = sync::parse_declare(declare, 7, &ops()).unwrap_err();
    assert_eq!((refusal.index, refusal.owner.as_str(), refusal.name.as_str()), (7, "nomad", "web"));
    assert_eq!(refusal.problems[0].field, "declare[7].service.owner");
}
