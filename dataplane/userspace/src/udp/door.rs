//! A UDP door: a socket where clients' datagrams arrive, on one worker, with the sessions that began there. A frontend has
//! one for each worker.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol as SocketProtocol, SockRef, Socket, Type};
use tokio::net::UdpSocket;
use vipd_model::{Place as At, Protocol};

use super::batch::{BATCH, Batch};
use super::session::{Held, Newcomer, Session, receive};
use super::sessions::Sessions;
use super::with_batch;
use crate::choose::Denied;
use crate::filter;
use crate::objects::Admission;
use crate::pick::Flow;
use crate::proxy::Shared;
use crate::served::Slot;
use crate::table::{Place, Spot};

/// Wanted socket buffers; the kernel grants up to `net.core.rmem_max` and `wmem_max`. They carry a door over the few
/// milliseconds in which its worker is busy elsewhere.
const BUFFER_BYTES: usize = 4 << 20;
/// Silent sessions are looked for so often.
const SWEEP: Duration = Duration::from_millis(500);
/// Full batches taken before other sessions get their turn.
const BATCHES_IN_A_ROW: usize = 4;

/// Sockets at one address, one for each of `count` workers; the kernel keeps each client at one of them.
pub(crate) fn bind(address: SocketAddr, admission: &Admission, count: usize) -> io::Result<Vec<std::net::UdpSocket>> {
    // The first one is bound without sharing, so that an address which another program has is refused.
    let first = socket(address, admission)?;
    first.bind(&address.into())?;
    let mut sockets = vec![std::net::UdpSocket::from(first)];
    let address = sockets[0].local_addr()?;
    for _ in 1..count {
        let next = socket(address, admission)?;
        SockRef::from(&sockets[0]).set_reuse_port(true)?;
        next.set_reuse_port(true)?;
        next.bind(&address.into())?;
        sockets.push(next.into());
    }
    for socket in &sockets {
        ask_for_local_address(socket)?;
    }
    Ok(sockets)
}

fn socket(address: SocketAddr, admission: &Admission) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), Some(SocketProtocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Clamped, not refused.
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    socket.set_send_buffer_size(BUFFER_BYTES)?;
    filter::attach(SockRef::from(&socket), admission)?;
    Ok(socket)
}

/// Has the kernel say for each datagram which address it was sent to.
pub(crate) fn ask_for_local_address(socket: &std::net::UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    }
    Ok(())
}

/// Where the datagrams of a door are going.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination {
    /// To this frontend; the guard redirected them.
    Captured(At, u16),
    /// To the door's own address.
    Direct(SocketAddr),
}

/// Serves a door until aborted; its sessions end with it.
pub(crate) async fn serve(socket: UdpSocket, destination: Destination, shared: Arc<Shared>) {
    let mut door = Door { socket: Arc::new(socket), destination, shared, sessions: Sessions::new(), frontend: None };
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        let socket = Arc::clone(&door.socket);
        tokio::select! {
            ready = socket.readable() => {
                // An error is an ICMP answer to one of our replies, which only that client could act on.
                if ready.is_ok() {
                    with_batch(|batch| door.take(batch));
                }
                tokio::task::yield_now().await;
            }
            _ = sweep.tick() => door.sweep(),
        }
    }
}

/// A client, and which of our addresses it talks to.
type Client = (SocketAddr, Option<IpAddr>);
/// A frontend with whoever has it.
type Frontend = (Place, Arc<Slot>);

struct Door {
    socket: Arc<UdpSocket>,
    destination: Destination,
    shared: Arc<Shared>,
    sessions: Sessions<Client, Held>,
    /// Who has the frontend, as of that version of the table.
    frontend: Option<(u64, Option<Frontend>)>,
}

impl Door {
    /// Takes what has arrived and sends it on.
    fn take(&mut self, batch: &mut Batch) {
        for _ in 0..BATCHES_IN_A_ROW {
            let Ok(count) = receive(batch, &self.socket) else { return };
            let client = |index| batch.sender(index).map(|sender| (sender, batch.local(index)));
            let mut first = 0;
            while first < count {
                let from = client(first);
                // What one client sends in a row is sent on by one call.
                let end = (first + 1..count).find(|index| client(*index) != from).unwrap_or(count);
                if let Some(from) = from {
                    self.send_on(batch, from, first..end);
                }
                first = end;
            }
            if count < BATCH {
                return;
            }
        }
    }

    fn send_on(&mut self, batch: &Batch, client: Client, which: Range<usize>) {
        let Some((place, slot)) = self.find_frontend() else {
            self.sessions.remove(&client);
            self.shared.shed.unknown.add(which.len() as u64);
            return;
        };
        let known = self.sessions.get(&client).map(|held| &held.session);
        if let Some(session) = known.filter(|session| session.is_alive() && Arc::ptr_eq(&session.slot, &slot)) {
            return session.forward(batch, which);
        }
        self.sessions.remove(&client);
        match self.open(client, place, &slot) {
            Ok(session) => {
                session.forward(batch, which);
                let task = tokio::spawn(Arc::clone(&session).run()).abort_handle();
                self.sessions.insert(client, Held { session, task });
            }
            Err(denied) => {
                let failures = &slot.current.load().state.failures;
                match denied {
                    Some(Denied::Refused(_)) => failures.refused.add(1),
                    Some(Denied::Full) => failures.full.add(1),
                    Some(Denied::Exhausted) => failures.unanswered.add(1),
                    Some(Denied::Gone) | None => {}
                }
            }
        }
    }

    /// A session for a new client; the error is absent if it was shed.
    fn open(&self, client: Client, place: Place, slot: &Arc<Slot>) -> Result<Arc<Session>, Option<Denied>> {
        let shared = &self.shared;
        let permits = shared.sessions.take(1).and_then(|session| Some([session, shared.budget.take(1)?]));
        let Some(permits) = permits else {
            shared.shed.sessions.add(1);
            if shared.shedding.note(shared.now()) {
                tracing::warn!(
                    sessions = shared.sessions.used(),
                    "session or descriptor limit reached: datagrams of new clients are dropped until others end"
                );
            }
            return Err(None);
        };
        let (peer, asked) = client;
        let destination = match self.destination {
            Destination::Direct(address) => address,
            Destination::Captured(At::Address(address), port) => SocketAddr::new(address, port),
            Destination::Captured(At::Node(_), port) => SocketAddr::new(asked.unwrap_or(peer.ip()), port),
        };
        let flow = Flow { client: peer, destination };
        Session::open(shared, &self.socket, &Newcomer { place, slot, flow, asked }, permits).map_err(Some)
    }

    /// Who has the frontend now.
    fn find_frontend(&mut self) -> Option<Frontend> {
        let table = &self.shared.table;
        let version = table.version();
        if self.frontend.as_ref().is_none_or(|(seen, _)| *seen != version) {
            let found = match self.destination {
                Destination::Direct(at) => table.find(Protocol::Udp, at.ip(), at.port()),
                Destination::Captured(At::Address(address), port) => table.find(Protocol::Udp, address, port),
                Destination::Captured(At::Node(family), port) => table.find_at(Protocol::Udp, Spot::Node(family), port),
            };
            self.frontend = Some((version, found));
        }
        self.frontend.as_ref().and_then(|(_, found)| found.clone())
    }

    fn sweep(&mut self) {
        self.sessions.expire(self.shared.now());
        let slot = self.find_frontend().map(|(_, slot)| slot);
        let stays = |session: &Session| slot.as_ref().is_some_and(|slot| Arc::ptr_eq(slot, &session.slot));
        self.sessions.retain(|held| held.session.is_alive() && stays(&held.session));
    }
}
