//! Listening, and taking connections in: each becomes a [`Connection`] in one queue, from which the gRPC server reads.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use super::connection::{Connection, Seats};
use super::tls::{self, Tls, TlsError};
use crate::api::identity::Peer;

/// A TLS handshake that is not done by then is given up.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Pause after an accept that failed, as when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes under way between a program and the daemon that it holds.
const IN_PROCESS_BYTES: usize = 64 * 1024;
/// Connections waiting for the server to take them.
const QUEUE: usize = 64;

/// Why nobody can get in.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else listens there.
    #[error("{} is taken: a process listens on it already; stop it, or choose another --socket", .0.display())]
    Taken(PathBuf),
    /// A file stands where the socket should.
    #[error("{} is there and is no socket; remove it, or choose another --socket", .0.display())]
    NoSocket(PathBuf),
    /// The system refuses.
    #[error("cannot listen on {place}: {error}")]
    System {
        /// The path or address.
        place: String,
        /// Why.
        error: io::Error,
    },
    /// The group that should own the socket.
    #[error("socket-group: there is no group {0:?} on this host; create it, or give its number")]
    NoGroup(String),
    /// The TLS files.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Where connections are queued.
#[derive(Clone)]
pub struct Door {
    queue: mpsc::Sender<Connection>,
    seats: Seats,
}

/// The other end of the queue.
pub type Incoming = mpsc::Receiver<Connection>;

/// A queue for connections.
#[must_use]
pub fn door(seats: Seats) -> (Door, Incoming) {
    let (queue, incoming) = mpsc::channel(QUEUE);
    (Door { queue, seats }, incoming)
}

/// The unix socket's file; it goes when this is dropped, if it is still the same one.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode) {
            // If it stays, the next start replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Door {
    /// A channel that leaves the process never, for whoever holds the daemon as a library.
    ///
    /// # Errors
    /// If the daemon has stopped.
    pub async fn channel(&self) -> Result<Channel, tonic::transport::Error> {
        let queue = self.queue.clone();
        let connect = tower::service_fn(move |_: http::Uri| {
            let queue = queue.clone();
            async move {
                let (ours, theirs) = tokio::io::duplex(IN_PROCESS_BYTES);
                let sent = queue.send(Connection::in_process(theirs)).await;
                sent.map(|()| TokioIo::new(ours)).map_err(|_| io::Error::other("the daemon has stopped"))
            }
        });
        Endpoint::from_static("http://localhost").connect_with_connector(connect).await
    }

    /// Listens on a unix socket. A stale file of a daemon that was killed is replaced, one that somebody listens on is
    /// not.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn unix(&self, path: &Path, mode: u32, group: Option<&str>) -> Result<SocketFile, ListenError> {
        let error = |error| ListenError::System { place: path.display().to_string(), error };
        check_stale(path)?;
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(error)?;
        }
        // Made under another name and moved: nobody can connect before the permissions are right.
        let unfinished = path.with_extension(format!("new-{}", std::process::id()));
        let _ = std::fs::remove_file(&unfinished);
        let listener = UnixListener::bind(&unfinished).map_err(error)?;
        let finish = || {
            if let Some(group) = group {
                let gid = group_id(group).ok_or_else(|| ListenError::NoGroup(group.to_owned()))?;
                std::os::unix::fs::chown(&unfinished, None, Some(gid)).map_err(error)?;
            }
            std::fs::set_permissions(&unfinished, std::fs::Permissions::from_mode(mode)).map_err(error)?;
            let inode = std::fs::symlink_metadata(&unfinished).map_err(error)?.ino();
            std::fs::rename(&unfinished, path).map_err(error)?;
            Ok(SocketFile { path: path.to_owned(), inode })
        };
        let file = finish().inspect_err(|_: &ListenError| drop(std::fs::remove_file(&unfinished)))?;
        tokio::spawn(self.clone().accept_unix(listener));
        Ok(file)
    }

    /// Listens on TCP: with TLS, or for loopback without. Returns the address, which has a port even if 0 was asked for.
    ///
    /// # Errors
    /// Why it cannot.
    pub async fn tcp(&self, address: SocketAddr, tls: Option<Tls>) -> Result<SocketAddr, ListenError> {
        let error = |error| ListenError::System { place: address.to_string(), error };
        let listener = TcpListener::bind(address).await.map_err(error)?;
        let address = listener.local_addr().map_err(error)?;
        tokio::spawn(self.clone().accept_tcp(listener, tls.map(Arc::new)));
        Ok(address)
    }

    async fn accept_unix(self, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let Some(seat) = self.seats.take() else { continue };
                    // Without credentials it is gone already.
                    let Some(peer) = Peer::of_unix(&stream) else { continue };
                    let Some(seat) = seat.of(&peer) else { continue };
                    if self.queue.send(Connection::unix(stream, peer, seat)).await.is_err() {
                        return;
                    }
                }
                Err(error) => pause("unix socket", &error).await,
            }
            if self.queue.is_closed() {
                return;
            }
        }
    }

    async fn accept_tcp(self, listener: TcpListener, tls: Option<Arc<Tls>>) {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    let Some(seat) = self.seats.take() else { continue };
                    // Calls are short: answers must not wait for more bytes.
                    let _ = stream.set_nodelay(true);
                    let queue = self.queue.clone();
                    match &tls {
                        None => {
                            let Some(seat) = seat.of(&Peer::Loopback(from)) else { continue };
                            if queue.send(Connection::tcp(stream, Peer::Loopback(from), seat)).await.is_err() {
                                return;
                            }
                        }
                        // A slow handshake holds its seat, not the others.
                        Some(tls) => drop(tokio::spawn(shake_hands(queue, stream, from, Arc::clone(tls), seat))),
                    }
                }
                Err(error) => pause("TCP", &error).await,
            }
            if self.queue.is_closed() {
                return;
            }
        }
    }
}

