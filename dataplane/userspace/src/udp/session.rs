//! One UDP session: a client at a door, and a connected socket to the endpoint that it was given.
//!
//! The door sends the client's datagrams on; the session's own task brings the answers back. An endpoint that refuses
//! (ICMP port unreachable) before it ever answered is replaced by another, with the datagram that it did not take.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use socket2::{Domain, Protocol as SocketProtocol, SockAddr, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Notify;

use super::batch::{BATCH, Batch};
use super::sessions::Expires;
use super::with_batch;
use crate::budget::Permit;
use crate::choose::{Chosen, Denied, Tried};
use crate::connect::{ATTEMPTS_MAX, address_of, note_failure};
use crate::pick::Flow;
use crate::proxy::Shared;
use crate::served::Slot;
use crate::table::Place;

/// How long a session may be silent, in milliseconds, as connection tracking has it (nf_conntrack_udp_timeout): most are
/// a question and an answer. A service's `idle_timeout` replaces both.
pub const SILENCE_MS: u64 = 30_000;
/// The same for one that was answered and has gone on for [`STREAM_AFTER_MS`] (nf_conntrack_udp_timeout_stream).
pub const SILENCE_STREAM_MS: u64 = 120_000;
/// How long a session that was cut waits for answers to what it has already sent.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// From when on it is a stream (nf_conntrack_proto_udp.c).
const STREAM_AFTER_MS: u64 = 2_000;

/// A session, shared by its door and its task.
pub(crate) struct Session {
    shared: Arc<Shared>,
    pub(crate) slot: Arc<Slot>,
    place: Place,
    flow: Flow,
    /// Where answers leave. Weak: a door that is closed is closed, whatever its sessions still wait for.
    door: Weak<UdpSocket>,
    client: SockAddr,
    from: Option<IpAddr>,
    upstream: ArcSwap<Upstream>,
    /// The last datagram, until an endpoint has answered any.
    unanswered: Mutex<Vec<u8>>,
    answered: AtomicBool,
    /// Datagrams to the endpoint less datagrams from it.
    in_flight: AtomicI64,
    ended: AtomicBool,
    opened: u64,
    last: AtomicU64,
    /// The door met an error of the endpoint's, which the task acts on.
    refused: Notify,
    _permits: [Permit; 2],
}

/// The endpoint's side.
struct Upstream {
    socket: UdpSocket,
    chosen: Chosen,
}

impl Upstream {
    fn open(shared: &Shared, slot: &Slot, place: &Place, flow: &Flow, tried: &Tried) -> Result<Self, Denied> {
        let chosen = shared.choose(slot, place, flow, tried)?;
        let socket = connect(address_of(&chosen.target.key, flow)).map_err(|_| Denied::Exhausted)?;
        chosen.service().counters.connections.add(u64::from(tried.len() == 0));
        chosen.target.counters.connections.add(1);
        Ok(Self { socket, chosen })
    }

    fn is_cut(&self) -> bool {
        self.chosen.target.cuts() != self.chosen.cuts
    }
}

fn connect(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), Some(SocketProtocol::UDP))?;
    socket.connect(&address.into())?;
    UdpSocket::from_std(socket.into())
}

/// What a door knows of a client that is new to it.
pub(crate) struct Newcomer<'a> {
    pub(crate) place: Place,
    pub(crate) slot: &'a Arc<Slot>,
    pub(crate) flow: Flow,
    /// Which of our addresses it asked.
    pub(crate) asked: Option<IpAddr>,
}

