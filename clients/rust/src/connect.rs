//! A connection, and the generated clients on it with the sizes of the API.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};
use vipd_proto::v1::dataplane_client::DataplaneClient;
use vipd_proto::v1::node_client::NodeClient;

use crate::error::innermost;
use crate::target::{Target, Tls};

/// The authority of every call over a unix socket. Many servers, tonic's among them, reset a stream whose authority is
/// a path.
const AUTHORITY: &str = "http://localhost";
/// Largest request: `GetInfo.limits.request_bytes` of a vipd that is not configured otherwise, 16 MiB.
const REQUEST_BYTES: usize = 16 << 20;
/// Nothing that vipd sends is larger than 3 MiB; gRPC's default.
const REPLY_BYTES: usize = 4 << 20;
/// How long connecting may take. On one host it takes no time; over a network a second is slow.
const CONNECT: Duration = Duration::from_secs(5);
/// A peer that has gone without a word is noticed by pings of this interval; a `Watch` may be silent for 30 s.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No socket there.
    #[error(
        "there is no socket {}: is vipd running? (`systemctl status vipd`; a vipd without root listens elsewhere)",
        .0.display()
    )]
    NoSocket(PathBuf),
    /// A socket that nobody serves any more.
    #[error("nobody listens on {}: vipd has ended (`systemctl status vipd`, `journalctl -u vipd`)", .0.display())]
    Refused(PathBuf),
    /// The socket's mode and group.
    #[error("{} is not open to this user: join the socket's group, or use sudo", .0.display())]
    NotAllowed(PathBuf),
    /// A certificate or key that is none.
    #[error("the certificates for {address} cannot be used: {source}")]
    Certificates {
        /// Where to.
        address: String,
        /// What TLS says.
        source: tonic::transport::Error,
    },
    /// What has no name of its own here.
    #[error("cannot connect to {target}: {}", innermost(.source))]
    Other {
        /// Where to.
        target: Target,
        /// What the transport says.
        source: tonic::transport::Error,
    },
}

/// A connection to one vipd. Cheap to clone; calls of all clones share the connection and run side by side.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
}

impl Client {
    /// Connects. Afterwards the connection is made anew when it breaks; a call that was under way then fails.
    ///
    /// # Errors
    /// When nobody answers there.
    pub async fn connect(target: &Target) -> Result<Self, ConnectError> {
        let channel = endpoint(target)?.connect().await.map_err(|source| unreachable(target, source))?;
        Ok(Self { channel })
    }

    /// Connects when the first call is made.
    ///
    /// # Errors
    /// When the certificates cannot be used.
    pub fn connect_lazy(target: &Target) -> Result<Self, ConnectError> {
        Ok(Self { channel: endpoint(target)?.connect_lazy() })
    }

    /// On a connection that was made elsewhere, such as the in-process channel of a program that holds the daemon as a
    /// library.
    #[must_use]
    pub fn on(channel: Channel) -> Self {
        Self { channel }
    }

    /// `vipd.v1.Dataplane`: declare what should be true on this node.
    #[must_use]
    pub fn dataplane(&self) -> DataplaneClient<Channel> {
        DataplaneClient::new(self.channel.clone())
            .max_encoding_message_size(REQUEST_BYTES)
            .max_decoding_message_size(REPLY_BYTES)
    }

    /// `vipd.v1.Node`: inspect and operate the node.
    #[must_use]
    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
            .max_encoding_message_size(REQUEST_BYTES)
            .max_decoding_message_size(REPLY_BYTES)
    }
}

fn endpoint(target: &Target) -> Result<Endpoint, ConnectError> {
    let other = |source| ConnectError::Other { target: target.clone(), source };
    let endpoint = match target {
        Target::Unix(path) => Endpoint::from_shared(format!("unix://{}", path.display()))
            .map_err(other)?
            .origin(Uri::from_static(AUTHORITY)),
        Target::Loopback(address) => Endpoint::from_shared(format!("http://{address}")).map_err(other)?,
        Target::Tls { address, tls } => Endpoint::from_shared(format!("https://{address}"))
            .map_err(other)?
            .tls_config(config(tls))
            .map_err(|source| ConnectError::Certificates { address: address.clone(), source })?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE),
    };
    Ok(endpoint.connect_timeout(CONNECT))
}

fn config(tls: &Tls) -> ClientTlsConfig {
    ClientTlsConfig::new()
        .identity(Identity::from_pem(&tls.certificate, &tls.key))
        .ca_certificate(Certificate::from_pem(&tls.ca))
}

fn unreachable(target: &Target, source: tonic::transport::Error) -> ConnectError {
    let mut cause = source.source();
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        match (target, kind) {
            (Target::Unix(path), Some(io::ErrorKind::NotFound)) => return ConnectError::NoSocket(path.clone()),
            (Target::Unix(path), Some(io::ErrorKind::ConnectionRefused)) => return ConnectError::Refused(path.clone()),
            (Target::Unix(path), Some(io::ErrorKind::PermissionDenied)) => {
                return ConnectError::NotAllowed(path.clone());
            }
            _ => cause = error.source(),
        }
    }
    ConnectError::Other { target: target.clone(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    async fn failure(target: Target) -> ConnectError {
        Client::connect(&target).await.expect_err("nobody is there")
    }

    #[tokio::test]
    async fn each_way_of_not_reaching_vipd_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing.sock");
        assert!(matches!(failure(Target::Unix(missing)).await, ConnectError::NoSocket(_)));

        let left_over = dir.path().join("left.sock");
        drop(UnixListener::bind(&left_over).unwrap());
        assert!(matches!(failure(Target::Unix(left_over)).await, ConnectError::Refused(_)));

        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = failure(Target::Loopback(unused)).await.to_string();
        assert!(error.contains("refused") && error.contains("http://127.0.0.1:"), "{error}");
    }

    #[tokio::test]
    async fn certificates_that_are_none_are_named_as_the_cause() {
        let tls = Tls { certificate: b"x".to_vec(), key: b"y".to_vec(), ca: b"z".to_vec() };
        let error = failure(Target::Tls { address: "localhost:1".to_owned(), tls }).await;
        assert!(matches!(error, ConnectError::Certificates { .. }), "{error}");
    }
}
