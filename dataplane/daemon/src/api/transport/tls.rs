//! Mutual TLS: our certificate, and the authorities whose clients are let in. The files are read again when they change,
//! so that certificates can be renewed without a restart.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

/// From one look at the files to the next.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The three files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Our chain.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Authorities of clients.
    pub client_ca: PathBuf,
}

/// Why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", .path.display())]
pub struct TlsError {
    /// The file at fault.
    pub path: PathBuf,
    /// In words.
    pub message: String,
}

impl TlsFiles {
    fn load(&self) -> Result<ServerConfig, TlsError> {
        let error = |path: &Path, message: String| TlsError { path: path.to_owned(), message };
        let chain = certificates(&self.cert)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|why| error(&self.key, format!("holds no private key in PEM: {why}")))?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.client_ca)? {
            roots.add(certificate).map_err(|why| error(&self.client_ca, format!("an authority is unusable: {why}")))?;
        }
        let provider = Arc::new(crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|why| error(&self.client_ca, format!("no client could be verified: {why}")))?;
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|why| error(&self.cert, why.to_string()))?;
        let mut config = builder
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|why| error(&self.cert, format!("does not go with {}: {why}", self.key.display())))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    fn modified(&self) -> [Option<SystemTime>; 3] {
        [&self.cert, &self.key, &self.client_ca].map(|path| path.metadata().and_then(|m| m.modified()).ok())
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |message: String| TlsError { path: path.to_owned(), message };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|why| error(format!("cannot be read as PEM: {why}")))?;
    if certificates.is_empty() {
        return Err(error("holds no certificate in PEM".to_owned()));
    }
    Ok(certificates)
}

/// Takes TLS handshakes.
pub struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    looked: Mutex<(Instant, [Option<SystemTime>; 3])>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Which one is unusable, and why.
    pub fn new(files: TlsFiles) -> Result<Self, TlsError> {
        let modified = files.modified();
        let config = files.load()?;
        Ok(Self { files, config: ArcSwap::from_pointee(config), looked: Mutex::new((Instant::now(), modified)) })
    }

    /// What the next handshake uses.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        self.look();
        TlsAcceptor::from(self.config.load_full())
    }

    /// Takes changed files in; while they are unusable the old ones hold.
    fn look(&self) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.0.elapsed() < LOOK_EVERY {
            return;
        }
        looked.0 = Instant::now();
        let modified = self.files.modified();
        if modified == looked.1 {
            return;
        }
        looked.1 = modified;
        match self.files.load() {
            Ok(config) => {
                self.config.store(Arc::new(config));
                tracing::info!("TLS files have changed and were read again");
            }
            Err(error) => tracing::warn!("TLS files have changed and are unusable; the old ones hold: {error}"),
        }
    }
}

/// The client's own certificate after a handshake.
///
/// # Errors
/// If there is none, which the verifier does not let happen.
pub fn client_certificate<T>(stream: &tokio_rustls::server::TlsStream<T>) -> io::Result<CertificateDer<'_>> {
    let chain = stream.get_ref().1.peer_certificates();
    chain
        .and_then(|chain| chain.first())
        .map(|certificate| CertificateDer::from(certificate.as_ref()))
        .ok_or_else(|| io::Error::other("the client sent no certificate"))
}