async fn shake_hands(
    queue: mpsc::Sender<Connection>,
    stream: tokio::net::TcpStream,
    from: SocketAddr,
    tls: Arc<Tls>,
    seat: super::connection::Seat,
) {
    let stream = match timeout(HANDSHAKE, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::info!("TLS with {from} failed: {error}"),
        Err(_) => return tracing::info!("TLS with {from} was not done after {} s", HANDSHAKE.as_secs()),
    };
    let peer = match tls::client_certificate(&stream) {
        Ok(certificate) => Peer::of_certificate(&certificate),
        Err(error) => return tracing::info!("TLS with {from}: {error}"),
    };
    let Some(seat) = seat.of(&peer) else { return };
    // The server is gone if this fails.
    let _ = queue.send(Connection::tls(stream, peer, seat)).await;
}

async fn pause(place: &str, error: &io::Error) {
    tracing::warn!("cannot take a connection on {place}: {error}");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Removes nothing; says whether what stands there may be replaced.
fn check_stale(path: &Path) -> Result<(), ListenError> {
    let error = |error| ListenError::System { place: path.display().to_string(), error };
    match std::fs::symlink_metadata(path) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(other) => return Err(error(other)),
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(ListenError::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(ListenError::Taken(path.to_owned())),
        Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(other) => Err(error(other)),
    }
}

fn group_id(group: &str) -> Option<u32> {
    match group.parse() {
        Ok(number) => Some(number),
        Err(_) => nix::unistd::Group::from_name(group).ok().flatten().map(|group| group.gid.as_raw()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/vipd.sock");
        let (door, mut incoming) = door(Seats::new(1));
        let file = door.unix(&path, 0o660, None).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        assert!(matches!(door.unix(&path, 0o660, None), Err(ListenError::Taken(_))));
        let _client = tokio::net::UnixStream::connect(&path).await.unwrap();
        assert!(incoming.recv().await.is_some());
        drop(file);
        assert!(!path.exists());

        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "as kill -9 leaves it");
        let _file = door.unix(&path, 0o600, None).unwrap();
        std::fs::write(directory.path().join("file"), "x").unwrap();
        let why = door.unix(&directory.path().join("file"), 0o660, None).unwrap_err();
        assert!(matches!(why, ListenError::NoSocket(_)), "{why}");
    }

    #[tokio::test]
    async fn beyond_the_seats_connections_are_closed_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vipd.sock");
        let seats = Seats::new(2);
        let (door, mut incoming) = door(seats.clone());
        let _file = door.unix(&path, 0o660, None).unwrap();
        let connect = || tokio::net::UnixStream::connect(&path);
        let _clients = (connect().await.unwrap(), connect().await.unwrap());
        let first = incoming.recv().await.unwrap();
        let _second = incoming.recv().await.unwrap();
        let mut third = connect().await.unwrap();
        assert_eq!(tokio::io::AsyncReadExt::read(&mut third, &mut [0]).await.unwrap(), 0, "closed at once");
        assert_eq!((seats.taken(), seats.turned_away()), (2, 1));
        drop(first);
        let _fourth = connect().await.unwrap();
        assert!(incoming.recv().await.is_some(), "a seat that is given back is used again");
    }
}
