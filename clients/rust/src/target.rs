//! Which vipd: a unix socket, or an address with mutual TLS.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::paths::default_socket;

/// Where a vipd is to be found. The default is [`default_socket`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A unix socket: the kernel tells vipd who calls.
    Unix(PathBuf),
    /// `--insecure-loopback`: no identity, no encryption, this host only.
    Loopback(SocketAddr),
    /// `--listen` with mutual TLS.
    Tls {
        /// `host:port`. The host is what the certificate of vipd must be for.
        address: String,
        /// Who we are, and whom we trust.
        tls: Tls,
    },
}

impl Default for Target {
    fn default() -> Self {
        Self::Unix(default_socket())
    }
}

/// Certificates in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// Our certificate; a name in it is our identity to vipd.
    pub certificate: Vec<u8>,
    /// Its key.
    pub key: Vec<u8>,
    /// Who signed vipd's certificate.
    pub ca: Vec<u8>,
}

impl Tls {
    /// Reads the three from files.
    ///
    /// # Errors
    /// The first file that cannot be read.
    pub fn from_files(certificate: &Path, key: &Path, ca: &Path) -> Result<Self, TargetError> {
        let read = |path: &Path| fs::read(path).map_err(|source| TargetError::Unreadable { path: path.into(), source });
        Ok(Self { certificate: read(certificate)?, key: read(key)?, ca: read(ca)? })
    }
}

/// Keys do not belong into logs.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Why something names no vipd.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Not one of the forms.
    #[error("{0:?} names no vipd; write /path, unix:/path, or http://127.0.0.1:port")]
    Form(String),
    /// An address that is not this host needs certificates.
    #[error("{0} needs certificates on both sides: use https with a certificate, its key and the CA of vipd")]
    NoTls(String),
    /// A certificate or key.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// `/path`, `unix:/path`, `unix:///path`, or `http://127.0.0.1:port`. `https` has no short form: see [`Target::Tls`].
impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if text.starts_with("https:") {
            return Err(TargetError::NoTls(text.to_owned()));
        }
        if let Some(rest) = text.strip_prefix("http://") {
            let address: SocketAddr = rest.parse().map_err(|_| TargetError::Form(text.to_owned()))?;
            let here = address.ip().is_loopback();
            return if here { Ok(Self::Loopback(address)) } else { Err(TargetError::NoTls(text.to_owned())) };
        }
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        let names_a_path = path.starts_with('/') && !path.starts_with("//");
        if names_a_path { Ok(Self::Unix(path.into())) } else { Err(TargetError::Form(text.to_owned())) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Loopback(address) => write!(f, "http://{address}"),
            Self::Tls { address, .. } => write!(f, "https://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_ways_to_write_a_path() {
        for text in ["/run/vipd/vipd.sock", "unix:/run/vipd/vipd.sock", "unix:///run/vipd/vipd.sock"] {
            assert_eq!(text.parse::<Target>().unwrap(), Target::Unix("/run/vipd/vipd.sock".into()), "{text}");
        }
    }

    #[test]
    fn plain_tcp_is_for_this_host() {
        assert_eq!("http://[::1]:9463".parse::<Target>().unwrap().to_string(), "http://[::1]:9463");
        assert!(matches!("http://10.0.0.1:9463".parse::<Target>(), Err(TargetError::NoTls(_))));
        assert!(matches!("https://node:9463".parse::<Target>(), Err(TargetError::NoTls(_))));
    }

    #[test]
    fn what_names_nothing_says_what_to_write() {
        for text in ["", "vipd.sock", "unix:vipd.sock", "node:9463", "http://node:1"] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("unix:/path"), "{text}: {error}");
        }
    }
}
