//! From a client's connection to one that an endpoint answers: choose, try, and try another if it does not.
//!
//! Nothing has been relayed yet, so the client notices only time. Attempts are bounded in number and in time; an attempt
//! gets longer with each one that ran out of it, since the network may be slow as well as the endpoint dead.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};
use vipd_model::EndpointKey;

use crate::choose::{Chosen, Denied, Tried, forget_affinity};
use crate::pick::Flow;
use crate::proxy::Shared;
use crate::served::Slot;
use crate::table::Place;
use crate::tick::before_timer;

/// How long an attempt may take, by the number of attempts before it that ran out of time; kube-proxy's userspace mode
/// used the same.
const PATIENCE: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// All attempts of one flow together. The last endpoint left gets what is left of it, so that lost SYNs are repeated.
pub const CONNECT_TOTAL: Duration = Duration::from_millis(3_750);
/// Attempts of one flow, of which refused ones cost a round trip only.
pub const ATTEMPTS_MAX: usize = 16;
/// When a silent peer is first asked whether it lives, and how often then.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// Why no endpoint was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// None may be chosen.
    Denied(Denied),
    /// This host has no socket or port left for it; the endpoint is not to blame.
    Exhausted,
}

/// A socket to an endpoint, and the place taken there.
pub(crate) struct Reached {
    pub(crate) server: TcpStream,
    pub(crate) chosen: Chosen,
}

/// Finds an endpoint that answers.
pub(crate) async fn reach(shared: &Shared, slot: &Slot, place: &Place, flow: &Flow) -> Result<Reached, Failure> {
    let begun = Instant::now();
    let mut tried = Tried::default();
    let mut timeouts = 0;
    loop {
        let chosen = shared.choose(slot, place, flow, &tried).map_err(Failure::Denied)?;
        let left = CONNECT_TOTAL.saturating_sub(begun.elapsed());
        let patience = if chosen.others { PATIENCE[timeouts.min(PATIENCE.len() - 1)].min(left) } else { left };
        let address = address_of(&chosen.target.key, flow);
        before_timer();
        match timeout(patience, connect(address)).await {
            Ok(Ok(server)) => {
                if chosen.target.health.succeeded() {
                    tracing::info!(service = %chosen.service().key, endpoint = %chosen.target.key, "endpoint answers again");
                }
                return Ok(Reached { server, chosen });
            }
            Ok(Err(error)) if is_local(&error) => return Err(Failure::Exhausted),
            Ok(Err(error)) => note_failure(shared, slot, flow, &chosen, &error.to_string()),
            Err(_) => {
                timeouts += 1;
                note_failure(shared, slot, flow, &chosen, "no answer");
            }
        }
        tried.add(&chosen.target);
        if tried.len() >= ATTEMPTS_MAX || begun.elapsed() >= CONNECT_TOTAL {
            return Err(Failure::Denied(Denied::Exhausted));
        }
        chosen.service().failures.retries.add(1);
    }
}

/// Remembers that an endpoint did not answer, so that others are spared.
pub(crate) fn note_failure(shared: &Shared, slot: &Slot, flow: &Flow, chosen: &Chosen, why: &str) {
    if chosen.target.health.failed(shared.now()) {
        tracing::warn!(
            service = %chosen.service().key, endpoint = %chosen.target.key, why,
            "endpoint does not answer; new connections avoid it for a while"
        );
    }
    forget_affinity(slot, flow.client.ip(), &chosen.target);
}

/// Where an endpoint is for a flow: a service with a port range keeps the client's port.
pub(crate) fn address_of(key: &EndpointKey, flow: &Flow) -> SocketAddr {
    key.socket_address(flow.destination.port())
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Two calls, where a listener's are made once for all connections: the kernel's own pace (9 probes in 11 minutes) is
    // good enough after the first one.
    socket.set_nodelay(true)?;
    SockRef::from(&socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_AFTER))?;
    socket.connect(address).await
}

/// What a client's socket needs; a listener hands it down to what it accepts.
pub(crate) fn set_listener_options(socket: SockRef<'_>) -> io::Result<()> {
    // The other end decided when to send; we add no delay of our own.
    socket.set_tcp_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

/// Whether an error is this host's own: no descriptor, memory or port.
fn is_local(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL)
    )
}