impl Session {
    /// Opens a session. Its task is [`Session::run`].
    pub(crate) fn open(
        shared: &Arc<Shared>,
        door: &Arc<UdpSocket>,
        newcomer: &Newcomer<'_>,
        permits: [Permit; 2],
    ) -> Result<Arc<Self>, Denied> {
        let Newcomer { place, slot, flow, asked } = *newcomer;
        let upstream = Upstream::open(shared, slot, &place, &flow, &Tried::default())?;
        Ok(Arc::new(Self {
            shared: Arc::clone(shared),
            slot: Arc::clone(slot),
            place,
            flow,
            door: Arc::downgrade(door),
            client: flow.client.into(),
            from: asked,
            upstream: ArcSwap::from_pointee(upstream),
            unanswered: Mutex::default(),
            answered: AtomicBool::new(false),
            in_flight: AtomicI64::new(0),
            ended: AtomicBool::new(false),
            opened: shared.now(),
            last: AtomicU64::new(shared.now()),
            refused: Notify::new(),
            _permits: permits,
        }))
    }

    /// Whether datagrams may still take this session.
    pub(crate) fn is_alive(&self) -> bool {
        !self.ended.load(Ordering::Relaxed) && !self.upstream.load().is_cut()
    }

    /// Sends datagrams of the client on to the endpoint.
    pub(crate) fn forward(&self, batch: &Batch, mut which: Range<usize>) {
        self.last.store(self.shared.now(), Ordering::Relaxed);
        let upstream = self.upstream.load();
        if !self.answered.load(Ordering::Relaxed)
            && let Some(last) = which.clone().next_back()
        {
            let mut unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
            unanswered.clear();
            unanswered.extend_from_slice(batch.bytes(last));
        }
        while !which.is_empty() {
            match batch.forward(upstream.socket.as_fd(), which.clone()) {
                Ok(sent) => {
                    self.in_flight.fetch_add(sent as i64, Ordering::Relaxed);
                    let bytes = (which.start..which.start + sent).map(|index| batch.bytes(index).len() as u64).sum();
                    for counters in [&upstream.chosen.service().counters, &upstream.chosen.target.counters] {
                        counters.packets_in.add(sent as u64);
                        counters.bytes_in.add(bytes);
                    }
                    which.start += sent.max(1);
                }
                // A full socket buffer: the rest is lost, as on any wire.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The endpoint's answer to an earlier datagram.
                Err(_) => {
                    self.refused.notify_one();
                    return;
                }
            }
        }
    }

