//! Many changes in one buffer.
//!
//! A batch is a value: it is built without a socket and sent by [`Ipvs::run`](crate::Ipvs::run), as often as one likes.
//! Every request is encoded at once behind the last one; beside the bytes there is only where each begins.

use std::ops::Range;

use crate::attr::Encoder;
use crate::config::Timeouts;
use crate::daemon::{Daemon, DaemonRole};
use crate::destination::{Destination, DestinationKey};
use crate::error::Invalid;
use crate::message::{self, flags};
use crate::request::{Request, VERSION, command, kind};
use crate::service::{Service, ServiceKey};

/// Requests of one send. The kernel queues a refusal for each that it refuses: 221 of them fill a socket's receive buffer of
/// the default size on Linux 6.12, 277 on 6.1, and [`Ipvs`](crate::Ipvs) takes a larger one.
pub const REQUESTS_A_SEND: usize = 256;
/// Bytes of one send, well under the default send buffer (212,992).
const BYTES_A_SEND: usize = 128 << 10;

/// Changes, in the order in which the kernel is to make them.
///
/// The kernel makes each by itself: one that is refused does not keep it from the next. So a batch is fast, but it is
/// no transaction.
///
/// ```
/// use ipvs_rs::{Batch, Destination, Scheduler, Service, ServiceKey};
///
/// let key = ServiceKey::tcp("10.96.0.10:80".parse()?);
/// let mut batch = Batch::new();
/// batch.add_service(&Service::new(key, Scheduler::WEIGHTED_ROUND_ROBIN))?;
/// for backend in ["10.1.1.2:8080", "10.1.2.2:8080"] {
///     batch.add_destination(&key, &Destination::new(backend.parse()?))?;
/// }
/// assert_eq!(batch.len(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many requests it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Forgets its requests and keeps its room.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
    }

    /// The requests, one message behind the other, as they are before they are numbered and addressed to a family.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What a request of the batch asks, from 0; `None` beyond the last.
    #[must_use]
    pub fn request(&self, index: usize) -> Option<Request> {
        self.starts.get(index).and_then(|&start| Request::decode(&self.bytes[start..]).ok())
    }

    /// Make a service.
    ///
    /// # Errors
    /// [`Invalid`]; the batch is then as it was.
    pub fn add_service(&mut self, service: &Service) -> Result<(), Invalid> {
        self.service(command::NEW_SERVICE, service)
    }

    /// Change a service in place. Connections stay. Another scheduler costs the kernel a wait for its readers, about
    /// 20 ms.
    ///
    /// # Errors
    /// [`Invalid`]; the batch is then as it was.
    pub fn set_service(&mut self, service: &Service) -> Result<(), Invalid> {
        self.service(command::SET_SERVICE, service)
    }

    /// Remove a service with its destinations; what is established through it is cut.
    pub fn delete_service(&mut self, service: &ServiceKey) {
        self.about(command::DEL_SERVICE, service);
    }

    /// Add a destination to a service.
    ///
    /// # Errors
    /// [`Invalid`]; the batch is then as it was.
    pub fn add_destination(&mut self, service: &ServiceKey, destination: &Destination) -> Result<(), Invalid> {
        self.destination(command::NEW_DEST, service, destination)
    }

    /// Change a destination in place: weight, thresholds, forwarding.
    ///
    /// # Errors
    /// [`Invalid`]; the batch is then as it was.
    pub fn set_destination(&mut self, service: &ServiceKey, destination: &Destination) -> Result<(), Invalid> {
        self.destination(command::SET_DEST, service, destination)
    }

    /// Take a destination off a service. What becomes of its connections is the sysctl `expire_nodest_conn`'s matter.
    pub fn delete_destination(&mut self, service: &ServiceKey, destination: &DestinationKey) {
        self.push(command::DEL_DEST, |encoder| {
            encoder.nest(kind::SERVICE, |nested| service.encode(nested));
            encoder.nest(kind::DESTINATION, |nested| destination.encode(nested));
        });
    }

    /// Set the counters of a service and its destinations to 0.
    pub fn zero_service(&mut self, service: &ServiceKey) {
        self.about(command::ZERO, service);
    }

    /// Set all counters to 0.
    pub fn zero_all(&mut self) {
        self.push(command::ZERO, |_| ());
    }

    /// Remove all services, whoever made them. The kernel keeps what is removed for some three minutes and searches
    /// through it for each destination added, so never flush to load anew: change what is different.
    pub fn flush(&mut self) {
        self.push(command::FLUSH, |_| ());
    }

    /// Set time-outs.
    ///
    /// # Errors
    /// [`Invalid`]; the batch is then as it was.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), Invalid> {
        self.try_push(command::SET_CONFIG, |encoder| timeouts.encode(encoder))
    }

    /// Start a synchronisation daemon.
    pub fn start_daemon(&mut self, daemon: &Daemon) {
        self.push(command::NEW_DAEMON, |encoder| encoder.nest(kind::DAEMON, |nested| daemon.encode(nested)));
    }

    /// Stop a synchronisation daemon. One that has just been started may be stopped without an answer: put something
    /// behind it, or the send is taken for unanswered after a wait. [`Ipvs::stop_daemon`](crate::Ipvs::stop_daemon) does.
    pub fn stop_daemon(&mut self, role: DaemonRole) {
        self.push(command::DEL_DAEMON, |encoder| encoder.nest(kind::DAEMON, |nested| role.encode(nested)));
    }

    /// Any request about one service.
    pub(crate) fn about(&mut self, command: u8, service: &ServiceKey) {
        self.push(command, |encoder| encoder.nest(kind::SERVICE, |nested| service.encode(nested)));
    }

    /// Any request.
    pub(crate) fn push(&mut self, command: u8, fill: impl FnOnce(&mut Encoder<'_>)) {
        let start = message::begin(&mut self.bytes, command, VERSION);
        fill(&mut Encoder::new(&mut self.bytes));
        message::end(&mut self.bytes, start);
        self.starts.push(start);
    }

    fn try_push(
        &mut self,
        command: u8,
        fill: impl FnOnce(&mut Encoder<'_>) -> Result<(), Invalid>,
    ) -> Result<(), Invalid> {
        let before = self.bytes.len();
        let mut result = Ok(());
        self.push(command, |encoder| result = fill(encoder));
        if result.is_err() {
            self.bytes.truncate(before);
            self.starts.pop();
        }
        result
    }

    fn service(&mut self, command: u8, service: &Service) -> Result<(), Invalid> {
        self.try_push(command, |encoder| {
            let mut result = Ok(());
            encoder.nest(kind::SERVICE, |nested| result = service.encode(nested));
            result
        })
    }

    fn destination(&mut self, command: u8, service: &ServiceKey, destination: &Destination) -> Result<(), Invalid> {
        self.try_push(command, |encoder| {
            let mut result = Ok(());
            encoder.nest(kind::SERVICE, |nested| service.encode(nested));
            encoder.nest(kind::DESTINATION, |nested| result = destination.encode(nested));
            result
        })
    }

    /// Which requests go into each send.
    pub(crate) fn sends(&self) -> impl Iterator<Item = Range<usize>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = next;
            let from = *self.starts.get(first)?;
            let fits = |&start: &usize| self.starts.get(start + 1).unwrap_or(&self.bytes.len()) - from <= BYTES_A_SEND;
            next =
                (first..self.len().min(first + REQUESTS_A_SEND)).take_while(fits).last().map_or(first + 1, |l| l + 1);
            Some(first..next)
        })
    }

    /// Writes the requests of one send, ready to go. The last has the flags `last`, as a rule those that ask for an
    /// answer; the others are answered only when refused.
    pub(crate) fn datagram(&self, requests: &Range<usize>, family: u16, last: u16, sequence: u32, into: &mut Vec<u8>) {
        let start_of = |index: usize| self.starts.get(index).copied().unwrap_or(self.bytes.len());
        let from = start_of(requests.start);
        into.clear();
        into.extend_from_slice(&self.bytes[from..start_of(requests.end)]);
        for index in requests.clone() {
            let flags = flags::REQUEST | if index + 1 == requests.end { last } else { 0 };
            let number = sequence.wrapping_add((index - requests.start) as u32);
            message::address(into, start_of(index) - from, family, flags, number);
        }
    }

    /// What a request of the batch asks; what cannot be read back is named as the whole.
    pub(crate) fn request_sent(&self, index: usize) -> Request {
        self.request(index).unwrap_or(Request::GetInfo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::messages;
    use crate::{Scheduler, ServiceFlags};

    fn key(port: u16) -> ServiceKey {
        ServiceKey::udp(([10, 96, 0, 1], port).into())
    }

    #[test]
    fn a_send_has_at_most_256_requests_and_asks_for_one_answer() {
        let mut batch = Batch::new();
        for port in 0..600 {
            batch.add_service(&Service::new(key(port), Scheduler::ROUND_ROBIN)).unwrap();
        }
        let sends: Vec<_> = batch.sends().collect();
        assert_eq!(sends, [0..256, 256..512, 512..600]);
        let mut datagram = Vec::new();
        batch.datagram(&sends[1], 0x1c, flags::ACK, 1000, &mut datagram);
        assert!(datagram.len() < 212_992 / 2, "{}", datagram.len());
        let sent: Vec<_> = messages(&datagram).map(Result::unwrap).collect();
        assert_eq!(sent.len(), 256);
        for (number, message) in sent.iter().enumerate() {
            assert_eq!((message.kind, message.sequence), (0x1c, 1000 + number as u32));
            let asks = if number == 255 { flags::REQUEST | flags::ACK } else { flags::REQUEST };
            assert_eq!(message.flags, asks);
        }
        assert_eq!(batch.request(511), Some(Request::AddService(key(511))));
        assert_eq!(batch.request(600), None);
    }

    #[test]
    fn what_is_invalid_leaves_no_trace() {
        let mut batch = Batch::new();
        batch.delete_service(&key(1));
        let before = batch.bytes.clone();
        let heavy = Destination::new(([10, 1, 1, 1], 1).into()).with_weight(u32::MAX);
        assert_eq!(batch.add_destination(&key(1), &heavy), Err(Invalid::Weight(u32::MAX)));
        let long = Timeouts { udp: Some(std::time::Duration::ZERO), ..Timeouts::default() };
        assert!(batch.set_timeouts(&long).is_err());
        assert_eq!((&batch.bytes, batch.len()), (&before, 1));
        batch.delete_service(&key(2));
        assert_eq!(batch.request(1), Some(Request::DeleteService(key(2))));
    }

    #[test]
    fn the_kernels_own_flag_is_never_written() {
        let mut batch = Batch::new();
        let flags = ServiceFlags::from_bits_retain(0x07);
        batch.set_service(&Service::new(key(1), Scheduler::ROUND_ROBIN).with_flags(flags)).unwrap();
        let wanted = [5_u32.to_ne_bytes(), (!2_u32).to_ne_bytes()].concat();
        assert!(batch.bytes.windows(8).any(|window| window == wanted));
    }
}
