//! Single calls and Apply.

use tonic::Code;
use vipd_proto::v1;
use vipd_proto::v1::problem::Code as Problem;

use crate::rig::{Rig, problems, service, set, upsert, vip};

#[tokio::test]
async fn a_service_is_declared_served_and_shown_with_every_default() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    let change = dataplane.upsert_service(upsert("web", "10.96.0.10")).await.unwrap().into_inner().change.unwrap();
    assert_eq!((change.revision, change.changed, change.in_force), (1, Some(true), Some(true)));
    assert_eq!(change.epoch, "epoch-1");
    let first = dataplane.set_endpoints(set("web", &["10.1.0.2", "10.1.0.3"])).await.unwrap().into_inner();
    let again = dataplane.set_endpoints(set("web", &["10.1.0.3", "10.1.0.2"])).await.unwrap().into_inner();
    assert_eq!(first.change.as_ref().unwrap().revision, 2);
    assert_eq!((again.change.as_ref().unwrap().revision, again.change.unwrap().changed), (2, Some(false)));
    assert!(rig.kernel.dump().contains("10.96.0.10"), "{}", rig.kernel.dump());

    let request = v1::GetServiceRequest { name: "web".to_owned(), ..Default::default() };
    let shown = dataplane.get_service(request.clone()).await.unwrap().into_inner();
    let declared = shown.service.unwrap();
    assert_eq!((declared.owner.as_str(), declared.protocol()), ("default", v1::Protocol::Tcp));
    assert_eq!(shown.endpoints[0].weight, Some(1));
    let status = shown.status.unwrap();
    assert_eq!((status.state(), status.engine()), (v1::status::State::InForce, v1::Engine::Userspace));
    assert_eq!((status.revision, status.programmed_revision, status.usable_endpoints), (2, 2, 2));

    let delete = v1::DeleteServiceRequest { name: "web".to_owned(), ..Default::default() };
    assert_eq!(dataplane.delete_service(delete.clone()).await.unwrap().into_inner().existed, Some(true));
    assert_eq!(dataplane.delete_service(delete).await.unwrap().into_inner().existed, Some(false));
    let status = dataplane.get_service(request).await.unwrap_err();
    assert_eq!((status.code(), problems(&status)), (Code::NotFound, vec![("name".to_owned(), Problem::NoSuchService)]));
}

#[tokio::test]
async fn a_refusal_changes_nothing_and_is_in_the_journal() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    let mut bad = upsert("web", "::ffff:10.0.0.1");
    bad.service.as_mut().unwrap().frontends.push(vip("10.0.0.1", 70_000));
    let status = dataplane.upsert_service(bad).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let fields: Vec<_> = problems(&status).into_iter().map(|(field, _)| field).collect();
    assert_eq!(fields, ["service.frontends[0].address", "service.frontends[1].port"]);

    let own = dataplane.upsert_service(upsert("web", "192.0.2.7")).await.unwrap_err();
    assert_eq!(own.code(), Code::PermissionDenied);
    assert_eq!(problems(&own), [("service.frontends[0].address".to_owned(), Problem::NotAllowed)]);
    assert_eq!(rig.control.read(|core| core.desired.len()), 0);

    let events = rig.node().await.events(v1::EventsRequest::default()).await.unwrap().into_inner();
    let events: Vec<_> = tokio_stream::StreamExt::collect::<Vec<_>>(events).await;
    let refused = events.iter().flatten().filter(|event| event.kind() == v1::events_response::Kind::RefusedCall);
    let actors: Vec<_> = refused.map(|event| event.actor.as_str()).collect();
    assert_eq!(actors, ["in process", "in process"]);
}

