//! Listening for TCP: one accept loop per listening socket and worker, and what becomes of each connection.
//!
//! Behind the guard's capture one socket per family takes the connections of all services, and the kernel says where
//! each was going. Without a guard there is a socket for each frontend's own address. Whatever accept answers, the loop
//! neither spins nor ends: it sheds the newest connections and waits a little.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol as SocketProtocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use vipd_model::{Family, Protocol};

use crate::budget::Permit;
use crate::choose::Denied;
use crate::connect::{Failure, Reached, reach, set_listener_options};
use crate::filter;
use crate::objects::Admission;
use crate::pick::Flow;
use crate::proxy::Shared;
use crate::relay::{Terms, relay};
use crate::served::Slot;
use crate::table::Place;

/// Connections that wait to be accepted; the kernel bounds it by `net.core.somaxconn` (4,096 by default).
const BACKLOG: i32 = 4_096;
/// The longest pause after accept failed for want of descriptors or memory.
const PAUSE_MAX: Duration = Duration::from_millis(100);
const PAUSE_FIRST: Duration = Duration::from_millis(5);
/// Descriptors of one relayed connection.
const DESCRIPTORS: usize = 2;

/// How a connection says where it was going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The guard redirected it: the kernel remembers the original destination.
    Captured(Family),
    /// It came to the address that we listen on.
    Direct(SocketAddr),
}

/// A listening socket, not yet served.
pub(crate) fn listen(address: SocketAddr, admission: &Admission) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(SocketProtocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Only sockets in TIME_WAIT are passed over by this; one that listens still makes the address taken.
    socket.set_reuse_address(true)?;
    set_listener_options(SockRef::from(&socket))?;
    socket.bind(&address.into())?;
    filter::attach(SockRef::from(&socket), admission)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts until aborted.
pub(crate) async fn accept(listener: TcpListener, arrival: Arrival, shared: Arc<Shared>) {
    let mut pause = PAUSE_FIRST;
    loop {
        match listener.accept().await {
            Ok((client, peer)) => {
                pause = PAUSE_FIRST;
                match shared.budget.take(DESCRIPTORS).zip(shared.connections.take(1)) {
                    Some(permits) => drop(tokio::spawn(serve(client, peer, arrival, Arc::clone(&shared), permits))),
                    None => shed(&shared, &client),
                }
            }
            Err(error) if is_exhausted(&error) => {
                // Somebody else in this process uses more than was reckoned with. What the reserve gives up is enough
                // to accept and turn away one after the other, as long as no flow may take it.
                shared.budget.lower(shared.now());
                drop(shared.reserve.take());
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            // The connection broke before it was accepted: not our affair.
            Err(_) => {}
        }
    }
}

fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Turns a connection away: reset, so that its client knows at once.
fn shed(shared: &Shared, client: &TcpStream) {
    let _ = client.set_zero_linger();
    shared.shed.descriptors.add(1);
    let now = shared.now();
    if shared.shedding.note(now) {
        tracing::warn!(
            descriptors = shared.budget.used(),
            limit = shared.budget.limit(),
            "descriptor limit reached: new connections are turned away until others end (LimitNOFILE raises it)"
        );
    }
    if shared.budget.lift(now) {
        shared.reserve.refill();
    }
}

/// One connection from its client to the end.
async fn serve(
    mut client: TcpStream,
    peer: SocketAddr,
    arrival: Arrival,
    shared: Arc<Shared>,
    permits: (Permit, Permit),
) {
    let Some((flow, place, slot)) = find(&client, peer, arrival, &shared) else {
        shared.shed.unknown.add(1);
        let _ = client.set_zero_linger();
        return;
    };
    match reach(&shared, &slot, &place, &flow).await {
        Ok(reached) => carry(&mut client, reached, &slot, &shared).await,
        Err(failure) => {
            deny(&shared, &slot, failure);
            let _ = client.set_zero_linger();
        }
    }
    drop(permits);
}

fn find(client: &TcpStream, peer: SocketAddr, arrival: Arrival, shared: &Shared) -> Option<(Flow, Place, Arc<Slot>)> {
    let destination = match arrival {
        Arrival::Captured(Family::V4) => SockRef::from(client).original_dst_v4().ok()?.as_socket()?,
        Arrival::Captured(Family::V6) => SockRef::from(client).original_dst_v6().ok()?.as_socket()?,
        Arrival::Direct(address) => address,
    };
    let (place, slot) = shared.table.find(Protocol::Tcp, destination.ip(), destination.port())?;
    Some((Flow { client: peer, destination }, place, slot))
}

async fn carry(client: &mut TcpStream, reached: Reached, slot: &Slot, shared: &Shared) {
    let Reached { mut server, chosen } = reached;
    let idle = slot.current.load().value.service.definition.idle_timeout;
    let (service, target) = (chosen.service(), &chosen.target);
    service.counters.connections.add(1);
    target.counters.connections.add(1);
    let terms = Terms {
        target,
        cuts: chosen.cuts,
        idle,
        pipes: &shared.pipes,
        bytes_in: [&service.counters.bytes_in, &target.counters.bytes_in],
        bytes_out: [&service.counters.bytes_out, &target.counters.bytes_out],
    };
    let end = relay(client, &mut server, &terms).await;
    tracing::trace!(service = %service.key, endpoint = %target.key, ?end, "connection ended");
}

fn deny(shared: &Shared, slot: &Slot, failure: Failure) {
    let failures = &slot.current.load().state.failures;
    match failure {
        Failure::Denied(Denied::Refused(_)) => failures.refused.add(1),
        Failure::Denied(Denied::Full) => failures.full.add(1),
        Failure::Denied(Denied::Exhausted) => failures.unanswered.add(1),
        Failure::Denied(Denied::Gone) => shared.shed.unknown.add(1),
        Failure::Exhausted => {
            shared.shed.descriptors.add(1);
            shared.shedding.note(shared.now());
        }
    }
}
