//! Mutual TLS: who gets in, and as whom. The certificates are made by `tls/make.sh`.

use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use vipd_proto::v1::dataplane_client::DataplaneClient;

use crate::rig::{Rig, upsert};

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/api/tls");

fn file(name: &str) -> String {
    std::fs::read_to_string(format!("{FILES}/{name}")).unwrap()
}

async fn rig() -> Rig {
    Rig::with(&format!(
        r#"
        listen = "127.0.0.1:0"
        tls-cert = "{FILES}/server.crt"
        tls-key = "{FILES}/server.key"
        tls-client-ca = "{FILES}/ca.crt"
        [[access]]
        who = "san:spiffe://example.org/vipd-k8s"
        owners = ["k8s"]
        default-owner = "k8s"
        "#
    ))
    .await
}

async fn connect(rig: &Rig, identity: Option<&str>) -> Result<DataplaneClient<Channel>, tonic::transport::Error> {
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(file("ca.crt"))).domain_name("localhost");
    if let Some(name) = identity {
        tls = tls.identity(Identity::from_pem(file(&format!("{name}.crt")), file(&format!("{name}.key"))));
    }
    let endpoint = Endpoint::try_from(format!("https://{}", rig.tls.unwrap()))?.tls_config(tls)?;
    Ok(DataplaneClient::new(endpoint.connect().await?))
}

#[tokio::test]
async fn the_certificates_name_is_the_caller() {
    let rig = rig().await;
    let mut client = connect(&rig, Some("client")).await.unwrap();
    client.upsert_service(upsert("web", "10.96.0.10")).await.unwrap();
    let (owner, actor) = rig.control.read(|core| {
        let owner = core.desired.services().next().unwrap().key.owner.to_string();
        (owner, core.journal.after(0, 1).1[0].actor.clone())
    });
    assert_eq!((owner.as_str(), actor.as_str()), ("k8s", "spiffe://example.org/vipd-k8s"));

    let mut other = connect(&rig, Some("other")).await.unwrap();
    let status = other.upsert_service(upsert("web", "10.96.0.10")).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("other.example.org"), "{}", status.message());
}

#[tokio::test]
async fn nobody_else_gets_in() {
    let rig = rig().await;
    for identity in [None, Some("stranger")] {
        // With TLS 1.3 the client may believe itself connected until it hears of the refusal.
        let refused = match connect(&rig, identity).await {
            Err(_) => true,
            Ok(mut client) => client.upsert_service(upsert("web", "10.96.0.10")).await.is_err(),
        };
        assert!(refused, "{identity:?}");
    }
    let plain = Endpoint::try_from(format!("http://{}", rig.tls.unwrap())).unwrap();
    let refused = match plain.connect().await {
        Err(_) => true,
        Ok(channel) => DataplaneClient::new(channel).upsert_service(upsert("web", "10.96.0.10")).await.is_err(),
    };
    assert!(refused, "without TLS");
    assert_eq!(rig.control.read(|core| core.desired.len()), 0);
}
