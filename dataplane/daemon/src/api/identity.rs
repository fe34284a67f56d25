//! Who is at the other end of a connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;

/// A caller, as the transport knows it. Made once for each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The unix socket: the kernel says who connected.
    Process {
        /// Effective user.
        uid: u32,
        /// Effective group.
        gid: u32,
        /// Process; 0 where it lives in a pid namespace that we cannot see.
        pid: i32,
        /// Its command name, if it still ran when it was looked up.
        command: Arc<str>,
    },
    /// Mutual TLS: the names in the certificate.
    Certificate {
        /// DNS names and URIs of the subject alternative name.
        names: Arc<[String]>,
    },
    /// `--insecure-loopback`: anybody on this host.
    Loopback(SocketAddr),
    /// The program that holds the daemon as a library.
    InProcess,
}

impl Peer {
    /// The process at the other end of a unix socket.
    #[must_use]
    pub fn of_unix(stream: &tokio::net::UnixStream) -> Option<Self> {
        let credentials = stream.peer_cred().ok()?;
        let pid = credentials.pid().unwrap_or_default();
        Some(Self::Process { uid: credentials.uid(), gid: credentials.gid(), pid, command: command_of(pid) })
    }

    /// The holder of a certificate that TLS has verified.
    #[must_use]
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Self {
        let names = match webpki::EndEntityCert::try_from(certificate) {
            Ok(certificate) => {
                certificate.valid_uri_names().chain(certificate.valid_dns_names()).map(str::to_owned).collect()
            }
            Err(_) => Arc::from([]),
        };
        Self::Certificate { names }
    }
}

/// The command name of a process, bounded by the kernel to 15 bytes (TASK_COMM_LEN); printable characters only.
fn command_of(pid: i32) -> Arc<str> {
    if pid <= 0 {
        return Arc::from("");
    }
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let text = String::from_utf8_lossy(&comm);
    text.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>().into()
}

/// As the journal shows it.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { uid, pid, command, .. } if command.is_empty() => write!(f, "uid {uid} pid {pid}"),
            Self::Process { uid, pid, command, .. } => write!(f, "uid {uid} pid {pid} ({command})"),
            Self::Certificate { names } => match names.first() {
                Some(name) => f.write_str(name),
                None => f.write_str("certificate without names"),
            },
            Self::Loopback(address) => write!(f, "loopback {address}"),
            Self::InProcess => f.write_str("in process"),
        }
    }
}