    /// Brings answers to the client until the session is over.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut tried = Tried::default();
        loop {
            let upstream = self.upstream.load_full();
            if self.bring_answers(&upstream).await == Over::Cut {
                let _ = tokio::time::timeout(LAST_ANSWERS, self.bring_last_answers(&upstream)).await;
                break;
            }
            note_failure(&self.shared, &self.slot, &self.flow, &upstream.chosen, "it refused a datagram");
            tried.add(&upstream.chosen.target);
            if self.answered.load(Ordering::Relaxed) || !self.try_another(&tried) {
                break;
            }
        }
        self.ended.store(true, Ordering::Relaxed);
    }

    async fn bring_answers(&self, upstream: &Upstream) -> Over {
        let mut cut = pin!(upstream.chosen.target.cut_wakes.notified());
        loop {
            if upstream.is_cut() {
                return Over::Cut;
            }
            tokio::select! {
                biased;
                () = &mut cut => return Over::Cut,
                () = self.refused.notified() => return Over::Refused,
                // A refusal makes a socket ready in error, not ready to read.
                ready = upstream.socket.ready(Interest::READABLE.add(Interest::ERROR)) => {
                    let refused = ready.is_ok_and(|ready| ready.is_error()) && has_error(&upstream.socket);
                    if refused || self.take_answers(upstream).is_err() {
                        return Over::Refused;
                    }
                }
            }
        }
    }

    /// The session is cut and takes no more datagrams; what was asked before is still answered.
    async fn bring_last_answers(&self, upstream: &Upstream) {
        while self.in_flight.load(Ordering::Relaxed) > 0 {
            if upstream.socket.readable().await.is_err() || self.take_answers(upstream).is_err() {
                return;
            }
        }
    }

    /// Takes what has come from the endpoint and sends it to the client.
    fn take_answers(&self, upstream: &Upstream) -> io::Result<()> {
        with_batch(|batch| {
            let mut count = match receive(batch, &upstream.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                count => count?,
            };
            let in_flight = self.in_flight.fetch_sub(count as i64, Ordering::Relaxed);
            if upstream.is_cut() {
                count = count.min(usize::try_from(in_flight).unwrap_or(0));
            }
            let Some(door) = self.door.upgrade().filter(|_| count != 0) else { return Ok(()) };
            if !self.answered.swap(true, Ordering::Relaxed) {
                upstream.chosen.target.health.succeeded();
                *self.unanswered.lock().unwrap_or_else(PoisonError::into_inner) = Vec::new();
            }
            self.last.store(self.shared.now(), Ordering::Relaxed);
            let bytes = (0..count).map(|index| batch.bytes(index).len() as u64).sum();
            for counters in [&upstream.chosen.service().counters, &upstream.chosen.target.counters] {
                counters.packets_out.add(count as u64);
                counters.bytes_out.add(bytes);
            }
            // What the client's side does not take is lost, as on any wire.
            let _ = batch.reply(door.as_fd(), 0..count, &self.client, self.from);
            Ok(())
        })
    }

    /// Gives the client another endpoint, and that the last datagram. False: there is none.
    fn try_another(&self, tried: &Tried) -> bool {
        let failures = &self.slot.current.load().state.failures;
        let upstream = match Upstream::open(&self.shared, &self.slot, &self.place, &self.flow, tried) {
            Ok(upstream) if tried.len() < ATTEMPTS_MAX => upstream,
            _ => {
                failures.unanswered.add(1);
                return false;
            }
        };
        failures.retries.add(1);
        let unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        self.in_flight.store(1, Ordering::Relaxed);
        // If that is lost, the client repeats it, as after any loss.
        let _ = SockRef::from(&upstream.socket).send(&unanswered);
        drop(unanswered);
        self.upstream.store(Arc::new(upstream));
        true
    }

    fn silence(&self) -> u64 {
        let idle = self.slot.current.load().value.service.definition.idle_timeout;
        let lasted = self.last.load(Ordering::Relaxed).saturating_sub(self.opened);
        let is_stream = self.answered.load(Ordering::Relaxed) && lasted > STREAM_AFTER_MS;
        let usual = if is_stream { SILENCE_STREAM_MS } else { SILENCE_MS };
        idle.map_or(usual, |idle| u64::try_from(idle.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Takes a socket's pending error, and tells the runtime that it is taken.
fn has_error(socket: &UdpSocket) -> bool {
    let mut error = None;
    let _ = socket.try_io(Interest::ERROR, || {
        error = socket.take_error()?;
        Err::<(), _>(io::ErrorKind::WouldBlock.into())
    });
    error.is_some()
}

/// Receives, and tells the runtime at once if the socket is empty then: a batch that is not full has emptied it, and
/// asking again would cost a system call for every answer.
pub(crate) fn receive(batch: &mut Batch, socket: &UdpSocket) -> io::Result<usize> {
    let mut count = 0;
    let outcome = socket.try_io(Interest::READABLE, || {
        count = batch.receive(socket.as_fd())?;
        if count < BATCH { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match outcome {
        Err(error) if count == 0 => Err(error),
        _ => Ok(count),
    }
}

/// Why answers are not brought any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Cut,
    Refused,
}

/// A session as its door holds it: dropping it ends its task.
pub(crate) struct Held {
    pub(crate) session: Arc<Session>,
    pub(crate) task: tokio::task::AbortHandle,
}

impl Expires for Held {
    fn expires(&self) -> Option<u64> {
        let session = &self.session;
        session.is_alive().then(|| session.last.load(Ordering::Relaxed).saturating_add(session.silence()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // One that was cut ends soon, by itself.
        if !self.session.upstream.load().is_cut() {
            self.task.abort();
        }
    }
}