#[tokio::test]
async fn each_tells_every_refusal_of_its_own_operation() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    let operation = |operation| v1::Operation { operation: Some(operation) };
    use v1::operation::Operation::{SetEndpoints, UpsertService};
    let operations = vec![
        operation(UpsertService(upsert("bad", "ten"))),
        operation(UpsertService(upsert("own", "192.0.2.7"))),
        operation(SetEndpoints(set("missing", &["10.1.0.2"]))),
        operation(UpsertService(upsert("web", "10.96.0.10"))),
    ];
    let each = v1::ApplyRequest { operations, mode: v1::apply_request::Mode::Each.into(), options: None };
    let reply = dataplane.apply(each.clone()).await.unwrap().into_inner();
    let told: Vec<_> = reply
        .refused
        .iter()
        .map(|refused| (refused.index, refused.name.as_str(), refused.problems[0].field.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (0, "bad", "operations[0].upsert_service.service.frontends[0].address"),
            (1, "own", "operations[1].upsert_service.service.frontends[0].address"),
            (2, "missing", "operations[2].set_endpoints.name"),
        ]
    );
    assert_eq!(rig.control.read(|core| core.desired.len()), 1);

    let atomic = v1::ApplyRequest { mode: v1::apply_request::Mode::Atomic.into(), ..each };
    assert_eq!(dataplane.apply(atomic).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn pages_end_at_a_mebibyte_and_miss_nothing() {
    let rig = Rig::new().await;
    let mut dataplane = rig.dataplane().await;
    let endpoints: Vec<String> = (0..2_000).map(|n| format!("10.1.{}.{}", n / 250, n % 250 + 1)).collect();
    let endpoints: Vec<_> = endpoints.iter().map(String::as_str).collect();
    for n in 0..40 {
        let name = format!("web-{n:02}");
        dataplane.upsert_service(upsert(&name, &format!("10.96.0.{}", n + 1))).await.unwrap();
        dataplane.set_endpoints(set(&name, &endpoints)).await.unwrap();
    }
    let mut names = Vec::new();
    let mut request = v1::ListServicesRequest { page_size: 1_000, ..Default::default() };
    let mut pages = 0;
    loop {
        let page = dataplane.list_services(request.clone()).await.unwrap().into_inner();
        assert!(prost::Message::encoded_len(&page) < 1_200_000);
        pages += 1;
        names.extend(page.services.into_iter().map(|state| state.service.unwrap().name));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert!(pages > 1, "{pages}");
    assert_eq!(names, (0..40).map(|n| format!("web-{n:02}")).collect::<Vec<_>>());

    let by_frontend = v1::ListServicesRequest { frontend: "10.96.0.7:80".to_owned(), ..Default::default() };
    let found = dataplane.list_services(by_frontend).await.unwrap().into_inner().services;
    assert_eq!(found[0].service.as_ref().unwrap().name, "web-06");
    let bad = v1::ListServicesRequest { page_token: "x".to_owned(), ..Default::default() };
    assert_eq!(problems(&dataplane.list_services(bad).await.unwrap_err())[0].0, "page_token");
}

#[tokio::test]
async fn an_entry_of_access_holds_for_its_caller_only() {
    let uid = nix::unistd::geteuid();
    let config =
        format!("[[access]]\nwho = 'uid:{uid}'\nowners = ['k8s']\nread = []\ndefault-owner = 'k8s'\noperate = false");
    let rig = Rig::with(&config).await;
    let mut inside = rig.dataplane().await;
    inside.upsert_service(upsert("web", "10.96.0.10")).await.unwrap();

    let endpoint = tonic::transport::Endpoint::try_from(format!("unix:{}", rig.socket.display())).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let mut outside = v1::dataplane_client::DataplaneClient::new(channel.clone());
    let change = outside.upsert_service(upsert("mine", "10.96.0.11")).await.unwrap().into_inner().change.unwrap();
    assert_eq!(change.in_force, Some(true));
    let mut foreign = upsert("web", "10.96.0.12");
    foreign.service.as_mut().unwrap().owner = "default".to_owned();
    let status = outside.upsert_service(foreign).await.unwrap_err();
    assert_eq!((status.code(), problems(&status)[0].0.as_str()), (Code::PermissionDenied, "service.owner"));
    let seen = outside.list_services(v1::ListServicesRequest::default()).await.unwrap().into_inner().services;
    let owners: Vec<_> = seen.into_iter().map(|state| state.service.unwrap().owner).collect();
    assert_eq!(owners, ["k8s"]);
    let mut node = v1::node_client::NodeClient::new(channel);
    assert_eq!(node.release_hold(v1::ReleaseHoldRequest::default()).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn reflection_and_health_answer() {
    use tonic_health::pb::health_client::HealthClient;
    let rig = Rig::new().await;
    rig.dataplane()
        .await
        .upsert_service(v1::UpsertServiceRequest { service: Some(service("web", "10.96.0.10")), ..Default::default() })
        .await
        .unwrap();
    let mut health = HealthClient::new(rig.channel().await);
    for service in ["", "vipd.v1.Dataplane", "vipd.v1.Node"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
        let mut status = health.check(request.clone()).await;
        for _ in 0..50 {
            if status.as_ref().is_ok_and(|status| status.get_ref().status == 1) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            status = health.check(request.clone()).await;
        }
        assert_eq!(status.unwrap().into_inner().status, 1, "{service}");
    }
    let mut reflection =
        tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient::new(rig.channel().await);
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    for symbol in ["vipd.v1.Problem", "google.rpc.BadRequest", "grpc.health.v1.Health"] {
        let request = tonic_reflection::pb::v1::ServerReflectionRequest {
            message_request: Some(MessageRequest::FileContainingSymbol(symbol.to_owned())),
            ..Default::default()
        };
        let mut answers = reflection.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
        use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
        assert!(matches!(answer, MessageResponse::FileDescriptorResponse(_)), "{symbol}: {answer:?}");
    }
}
