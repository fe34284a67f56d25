//! Conversions: what goes out comes back (by property), and every refusal has its path and its advice.

mod refusals;
mod strategies;

use proptest::prelude::*;
use vipd_model::{OwnerName, Problem};
use vipd_proto::v1;

use super::path::{Path, Problems, converted};
use super::{endpoint, operation, owner, scheduler, service};

fn ops() -> OwnerName {
    OwnerName::new("ops").unwrap()
}

/// The problems of a conversion that must not succeed.
fn refused<T: std::fmt::Debug>(convert: impl FnOnce(&Path<'_>, &mut Problems) -> Option<T>) -> Vec<Problem> {
    converted(convert).unwrap_err().problems
}

proptest! {
    #[test]
    fn a_definition_comes_back(definition in strategies::definition()) {
        let message = service::definition_message(&definition);
        prop_assert_eq!(converted(|at, p| service::parse_definition(message, at, p)), Ok(definition));
    }

    #[test]
    fn a_service_is_no_larger_than_the_model_says(
        definition in strategies::definition(),
        endpoints in prop::collection::vec(strategies::endpoint(), 0..40),
        scheduler in strategies::scheduler(),
        name in "[a-z]{253}",
    ) {
        let service = vipd_model::Service {
            key: vipd_model::ServiceKey::new(&name, &name).unwrap(),
            definition: definition.into(),
            scheduler,
            endpoints: endpoints.into(),
            leaving: [].into(),
            revisions: vipd_model::Revisions::default(),
            waiting: Vec::new(),
        };
        let message = v1::ServiceState {
            service: Some(service::message(&service)),
            endpoints: service.endpoints.iter().map(endpoint::message).collect(),
            status: None,
        };
        prop_assert!(prost::Message::encoded_len(&message) <= service.size_bound());
    }

    #[test]
    fn an_endpoint_comes_back(endpoint in strategies::endpoint()) {
        let message = endpoint::message(&endpoint);
        prop_assert_eq!(converted(|at, p| endpoint::parse(&message, at, p)), Ok(endpoint));
    }

    #[test]
    fn an_owner_comes_back(owner in strategies::owner()) {
        let message = owner::message(&owner);
        prop_assert_eq!(converted(|at, p| owner::parse(message, &ops(), at, p)), Ok(owner));
    }

    #[test]
    fn a_scheduler_comes_back(scheduler in strategies::scheduler()) {
        let message = scheduler::message(&scheduler);
        prop_assert_eq!(converted(|at, p| scheduler::parse(&message, at, p)), Ok(scheduler));
    }

    /// Whatever bytes a caller sends: an operation or problems, no panic; and every problem is short.
    #[test]
    fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = <v1::UpsertServiceRequest as prost::Message>::decode(bytes.as_slice())
            && let Err(rejection) = converted(|at, p| operation::parse_upsert(message, &ops(), at, p))
        {
            prop_assert!(!rejection.problems.is_empty());
            prop_assert!(rejection.problems.iter().all(|p| p.message.len() < 400));
        }
    }
}

#[test]
fn the_shortest_service_gets_every_default() {
    let message = v1::Service {
        name: "web".to_owned(),
        frontends: vec![v1::Frontend {
            at: Some(v1::frontend::At::Address("10.96.0.10".to_owned())),
            port: 80,
            ..Default::default()
        }],
        client_affinity: Some(v1::ClientAffinity::default()),
        ..Default::default()
    };
    let declared = converted(|at, p| service::parse(message, &ops(), at, p)).unwrap();
    assert_eq!(declared.key.to_string(), "ops/web");
    let reply = service::definition_message(&declared.definition);
    assert_eq!(reply.protocol(), v1::Protocol::Tcp);
    assert_eq!(reply.on_no_endpoints(), v1::service::Refusal::Reject);
    assert_eq!(reply.on_no_local_endpoints(), v1::service::Refusal::Drop);
    assert_eq!(reply.on_contest(), v1::service::Contest::Refuse);
    assert_eq!(reply.frontends[0].scope(), v1::frontend::Scope::Internal);
    assert_eq!(reply.frontends[0].policy(), v1::frontend::Policy::All);
    assert_eq!(reply.frontends[0].source_nat(), v1::frontend::SourceNat::Auto);
    let affinity = reply.client_affinity.unwrap();
    assert_eq!(affinity.timeout.unwrap().seconds, 10_800);
    assert_eq!((affinity.prefix_v4, affinity.prefix_v6), (Some(32), Some(128)));
}

#[test]
fn a_node_port_takes_the_families_of_the_services_addresses() {
    let node_port = |family| v1::Frontend {
        at: Some(v1::frontend::At::NodePort(v1::NodePort { family, addresses: Vec::new() })),
        port: 30080,
        ..Default::default()
    };
    let vip = |address: &str| v1::Frontend {
        at: Some(v1::frontend::At::Address(address.to_owned())),
        port: 80,
        ..Default::default()
    };
    let families = |frontends: Vec<v1::Frontend>| {
        let message = v1::Service { frontends, ..Default::default() };
        let definition = converted(|at, p| service::parse_definition(message, at, p)).unwrap();
        let shown = service::definition_message(&definition);
        let Some(v1::frontend::At::NodePort(node_port)) = &shown.frontends[0].at else { panic!("a node port") };
        assert_eq!(shown.frontends[0].scope(), v1::frontend::Scope::External);
        node_port.family()
    };
    assert_eq!(families(vec![node_port(0)]), v1::node_port::Family::Both);
    assert_eq!(families(vec![node_port(0), vip("10.0.0.1")]), v1::node_port::Family::Ipv4);
    assert_eq!(families(vec![node_port(0), vip("fd00::1")]), v1::node_port::Family::Ipv6);
    assert_eq!(families(vec![node_port(0), vip("fd00::1"), vip("10.0.0.1")]), v1::node_port::Family::Both);
    assert_eq!(families(vec![node_port(1), vip("fd00::1")]), v1::node_port::Family::Ipv4);
}

#[test]
fn each_keeps_what_can_be_converted_with_its_place() {
    let set = |address: &str| v1::Operation {
        operation: Some(v1::operation::Operation::SetEndpoints(v1::SetEndpointsRequest {
            name: "web".to_owned(),
            endpoints: vec![v1::Endpoint { address: address.to_owned(), port: 1, ..Default::default() }],
            ..Default::default()
        })),
    };
    let messages = vec![set("10.0.0.1"), set("ten"), set("10.0.0.2")];
    let mode = vipd_model::command::Mode::Each;
    let operations = converted(|_, p| operation::parse_operations(messages.clone(), mode, &ops(), p)).unwrap();
    assert_eq!(operations.indices, [0, 2]);
    assert_eq!(operations.refused[0].index, 1);
    assert_eq!((operations.refused[0].owner.as_str(), operations.refused[0].name.as_str()), ("ops", "web"));
    let field = "operations[1].set_endpoints.endpoints[0].address";
    assert_eq!(operations.refused[0].problems[0].field, field);

    let mode = vipd_model::command::Mode::Atomic;
    let problems = refused(|_, p| operation::parse_operations(messages, mode, &ops(), p));
    assert_eq!(problems[0].field, field);
}
